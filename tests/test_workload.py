import gzip
import json
import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefault.memory import contiguous_memory, paged_memory
from pagefault.traces import Trace, TraceError, load_trace
from pagefault.traffic import FITTED, PUBLISHED_TRAFFIC, synthetic_trace, trace_statistics, traffic_fit
from pagefault.workload import bursty_arrivals, mixed_lengths, poisson_arrivals

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.9999999,374,44
2023-11-17 00:00:00.0000000,396,109
2023-11-17 00:00:01.5,879,55
"""
MOONCAKE = """{"timestamp": 27, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 27.5, "input_length": 512, "output_length": 1, "hash_ids": [0]}
"""
FILES = {"azure-conv": "AzureLLMInferenceTrace_conv.csv", "azure-code": "AzureLLMInferenceTrace_code.csv",
         "mooncake-conv": "mooncake_conversation_trace.jsonl"}


def write(folder, content, name="trace.txt"):
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize("change", [
    str.encode,
    lambda text: gzip.compress(text.encode()),
    lambda text: text.replace("\n", "\r\n").encode(),
    lambda text: ("\ufeff" + text.replace("\n", "\n\n")).encode(),
    lambda text: text.strip().encode(),
], ids=["plain", "gzip", "Windows line ends", "byte order mark and empty lines", "no line end"])
def test_a_file_is_known_by_what_is_in_it(change, tmp_path):
    azure = load_trace(write(tmp_path, change(AZURE)))
    assert azure.arrival_ns.tolist() == [0, 100, 1_500_000_100]
    assert azure.prompt_tokens.tolist() == [374, 396, 879] and azure.output_tokens.tolist() == [44, 109, 55]
    assert azure.total_tokens.tolist() == [418, 505, 934] and azure.hash_ids is None
    mooncake = load_trace(str(write(tmp_path, change(MOONCAKE))))
    assert mooncake.arrival_ns.tolist() == [0, 500_000] and mooncake.hash_ids == ((0, 1), (0,))
    assert mooncake.total_tokens.tolist() == [605, 513] and mooncake.name == "trace.txt"
    assert all(row.dtype == np.int64 for row in (azure.arrival_ns, azure.prompt_tokens, azure.output_tokens))


@pytest.mark.parametrize("text", [
    'GeneratedTokens,model,TIMESTAMP,ContextTokens\n7,"a, b",2024-05-10 00:00:00.009930+00:00,2162\n8,c,2024-05-10T00:00:00.01Z,1',
    'ContextTokens, GeneratedTokens ,"TIMESTAMP"\n2162,7,2024-05-10 01:00:00.009930+01:00\n"1","8",2024-05-10 00:00:00.010000000',
    '{"timestamp": 0.009930e3, "input_length": 2162, "output_length": 7}\n{"timestamp": 10, "output_length": 8, "input_length": 1}',
])
def test_columns_may_come_in_any_order_and_times_with_a_zone(text, tmp_path):
    trace = load_trace(write(tmp_path, text))
    assert trace.arrival_ns.tolist() == [0, 70_000]
    assert trace.prompt_tokens.tolist() == [2162, 1] and trace.output_tokens.tolist() == [7, 8]


BROKEN = {
    "nothing": (b"", "has no requests"),
    "empty lines alone": (b"\n \r\n", "has no requests"),
    "a header alone": (AZURE.split("\n")[0], "has no requests"),
    "a column missing": (AZURE.replace("ContextTokens", "Tokens"), r"row 1: no column ContextTokens in the header 'TIMESTAMP,Tok"),
    "no header": (AZURE.split("\n", 1)[1], "row 1: no column TIMESTAMP, ContextTokens, GeneratedTokens"),
    "semicolons": (AZURE.replace(",", ";"), "row 1: no column TIMESTAMP, ContextTokens, GeneratedTokens"),
    "not a number": (AZURE.replace("396", "many"), "row 3: ContextTokens = 'many', a whole number"),
    "no number": (AZURE.replace("396", ""), "row 3: ContextTokens = '', a whole number"),
    "not whole": (AZURE.replace("109", "109.0"), "row 3: GeneratedTokens = '109.0', a whole number"),
    "underscores": (AZURE.replace("109", "1_0"), "row 3: GeneratedTokens = '1_0'"),
    "negative": (AZURE.replace("55", "-55"), "row 4: output tokens = -55, it is from 0"),
    "too large": (AZURE.replace("55", "5555555555"), "row 4: output tokens = 5,555,555,555, it is from 0 to 2,147,483,647"),
    "thousands": (AZURE.replace("396", "1,396"), "row 3: 4 fields, and the header has 3"),
    "a short row": (AZURE.replace(",55", ""), "row 4: 2 fields, and the header has 3"),
    "an open quote": (AZURE.replace(",55", ',"55'), "row 4: unexpected end of data"),
    "not a time": (AZURE.replace("2023-11-17 00:00:01.5", "yesterday"), "row 4: TIMESTAMP = 'yesterday', a date and time like"),
    "no such day": (AZURE.replace("11-17", "11-31"), "row 3: day is out of range"),
    "12 decimals": (AZURE.replace("01.5", "01.500000000000"), "row 4: TIMESTAMP = "),
    "back in time": (AZURE.replace("17 00:00:01.5", "16 00:00:01.5"), "row 4: it comes before the request above it; sort"),
    "back a little": (AZURE.replace("17 00:00:01.5", "16 23:59:59.99999995"), "row 4: it comes before the request above it"),
    "300 years": (AZURE.replace("2023-11-17 00:00:01.5", "2323-11-17 00:00:01"), "row 4: nanoseconds since the first request = 9"),
    "an empty line above": (AZURE.replace("\n", "\n\n", 1).replace("396", "many"), "row 4: ContextTokens = 'many'"),
    "UTF-16": (AZURE.encode("utf-16"), "row 1: byte 0xff is not UTF-8"),
    "Latin-1": (AZURE.replace("396", "396é").encode("latin-1"), "row 3: byte 0xe9 is not UTF-8"),
    "half a gzip file": (gzip.compress(AZURE.encode())[:-20], "is a broken gzip file: .*ended before"),
    "a changed gzip file": (gzip.compress(AZURE.encode())[:-8] + b"\0" * 8, "is a broken gzip file: CRC check failed"),
    "a gzip file of noise": (b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 30, "is a broken gzip file: "),
    "half an object": (MOONCAKE[:-15], "row 2: not JSON at character"),
    "a list": ("[1, 2]", "row 1: a line is an object with timestamp, input_length, output_length, not a list"),
    "a key missing": (MOONCAKE.replace("input_length", "input", 1), "row 1: no input_length among the keys 'timestamp, input, out"),
    "a string": (MOONCAKE.replace("512", '"512"'), "row 2: prompt tokens = '512', a whole number"),
    "true": (MOONCAKE.replace("600", "true"), "row 1: prompt tokens = True, a whole number"),
    "a fraction": (MOONCAKE.replace("600", "600.5"), r"row 1: prompt tokens = Decimal\('600.5'\), a whole number"),
    "null": (MOONCAKE.replace("600", "null"), "row 1: prompt tokens = None, a whole number"),
    "NaN": (MOONCAKE.replace("27.5", "NaN"), "row 2: timestamp = nan, a number of milliseconds"),
    "for ever": (MOONCAKE.replace("27.5", "1e999999999"), r"row 2: timestamp = 1E\+999999999, a number of milliseconds"),
    "longer than for ever": (MOONCAKE.replace("27.5", "1e" + "9" * 30), "row 2: "),
    "a time as text": (MOONCAKE.replace("27.5", '"27"'), "row 2: timestamp = 27, a number of milliseconds"),
    "back in milliseconds": (MOONCAKE.replace("27.5", "26"), "row 2: it comes before"),
    "ids of some": (MOONCAKE.replace(', "hash_ids": [0]', ""), "row 2: some requests have hash_ids and others have none"),
    "ids that aren't": (MOONCAKE.replace("[0]", '["a"]'), "row 2: hash_ids is a list of whole numbers"),
    "one id": (MOONCAKE.replace("[0]", "0"), "row 2: hash_ids is a list of whole numbers"),
    "very deep": ("[" * 100_000, "row 1: "),
    "very long": (MOONCAKE.replace("600", "6" * 5000), "row 1: "),
}


@pytest.mark.parametrize("content, message", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_with_its_row(content, message, tmp_path):
    with pytest.raises(TraceError, match=rf"^trace.csv,? {message}") as raised:
        load_trace(write(tmp_path, content, "trace.csv"))
    assert len(str(raised.value)) < 200


@given(st.sampled_from([AZURE.encode(), MOONCAKE.encode(), gzip.compress(AZURE.encode())]), st.data())
def test_whatever_a_file_holds_the_error_is_a_trace_error(content, data):
    at = data.draw(st.integers(0, len(content)))
    broken = content[:at] + data.draw(st.binary(max_size=3)) + content[at + data.draw(st.integers(0, 3)):]
    with tempfile.TemporaryDirectory() as folder:
        try:
            load_trace(write(Path(folder), broken))
        except TraceError as error:
            assert str(error).startswith("trace.txt")


def test_what_is_not_a_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.csv"):
        load_trace(tmp_path / "nowhere.csv")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        load_trace(tmp_path)


def seconds_of(do, *args):
    start = time.process_time()
    do(*args)
    return time.process_time() - start


def test_20_000_requests_are_read_in_well_under_a_second(tmp_path):
    made = synthetic_trace("azure-conv", 20_000, 1)
    when = pd.to_datetime(made.arrival_ns // 100 * 100).strftime("%Y-%m-%d %H:%M:%S.%f")
    frame = pd.DataFrame(dict(TIMESTAMP=when, ContextTokens=made.prompt_tokens, GeneratedTokens=made.output_tokens))
    csv = write(tmp_path, frame.to_csv(index=False))
    lines = [json.dumps(dict(timestamp=ns // 10**6, input_length=p, output_length=o, hash_ids=list(range(p // 512))))
             for ns, p, o in zip(made.arrival_ns.tolist(), made.prompt_tokens.tolist(), made.output_tokens.tolist())]
    for file in (csv, write(tmp_path, "\n".join(lines), "trace.jsonl")):
        assert any(seconds_of(load_trace, file) < 1 for _ in range(3))  # (once in three: the machine may have others to serve)
        read = load_trace(file)
        assert (read.total_tokens == made.total_tokens).all() and abs(read.arrival_ns - made.arrival_ns).max() < 10**6


@pytest.mark.parametrize("rows, message", [
    (([0, 5, 3], [1, 1, 1], [1, 1, 1]), "bad: the first request comes at 0, and none before"),
    (([1, 5], [1, 1], [1, 1]), "bad: the first request comes at 0"),
    (([0, 5], [1], [1, 1]), r"bad: times, prompts, outputs \(and hash_ids\) are of \[2, 1, 2\] requests"),
    (([0, 5], [1, 1], [1, 1], ((1,),)), r"of \[2, 2, 2, 1\] requests"),
    (([0, 5], [1, -1], [1, 1]), r"\[1\] = -1"),
    (([0, 5], [1, 1.5], [1, 1]), "whole numbers, not float64"),
])
def test_a_trace_that_cannot_be_is_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        Trace("bad", *rows)


@pytest.mark.parametrize("cv", [0.1, 0.5, 1, 1.5, 3])
def test_arrivals_have_the_rate_and_the_variation_asked_for(cv):
    n, rate = 40_000, 5.0
    for burst_rate in (None, 50.0) if cv > 1 else (None,):
        arrival_ns = bursty_arrivals(n, rate, cv, 1, burst_rate)
        assert arrival_ns.dtype == np.int64 and arrival_ns.shape == (n,) and arrival_ns[0] == 0
        gaps = np.diff(arrival_ns) / 1e9
        assert gaps.min() >= 0
        assert abs(gaps.mean() * rate - 1) < 4 * cv / math.sqrt(n)  # four standard errors
        assert abs(gaps.std() / gaps.mean() / cv - 1) < 0.05


def test_poisson_arrivals_are_memoryless():
    gaps = np.diff(poisson_arrivals(40_000, 8.0, 3)) / 1e9
    for seconds in (0.05, 0.125, 0.5):
        assert abs((gaps > seconds).mean() - math.exp(-8 * seconds)) < 0.01
    assert poisson_arrivals(50, 8.0, 3).tolist() == bursty_arrivals(50, 8.0, 1.0, 3).tolist()


def test_with_pauses_gaps_in_a_burst_have_its_rate():
    gaps = np.diff(bursty_arrivals(20_000, 2.57, 13.2, 0, 49)) / 1e9
    assert abs(np.median(gaps) / (math.log(2) / 49) - 1) < 0.05
    assert 0.005 < (gaps > 0.5).mean() < 0.02


def test_a_seed_gives_the_same_traffic_and_fewer_requests_are_its_start():
    for make in (lambda n, seed: poisson_arrivals(n, 2.0, seed), lambda n, seed: bursty_arrivals(n, 2.0, 4.0, seed, 30.0),
                 lambda n, seed: synthetic_trace("azure-code", n, seed).total_tokens):
        assert make(300, 5)[:100].tolist() == make(100, 5).tolist() != make(100, 6).tolist()
        assert make(0, 5).tolist() == [] and len(make(1, 5)) == 1
    assert poisson_arrivals(3, 2.0, 0).tolist() == [0, 81_681_557, 190_475_267]


def test_one_seed_for_lengths_and_arrivals_does_not_tie_them_together():
    trace = synthetic_trace("azure-conv", 20_000, 9)
    gaps = np.diff(trace.arrival_ns)
    for a, b in ((gaps, trace.prompt_tokens[1:]), (gaps, trace.output_tokens[:-1]), (trace.prompt_tokens, trace.output_tokens),
                 (np.diff(poisson_arrivals(5001, 1.0, 42)), mixed_lengths(5000, 42))):
        assert abs(pd.Series(a).corr(pd.Series(b), method="pearson")) < 0.03


@pytest.mark.parametrize("kind", PUBLISHED_TRAFFIC)
def test_synthetic_traffic_comes_near_to_what_is_published(kind):
    """20,000 requests: lengths within 5% or one token, the rate 3%, the variation of gaps 8%, the peak 10%."""
    fit = traffic_fit(kind, 20_000).set_index("statistic")
    assert list(fit.index) == list(PUBLISHED_TRAFFIC[kind])
    allowed = pd.Series({"rate": 3, "gap cv": 8, "peak": 10}).reindex(fit.index).fillna(5)
    near = (fit.difference.abs() <= allowed) | ((fit.synthetic - fit.published).abs() <= 1)
    assert near.all(), fit[~near]
    assert np.allclose(fit.synthetic, fit.published * (1 + fit.difference / 100))


@pytest.mark.parametrize("kind", PUBLISHED_TRAFFIC)
def test_the_bend_gives_the_published_mean(kind):
    """Over each whole curve, within 0.1%: the mean of v / (v + bend (1 - v)) is 1 / (1 - bend) + bend ln(bend) / (1 - bend)^2."""
    known = PUBLISHED_TRAFFIC[kind]
    prompt = [(0, 1), (0.5, known["prompt p50"]), (0.9, known["prompt p90"]), (0.99, known["prompt p99"]), (1, known["prompt max"])]
    output = [(0, 1), (0.5, known["output p50"]), (0.99, known["output p99"]), (1, 2 * known["output p99"])]
    for curve, bend, mean in ((prompt, FITTED[kind][0], known["prompt mean"]), (output, FITTED[kind][1], known["output mean"])):
        rise = 1 / (1 - bend) + bend * math.log(bend) / (1 - bend) ** 2
        parts = [(b - a) * (lo + (hi - lo) * rise) for (a, lo), (b, hi) in zip(curve, curve[1:])]
        assert abs(sum(parts) / mean - 1) < 1e-3


@pytest.mark.parametrize("call, error, message", [
    (lambda: poisson_arrivals(5, 0, 1), ValueError, "rate = 0 is from 1e-09"),
    (lambda: poisson_arrivals(5, float("nan"), 1), ValueError, "rate = nan"),
    (lambda: bursty_arrivals(5, 1, 0, 1), ValueError, "cv = 0 from 0.01 to 100"),
    (lambda: bursty_arrivals(5, 1, 1, 1, 50), ValueError, "for pauses, cv = 1 is above 1"),
    (lambda: bursty_arrivals(5, 9, 2, 1, 9), ValueError, "burst_rate = 9 above rate = 9"),
    (lambda: bursty_arrivals(5, 9, 2, 1, float("inf")), ValueError, "burst_rate = inf"),
    (lambda: poisson_arrivals(10**5, 1e-9, 1), ValueError, "100,000 requests, 1e-09 a second: more nanoseconds"),
    (lambda: poisson_arrivals(-5, 1, 1), ValueError, "num_requests = -5"),
    (lambda: poisson_arrivals(5, 1, -1), ValueError, "seed = -1"),
    (lambda: poisson_arrivals(5.5, 1, 1), TypeError, "num_requests = 5.5, a whole number"),
    (lambda: synthetic_trace("azure", 5, 1), ValueError, "kind = 'azure', there are azure-conv, azure-code, mooncake-conv"),
    (lambda: trace_statistics(Trace("one", [0], [1], [1])), ValueError, "one: two requests at different times"),
    (lambda: trace_statistics(Trace("at once", [0, 0], [1, 1], [1, 1])), ValueError, "at once: two requests at different times"),
])
def test_what_cannot_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.fixture(params=FILES, scope="module")
def real(request):
    """(kind, Trace) of a public trace file."""
    folder = os.environ.get("PAGEFAULT_TRACES")
    if not folder:
        pytest.skip("needs the public trace files, in a folder that PAGEFAULT_TRACES names")
    return request.param, load_trace(Path(folder) / FILES[request.param])


def shown(value, published):
    """value with as many decimals as the published figure has."""
    return round(value, len(str(published).partition(".")[2]))


def test_a_real_trace_has_the_published_statistics(real):
    kind, trace = real
    found = trace_statistics(trace)
    for name, published in PUBLISHED_TRAFFIC[kind].items():
        assert shown(found[name], published) == published, name
    assert len(trace.arrival_ns) == {"azure-conv": 19_366, "azure-code": 8819, "mooncake-conv": 12_031}[kind]
    assert -0.115 < np.corrcoef(trace.prompt_tokens, trace.output_tokens)[0, 1] < 0.075


# Of the requests' final lengths: the reserved maximum, requests over it, percent used of it and of pages of 16, times saved,
# percent used of pages of 64 and 256, tokens of internal fragmentation a sequence in pages of 16.
MEMORY = {
    "azure-conv": (8192, 1, 16.7, 99.5, 5.97, 97.8, 92.0, 7.47),
    "azure-code": (8192, 0, 25.3, 99.6, 3.93, 98.5, 93.9, 7.64),
    "mooncake-conv": (126527, 0, 9.8, 99.9, 10.22, 99.7, 99.0, 7.46),
}


def test_a_real_trace_fills_memory_as_measured(real):
    kind, trace = real
    most, over, naive_percent, percent, saving, percent_64, percent_256, waste = MEMORY[kind]
    assert (trace.total_tokens > most).sum() == over
    lengths = np.minimum(trace.total_tokens, most)
    naive, paged = contiguous_memory(lengths, most), paged_memory(lengths, 16)
    assert round(100 * naive.utilization, 1) == naive_percent and round(naive.reserved / paged.reserved, 2) == saving
    used = [round(100 * paged_memory(lengths, size).utilization, 1) for size in (16, 64, 256)]
    assert used == [percent, percent_64, percent_256] and round(paged.wasted / len(lengths), 2) == waste


def test_the_prefixes_of_the_mooncake_trace_are_shared_as_measured(real):
    kind, trace = real
    if kind != "mooncake-conv":
        assert trace.hash_ids is None
        return
    assert all(len(ids) == -(-tokens // 512) for ids, tokens in zip(trace.hash_ids, trace.prompt_tokens.tolist()))
    seen, hits = set(), 0
    for ids, tokens in zip(trace.hash_ids, trace.prompt_tokens.tolist()):
        known = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
        hits += min(tokens, 512 * known)
        seen.update(ids)
    assert round(100 * hits / trace.prompt_tokens.sum()) == 37
    assert round(sum(map(len, trace.hash_ids)) / len(seen), 2) == 1.58
