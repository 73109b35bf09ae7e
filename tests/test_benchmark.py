import json
import re
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from pagefault import bench_command, benchmark, gathered, libraries
from pagefault.__main__ import main
from pagefault.works import Work, in_pages, inputs, pool_of, works


def test_the_works_of_the_recorded_table():
    by_name = {w.name: w for w in works()}
    assert by_name["W1"].bytes == 20_500 * 512
    assert sum(by_name["W2m"].seq_lens) == 35_386 and by_name["W2m"].bytes == 35_386 * 4096
    assert by_name["W2"].bytes == 64 * 2048 * 4096
    assert by_name["W3"].bytes == 2**33
    assert by_name["W1"].flop / by_name["W1"].bytes == 0.5
    assert by_name["W2"].flop / by_name["W2"].bytes == 4


def test_recorded_rows_are_read_as_they_were_written(tmp_path, monkeypatch):
    rows = [dict(kernel="k", work="w", median_us=1.5), dict(kernel="k", work="v", median_us=2.5)]
    monkeypatch.setattr(benchmark, "machine", lambda: dict(device="none", date="2026-01-01"))
    benchmark.record(rows, "python -m pagefault bench", tmp_path / "r.csv")
    frame = benchmark.recorded(tmp_path / "r.csv")
    assert frame.median_us.tolist() == [1.5, 2.5]
    assert frame.iloc[1].to_dict() == dict(rows[1], device="none", date="2026-01-01", command="python -m pagefault bench")


def bench(options, monkeypatch, capsys, gpu=False):
    """The exit code and what `python -m pagefault bench` prints, on a CPU whatever is there (or as if there were a GPU)."""
    monkeypatch.setattr(bench_command, "gpu_available", lambda: gpu)
    monkeypatch.setattr(sys, "argv", ["pagefault", "bench", *options.split()])
    try:
        main()
        code = 0
    except SystemExit as stopped:
        code = stopped.code
    return code, *capsys.readouterr()


def test_without_a_gpu_bench_checks_and_counts(monkeypatch, capsys):
    code, out, _ = bench("--json", monkeypatch, capsys)
    found = json.loads(out)
    rows = {(row["kernel"], row["layout"]): row for row in found["kernels"]}
    assert (found["serving"]["preemptions"], round(found["serving"]["throughput_x"], 2)) == (24, 1.93)
    assert code == 0 and set(rows) == {(kernel, layout) for kernel in benchmark.RUNGS for layout in ("contiguous", "paged")}
    assert rows["naive_attention", "contiguous"]["sectors"] == 1_518_048 and rows["naive_attention", "paged"]["requests"] == 166_623
    assert all(row["error"] <= (2e-6 if row["kernel"] in Work.rungs.fget(works()[0]) else 4e-4) for row in rows.values())
    tiles = rows["tensor_core", "contiguous"]["sectors"], rows["int8_pages", "contiguous"]["sectors"]
    assert tiles[0] < 0.5 * rows["split_kv", "contiguous"]["sectors"] and tiles[1] < 0.6 * tiles[0]  # 2 bytes, and 1, of 4
    out = bench("--seqs 2", monkeypatch, capsys)[1]
    assert "naive_attention  contiguous" in out and out.endswith("57.4 decoding, throughput 1.93x of reserved memory\n")
    assert "simulated" not in bench("--seqs 2 --skip-sim", monkeypatch, capsys)[1]


def test_bench_fails_when_a_check_does(monkeypatch, capsys):
    code, _, err = bench("--seqs 3 --tolerance 0", monkeypatch, capsys)
    assert code == 1 and re.search(r"FAILED: 3 mixed: naive_attention<float>: relative error \d.*, and 0 is allowed", err)
    code, out, err = bench("--seqs 3 --tolerance 0 --json", monkeypatch, capsys)
    assert code == 1 and err == f"FAILED: {json.loads(out)['failed']}\n"


