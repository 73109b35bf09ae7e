import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pagefault import MODELS
from pagefault.calc import mix_figures, model_figures

GB, GIB = 10**9, 2**30
CSV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""


@pytest.fixture
def calc(run_command):
    return partial(run_command, "calc")


PUBLISHED = {
    42: dict(tokens=20_500, blocks=1298, paged_mb=10.633, saving_x=3.156, naive_utilization_percent=31.28,
             paged_utilization_percent=98.71, internal_fragmentation_tokens_per_sequence=8.375),
    7: dict(tokens=12_405, blocks=790, paged_mb=6.472, saving_x=5.185, naive_utilization_percent=18.93,
            paged_utilization_percent=98.14, internal_fragmentation_tokens_per_sequence=7.344),
}


@pytest.mark.parametrize("seed", PUBLISHED)
def test_the_published_memory_table(calc, seed):
    found = calc(f"--seqs 32 --seed {seed} --block-size 16 --max-len 2048 --json")
    for name, value in PUBLISHED[seed].items():
        assert round(found[name], len(str(value).partition(".")[2])) == value, name
    assert found["naive_mb"] == 33.554432 and found["sequences"] == 32 and found["over_max_len_sequences"] == 0
    text = calc(f"--seed {seed}")
    for name, value in PUBLISHED[seed].items():
        assert f"{value:,}" in text, name


def test_the_published_sweep_of_block_sizes(calc):
    rows = [(1, "10.50", "0.00", "100.0 %", 2048), (16, "10.63", "0.14", "98.7 %", 128), (64, "11.01", "0.51", "95.3 %", 32),
            (256, "13.24", "2.74", "79.3 %", 8)]
    sweep = calc("--json")["sweep"]
    assert [(row["block_size_tokens"], f"{row['reserved_mb']:.2f}", f"{row['wasted_mb']:.2f}",
             f"{row['utilization_percent']:.1f} %", row["table_entries"]) for row in sweep] == rows
    assert [row["blocks"] for row in sweep] == [20_500, 1298, 336, 101]
    text = calc("")
    for size, mb, wasted, used, entries in rows:
        assert re.search(rf"^ +{size} +[\d,]+ +{mb} +{wasted} +{used} +{entries:,}$", text, re.M)


def test_the_worked_example():
    found = mix_figures([1, 16, 17, 100], 2048, 16)
    assert found["blocks"] == 11 and found["internal_fragmentation_tokens_per_sequence"] * 4 == 42


def test_a_block_size_of_ones_own_joins_the_sweep(calc):
    found = calc("--block-size 48 --json")
    assert [row["block_size_tokens"] for row in found["sweep"]] == [1, 16, 48, 64, 256]
    own = found["sweep"][2]
    assert (own["blocks"], own["reserved_mb"], own["saving_x"]) == (found["blocks"], found["paged_mb"], found["saving_x"])


