import json
from functools import partial

import pytest

CSV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,8790,55
"""


@pytest.fixture
def command(run_command):
    return partial(run_command, "simulate")


@pytest.mark.parametrize("watermark, preemptions, decoding, times", [("0", 388, 39.4, 0.70), ("5%", 24, 57.4, 1.93)])
def test_the_defaults_are_the_published_setting(command, watermark, preemptions, decoding, times):
    found = command(f"--watermark {watermark} --json")
    assert (found["naive"]["steps"], found["naive"]["preemptions"], found["requests"]) == (7418, 0, 512)
    assert found["paged"]["preemptions"] == preemptions and round(found["paged"]["mean_decoding"], 1) == decoding
    assert round(found["throughput_x"], 2) == times and found["outcome"] == "finished"
    text = command(f"--watermark {watermark}")
    assert f"{times:.2f}x" in text and f"{found['paged']['mean_decoding']:.2f}" in text and max(map(len, text.splitlines())) <= 80


def test_a_trace_keeps_its_times_and_says_what_is_left_out(command, tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(CSV, encoding="utf-8")
    found = command(f"--trace {file} --model Llama3-8B --gpu H200 --preemption keep --victim newest --patience 0 --json")
    assert (found["requests"], found["left_out"], found["requests_of"]) == (2, 1, "mine.csv")
    assert found["paged"]["seconds"] > 4.3 and found["paged"]["wait_mean_ms"] < 10
    at_once = command(f"--trace {file} --model llama-3-8b --rate all --json")
    assert at_once["paged"]["seconds"] < 2
    assert "2 requests, 1 longer than 8,192 tokens left out:" in command(f"--trace {file}")


def test_arrivals_at_a_rate(command):
    slow, quick = (command(f"--jobs 64 --rate {rate} --json")["paged"] for rate in (10, 1000))
    assert slow["seconds"] > 5 > quick["seconds"] and slow["requests"] == quick["requests"] == 64


@pytest.mark.parametrize("options", [
    "--preemption swap --swap-blocks 100", "--patience endless --watermark 0.9 --workers 2", "--workers 16",
    "--victim least-lost --patience 0", "--model qwen-2.5-7b --gpu gb200 --max-len 1000"])
def test_every_option_is_played(command, options):
    found = command(f"--jobs 64 --pool-blocks 1024 --json {options}")
    assert found["outcome"] == "finished" and found["paged"]["output_tokens"] == found["naive"]["output_tokens"] > 0
    assert json.dumps(found)  # plain numbers


def test_a_livelock_is_said_and_is_exit_code_1(command, capsys):
    for more in ("", "--json"):
        with pytest.raises(SystemExit) as stopped:
            command(f"--jobs 64 --pool-blocks 256 --victim oldest --patience 0 {more}")
        text = "".join(capsys.readouterr())
        assert stopped.value.code == 1 and "victim oldest, patience 0, restart" in text
        assert not more or json.loads(text)["outcome"] == "livelock"


def test_help_fits_80_columns(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        command("--help")
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80 and text.isascii()
    for option in ("jobs workers watermark victim patience preemption seed trace model gpu rate max-len pool-blocks json").split():
        assert f"--{option}" in text


REFUSED = {
    "--jobs 0": "argument --jobs: '0' is not a whole number from 1",
    "--watermark 1": "argument --watermark: '1' is not a share",
    "--watermark -1": "argument --watermark",
    "--watermark 100%": "argument --watermark: '100%' is not a share",
    "--victim nobody": "argument --victim: 'nobody': there are requester, newest, oldest",
    "--patience soon": "argument --patience: 'soon' is not a whole number",
    "--preemption drop": "argument --preemption: 'drop': there are restart, keep, swap",
    "--model gpt": "argument --model: 'gpt': there are llama-2-7b",
    "--gpu h200": "--gpu can't be used without --model",
    "--swap-blocks 5": "--swap-blocks can't be used without --preemption swap",
    "--rate 0": "argument --rate: '0' is not a number above 0",
    "--pool-blocks 100": "2,048 tokens need 128 blocks of 16, and the pool has 100",
    "--trace nowhere.csv": "No such file or directory: 'nowhere.csv'",
    f"--trace '{__file__}'": "test_simulate_command.py, row 1: no column TIMESTAMP",
}


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: options[:40])
def test_what_cannot_be_is_one_line_and_exit_code_2(command, options, capsys):
    with pytest.raises(SystemExit) as stopped:
        command(options)
    out, err = capsys.readouterr()
    usage, line = err.splitlines()
    assert (stopped.value.code, out) == (2, "") and usage.startswith("usage: ") and REFUSED[options] in line


def test_a_mix_of_requests_that_are_all_too_long_is_an_empty_result(command):
    found = command("--max-len 16 --json")
    assert found["requests"] == 0 and found["left_out"] == 512 and found["throughput_x"] == 0