@pytest.mark.parametrize("options, message", [
    ("--works W9", "there are no works W9"), ("--iters 1", "--iters 1 is from 2 to 2,147,483,647"),
    ("--seqs 0", "--seqs 0 is from 1"), ("--jobs 0", "--jobs 0 is from 1"),
    ("--seed 4294967295", "--seed 4294967295 is from 0 to 2,147,483,647"),
    ("--works W1 --seqs 2", "times are measured on an NVIDIA"),
    ("--output x.csv", "--output: times are measured on an NVIDIA GPU, and there is none here"),
    ("--watermark 2", "'2' is not a share"),
    ("--block-size 0", "--block-size 0 is from 1"), ("--tolerance -1", "--tolerance -1.0 is a number from 0"),
])
def test_bench_refuses_what_cannot_be(options, message, monkeypatch, capsys):
    code, _, err = bench(options, monkeypatch, capsys)
    assert code == 2 and message in err


def test_a_gpu_is_asked_for_what_the_options_say_and_the_table_says_which(monkeypatch, capsys, tmp_path):
    asked = []

    def measure(work, seed, repeats, kernels, pages, tolerance, shuffle_seed, prepared):
        asked.append((work.name, seed, repeats, pages, tolerance, shuffle_seed))
        return [benchmark.row(work, "split_kv", [1e-6, 2e-6])]

    monkeypatch.setattr(bench_command, "measure", measure)
    monkeypatch.setattr(bench_command, "prepare", lambda work, seed: None)
    monkeypatch.setattr(benchmark, "machine", lambda: dict(device="none"))
    options = f"--works W1 --quick --seed 3 --shuffle-seed 7 --tolerance 0.5 --skip-sim --output {tmp_path / 'r.csv'}"
    code, out, err = bench(options, monkeypatch, capsys, gpu=True)
    assert (code, err) == (0, "") and "W1         split_kv" in out
    assert asked == [("W1", 3, 3, [(16, "shuffled"), (16, "ordered")], 0.5, 7)]
    assert benchmark.recorded(tmp_path / "r.csv").command[0] == ("python -m pagefault bench --seed 3 --iters 15 --shuffle-seed 7 "
                                                                 "--block-size 16 --quick --tolerance 0.5 --works W1")
    for options, message in (("--works W1 --seqs 2", "--works can't be used with --seqs"),
                             (f"--output {tmp_path / 'no' / 'r.csv'}", "No such file")):
        code, _, err = bench(options, monkeypatch, capsys, gpu=True)
        assert code == 2 and message in err
    assert len(asked) == 1