def test_lengths_of_a_trace_and_what_is_cut_off(calc, tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(CSV, encoding="utf-8")
    found = calc(f"--trace {file} --json")
    assert (found["tokens"], found["blocks"], found["over_max_len_sequences"]) == (418 + 505 + 934, 27 + 32 + 59, 0)
    assert (found["lengths_of"], found["seed"]) == ("mine.csv", None)
    found = calc(f"--trace {file} --max-len 505 --json")
    assert (found["tokens"], found["over_max_len_sequences"]) == (418 + 505 + 505, 1)
    assert "longer than 505 tokens, cut off there (33.33 %)" in calc(f"--trace {file} --max-len 505")


@pytest.mark.parametrize("options, bytes_per_token, reserved, paged", [
    ("--model llama3-70b --budget-gb 80 --max-len 8192 --mean-len 2000", 327_680, 29, 122),
    ("--model llama3-70b --budget-gib 80 --max-len 8192 --mean-len 2000", 327_680, 32, 131),
    ("--model Llama_3.70B", 327_680, 29, 122),
    ("--model llama-3-70b --tensor-parallel 4", 81_920, 119, 488),
    ("--model llama-3-70b --tensor-parallel 16", 40_960, 238, 976),
    ("--model llama3-70b --dtype-bytes 1", 163_840, 59, 244),
    ("--model llama2-7b", 524_288, 18, 76),
    ("--model llama3-8b --block-size 4096", 131_072, 74, 149),
    ("--model deepseek-v3 --tensor-parallel 8", 70_272, 138, 569),
    ("--model custom --layers 1 --kv-heads 8 --head-dim 128 --dtype-bytes 2", 4096, 2384, 9765),
    ("--model custom --layers 80 --kv-heads 8 --head-dim 128 --dtype-bytes 2 --heads 64 --budget-gb 12.5", 327_680, 4, 19),
    ("--model custom --layers 80 --kv-heads 8 --head-dim 128 --dtype-bytes 2 --tensor-parallel 16", 40_960, 238, 976),
    ("--model opt-13b --max-len 100 --budget-gb 0.000000001", 819_200, 0, 0),
])
def test_bytes_a_token_and_room(calc, options, bytes_per_token, reserved, paged):
    found = calc(options + " --json")
    assert (found["bytes_per_token"], found["reserved_sequences"], found["paged_sequences"]) == (bytes_per_token, reserved, paged)
    block = found["block_size_tokens"] * bytes_per_token
    assert paged == found["budget_bytes"] // block // -(-found["mean_len_tokens"] // found["block_size_tokens"])
    text = calc(options)
    for number in (bytes_per_token, reserved, paged):
        assert f" {number:,}" in text


def test_gigabytes_are_decimal_and_gibibytes_binary(calc):
    for options, nbytes in (("--budget-gb 80", 80 * GB), ("--budget-gib 80", 80 * GIB), ("--budget-gib 0.5", GIB // 2)):
        found = calc(f"--model llama3-70b {options} --json")
        assert (found["budget_bytes"], found["budget_gb"], found["budget_gib"]) == (nbytes, nbytes / GB, nbytes / GIB)
    assert "memory for the cache: 85.899 GB = 80.000 GiB " in calc("--model llama3-70b --budget-gib 80")


def test_a_window_takes_no_more_than_it_keeps():
    mistral = MODELS["mistral-7b-v0.1"]
    found = model_figures(mistral, 80 * GB, 100_000, 50_000, 16)
    kept = 4096 + 16  # a window lies over one block more than it fills
    assert found["reserved_sequences"] == 80 * GB // mistral.bytes(4096) and found["paged_sequences"] == 80 * GB // (kept * 131_072)
    assert model_figures(mistral, 80 * GB, 32_768, 9000, 8192)["paged_sequences"] == 80 * GB // (2 * 8192 * 131_072)


EXTREME = [
    "--seqs 20000 --seed 4294967295 --block-size 2147483647 --max-len 2147483647", "--seqs 1 --block-size 1 --max-len 1",
    "--model custom --layers 10000 --kv-heads 10000 --head-dim 10000 --dtype-bytes 16 --heads 1000000 --max-len 2147483647 "
    "--mean-len 2147483647 --block-size 3 --budget-gb 999999999.999999999",
    "--model custom --layers 1 --kv-heads 1 --head-dim 1 --dtype-bytes 1 --tensor-parallel 1000000 --mean-len 1 --max-len 1 "
    "--block-size 1 --budget-gib 999999999",
    *(f"--model {model}" for model in MODELS), "--model deepseek-v3 --tensor-parallel 128", "--help",
]


@pytest.mark.parametrize("options", EXTREME)
def test_text_fits_80_columns(calc, options, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    try:
        text = calc(options)
    except SystemExit:
        text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80 and text.isascii()


def test_a_strange_file_name_stays_on_a_line_of_80_columns(calc, tmp_path):
    file = tmp_path / ("a\nb" + "é" * 100 + ".csv")
    file.write_text(CSV, encoding="utf-8")
    lines = calc("--trace", str(file)).splitlines()
    assert lines[0] == "a?b" + "é" * 77 and max(map(len, lines)) <= 80


REFUSED = {
    "--seqs 0": "argument --seqs: '0' is not a whole number from 1 to 100,000",
    "--seqs -5": "argument --seqs: '-5' is not a whole number",
    "--seqs 1e3": "argument --seqs: '1e3' is not",
    "--seed 4294967296": "argument --seed: '4294967296' is not a whole number from 0 to 4,294,967,295",
    "--block-size 16.0": "argument --block-size: '16.0' is not",
    "--max-len " + "9" * 5000: "argument --max-len: '" + "9" * 40 + "' is not",
    "--budget-gb 80": "--budget-gb can't be used without --model",
    "--layers 3 --head-dim 5": "--head-dim can't be used without --model",
    "--model llama3-70b --seqs 3 --seed 0": "--seqs, --seed can't be used with --model",
    "--model llama3-70b --trace x.csv": "--trace can't be used with --model",
    "--model llama3-70b --budget-gb 80 --budget-gib 80": "--budget-gb can't be used with --budget-gib",
    "--model llama3-70b --budget-gb 0": "argument --budget-gb: '0' is not a number above 0",
    "--model llama3-70b --budget-gb -80": "argument --budget-gb: '-80' is not",
    "--model llama3-70b --budget-gb nan": "argument --budget-gb: 'nan' is not",
    "--model llama3-70b --budget-gib 1e99": "argument --budget-gib: '1e99' is not",
    "--model llama3-70b --mean-len 9000": "--mean-len 9,000 is more than --max-len 8,192",
    "--model llama3-70b --tensor-parallel 3": "64 query and 8 KV heads can't be split over 3 GPUs",
    "--model llama3-70b --tensor-parallel 0": "argument --tensor-parallel: '0' is not",
    "--model llama3-70b --layers 3": "--layers can't be used with --model llama-3-70b, only with --model custom",
    "--model llama4": f"--model 'llama4': there are {', '.join(MODELS)} and custom",
    "--model custom --layers 3 --dtype-bytes 2": "--model custom needs --kv-heads, --head-dim",
    "--model custom --layers 3 --dtype-bytes 2 --kv-heads 8 --head-dim 64 --heads 9": "9 query heads can't share 8 KV heads",
    "--model custom --layers 3 --dtype-bytes 2 --kv-heads 8 --head-dim 64 --tensor-parallel 3": "8 KV heads can't be split over 3",
    "--seqs 5 --trace x.csv": "--trace can't be used with --seqs or --seed",
    "--trace nowhere.csv": "No such file or directory: 'nowhere.csv'",
    "--trace .": "Is a directory: '.'",
    f"--trace '{__file__}'": "test_calc.py, row 1: no column TIMESTAMP",
    "--what": "unrecognized arguments: --what",
}


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: options[:60])
def test_what_cannot_be_is_one_line_and_exit_code_2(calc, options, capsys):
    with pytest.raises(SystemExit) as stopped:
        calc(options)
    out, err = capsys.readouterr()
    usage, line = err.splitlines()
    assert (stopped.value.code, out) == (2, "") and usage.startswith("usage: ") and "error: " in line
    assert REFUSED[options] in line


def test_the_command_runs_as_a_module(tmp_path):
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "pagefault", "calc"]
    run = subprocess.run([*command, "--json"], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "") and json.loads(run.stdout)["blocks"] == 1298
    run = subprocess.run([*command, "--trace", "nowhere"], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert (run.returncode, run.stdout) == (2, "") and "Traceback" not in run.stderr and "nowhere" in run.stderr


def test_no_token_and_no_room(calc):
    with pytest.raises(ValueError, match="there is no token"):
        mix_figures([0, 0], 8, 16)
    assert calc("--model opt-13b --budget-gb 0.1 --json")["paged_to_reserved_x"] is None
    assert calc("--model opt-13b --budget-gb 0.1").splitlines()[-1].split() == ["paged", "/", "reserved", "-"]
