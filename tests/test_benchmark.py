import subprocess
import sys

import numpy as np
import pytest

from pagefault import benchmark
from pagefault.benchmark import Work, works


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


def test_without_a_gpu_bench_says_so():
    command = [sys.executable, "-m", "pagefault", "bench"]
    run = subprocess.run(command, env={"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert run.returncode == 1 and "on an NVIDIA GPU, and there is none here" in run.stderr


@pytest.mark.gpu
def test_a_measurement_takes_longer_for_more_and_never_beats_reading():
    def row(n):
        read, naive = benchmark.measure(Work("w", (n,) * 32, 1, 1, 64, "float32"), repeats=3)
        assert read["low_us"] <= read["median_us"] <= read["high_us"]
        assert naive["median_us"] > read["median_us"] > 0
        return naive["median_us"]

    assert row(8192) > 4 * row(512)  # 16 times the context


@pytest.mark.gpu
def test_a_wrong_kernel_is_not_timed():
    work = Work("w", (5, 9), 2, 1, 64, "float32")
    q, k, v = benchmark.inputs(work, 0)
    launch = benchmark.naive_launch(q, k, v, work.seq_lens, scale=1.0)
    with pytest.raises(ArithmeticError, match="w: relative error .*, and 2e-06 is allowed"):
        benchmark.check(work, launch, q, k, v)
    with pytest.raises(ArithmeticError, match="are not finite"):
        benchmark.check(work, benchmark.naive_launch(q, k, v, (6, 9)), q, k, v)
    assert np.isfinite(benchmark.check(work, benchmark.naive_launch(q, k, v, work.seq_lens), q, k, v))
