import matplotlib
import numpy as np
import pytest

import pagefault as pf
from pagefault.benchmark import recorded
from pagefault.plots import measured
from pagefault.plots import naive_cache as plots

matplotlib.use("Agg")
LENGTHS = {seed: pf.mixed_lengths(32, seed) for seed in (42, 7)}
FIGURES = {  # what a figure prints, for those who can't see it
    "triangles": (lambda: plots.triangles(10), "Without a cache 55 pairs of K and V are computed for 10 tokens, with one"),
    "parking lot": (lambda: plots.parking_lot(LENGTHS, 2048), "seed 42: 20,500 of 65,536 slots hold a token, 31.3%\nseed 7"),
    "mixes": (lambda: plots.utilization_by_mix({"a": [1, 3], "b": [4, 4]}, 4), "In use: a 50.0%, b 100.0%."),
    "hierarchy": (lambda: plots.thread_hierarchy(3, 64, 1, 1), "3 thread blocks x 64 threads = 192 threads, in 6 warps of 32."),
    "tree": (lambda: plots.reduction_tree([1, 2, 3, 4]), "1 + 2 + 3 + 4 = 10, in 2 rounds with a barrier before each."),
    "sectors": (plots.sectors, "one thread a row: 32 sectors, 1,024 bytes moved for 128 asked for\nlanes along a row: 4 sectors"),
    "latency": (lambda: measured.latency_by_context(recorded()), "times as long as reading its bytes once"),
    "latency, live": (lambda: measured.latency_by_context(recorded(), [dict(tokens=64, num_seqs=1, median_us=9)]), "microseconds"),
    "roofline": (lambda: measured.roofline(recorded(), {"W2": "name"}), "name: 4 FLOP a byte"),
    "growth": (lambda: plots.cache_growth({"m": pf.MODELS["llama-3-70b"]}, 1000), "At 1,000 tokens: m 0.33 GB."),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_it_shows(name, capsys):
    draw, sentence = FIGURES[name]
    draw()
    assert sentence in capsys.readouterr().out
    matplotlib.pyplot.close("all")


def test_a_prediction_stands_beside_the_result(capsys):
    pf.compare(None, 327_680, "bytes")
    pf.compare(163_840, 327_680, "bytes")
    pf.compare("no idea", np.float64(31.28), "percent")
    assert capsys.readouterr().out.splitlines() == [
        "You: no prediction. Counted: 327,680 bytes.",
        "You: 163,840 bytes. Counted: 327,680 bytes. Yours is 0.50 times that.",
        "You: no prediction. Counted: 31.3 percent.",
    ]


def test_every_public_name_is_there_and_documented():
    for name in pf.__all__:
        value = getattr(pf, name)
        assert not callable(value) or value.__doc__, name