@pytest.mark.parametrize("error", [RuntimeError("no kernel\nfor this"), ArithmeticError("no kernel"), TypeError("no kernel")])
def test_a_library_that_fails_is_left_out_with_its_reason(monkeypatch, error):
    def check(*_, **__):
        raise error

    fake = SimpleNamespace(from_dlpack=lambda _: MagicMock())
    monkeypatch.setitem(sys.modules, "cupy", np)
    for name, module in (("torch", fake), ("torch.nn", fake), ("torch.nn.attention", SimpleNamespace(SDPBackend=0, sdpa_kernel=0))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(libraries, "check", check)
    k = np.zeros((1, 3, 1, 8), np.float16)
    rows, missing = libraries.measure_libraries(Work("w", (10**6,), 8, 8, 128, "float16"), ([(k[:, 0], k, k)], (k[0],)))
    assert rows == [] and missing == [("cudnn_sdpa", "no kernel"), ("flash_sdpa", "no kernel")]


@pytest.mark.parametrize("order", ["ordered", "shuffled"])
@pytest.mark.parametrize("block_size", [1, 16, 50])
def test_a_pool_holds_what_the_contiguous_cache_does(block_size, order):
    k, v = np.random.default_rng(0).standard_normal((2, 3, 40, 2, 4), np.float32)
    lengths = (40, 1, 17)
    pool_k, pool_v, tables = in_pages(k, v, lengths, block_size, order, 1)
    for dense, pool in ((k, pool_k), (v, pool_v)):
        again = gathered(pool, tables, lengths)
        assert all((again[seq, :n] == dense[seq, :n]).all() for seq, n in enumerate(lengths))
    used = tables[tables >= 0]
    assert sorted(used) == list(range(len(pool_k))) and ((used == np.sort(used)).all() or order == "shuffled")


def test_the_recorded_table_has_every_rung_over_every_cache():
    table = benchmark.recorded()
    for work in works():
        rows = table[table.work == work.name]
        assert (rows.low_us <= rows.median_us).all() and (rows.median_us <= rows.high_us).all()
        if work.name.startswith("32 x "):  # notebook 1's
            assert set(rows.kernel) == {"read_ceiling", "naive_attention"}
            continue
        kernels = set(work.rungs) - ({"naive_attention"} if work.name == "W4" else set())
        for layout, order in (("contiguous", ""), ("paged", "shuffled"), ("paged", "ordered")):
            some = rows[(rows.layout == layout) & (rows.order.fillna("") == order)]
            assert kernels <= set(some.kernel)
    for kernel in ("split_kv", "tensor_core"):
        sizes = table[(table.work == "W2") & (table.kernel == kernel) & (table.order == "shuffled")].block_size
        assert sorted(sizes) == [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_an_int8_cache_in_a_pool_has_the_same_bytes_and_scales():
    work = Work("w", (40, 1, 16), 4, 2, 64, "int8")
    q, *cache = inputs(work, 0, np)
    assert q.dtype == np.float16 and cache[0].shape == (3, 48, 2, 64) and cache[2].shape == (3, 3, 2)
    *pool, tables = pool_of(cache, work.seq_lens, 16, "shuffled", 1)
    for dense, scales, paged, pooled in zip(cache[:2], cache[2:], pool[:2], pool[2:]):
        for seq, n in enumerate(work.seq_lens):
            for page in range(-(-n // 16)):
                tokens = slice(16 * page, min(n, 16 * page + 16))
                assert (paged[tables[seq, page], : tokens.stop - tokens.start] == dense[seq, tokens]).all()
                assert (pooled[tables[seq, page]] == scales[seq, page]).all()


@pytest.mark.gpu
def test_a_measurement_takes_longer_for_more_and_never_beats_reading():
    def row(n):
        read, naive = benchmark.measure(Work("w", (n,) * 32, 1, 1, 64, "float32"), repeats=3)
        assert read["low_us"] <= read["median_us"] <= read["high_us"]
        assert naive["median_us"] > read["median_us"] > 0
        return naive["median_us"]

    assert row(8192) > 4 * row(512)  # 16 times the context


@pytest.mark.gpu
def test_the_seed_of_the_blocks_order_is_the_one_asked_for_and_what_cant_run_is_named(monkeypatch, capsys):
    seeds, real = [], benchmark.pool_of
    monkeypatch.setattr(benchmark, "pool_of", lambda *args: seeds.append(args[-1]) or real(*args))
    work = Work("w", (70_000,), 1, 1, 64, "float32")
    rows = benchmark.measure(work, 0, 2, work.rungs, [(16, "shuffled")], shuffle_seed=7)
    assert set(seeds) == {7} and "naive_attention" not in [row["kernel"] for row in rows]
    assert "w: naive_attention is left out: a context of 70,000 tokens needs" in capsys.readouterr().err


def test_a_wrong_kernel_is_not_timed(xp):
    work = Work("w", (5, 9), 2, 1, 64, "float32")
    q, k, v = inputs(work, 0, xp)
    exact = benchmark.expected(work, q, k, v)
    launch = benchmark.naive_launch(q, k, v, work.seq_lens, scale=1.0)
    with pytest.raises(ArithmeticError, match=r"w: naive_attention<float>: relative error .*, and 2e-06 is allowed"):
        benchmark.check(work, launch, exact)
    with pytest.raises(ArithmeticError, match="are not finite"):
        benchmark.check(work, benchmark.naive_launch(q, k, v, (6, 9)), exact)
    assert benchmark.check(work, benchmark.naive_launch(q, k, v, work.seq_lens), exact) <= 2e-6
