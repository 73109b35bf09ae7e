import matplotlib
import numpy as np
import pandas as pd
import pytest

import pagefault as pf
from pagefault.benchmark import recorded
from pagefault.chunks import chunk_list
from pagefault.experiments import recorded_sweep
from pagefault.plots import block_allocator as blocks
from pagefault.plots import concurrent_serving as serving
from pagefault.plots import measured, paged_attention
from pagefault.plots import naive_cache as plots
from pagefault.timeline import timeline

matplotlib.use("Agg")
LENGTHS = {seed: pf.mixed_lengths(32, seed) for seed in (42, 7)}


def table(pool, n):
    t = pf.BlockTable(pool)
    t.append(n)
    return t


def pool_map():
    blocks.pool_map({"later": blocks.owners({0: range(2), 2: [3, 4], 3: [2, 5, 7]}, 12)}, columns=4)


def copy_on_write():
    pool = pf.BlockPool(4, 4)
    a = table(pool, 6)
    b = a.fork()
    steps = {"forked": blocks.snapshot({"a": a, "b": b}, pool)}
    a.append()
    blocks.copy_on_write(steps | {"written": blocks.snapshot({"a": a, "b": b}, pool)})


def prefix_tree():
    cache = pf.PrefixCache(pf.BlockPool(8, 2))
    tables = [table(cache.pool, 4) for _ in "ab"]
    for t, tokens in zip(tables, ([0, 1, 2, 3], [0, 1, 3, 2])):
        cache.insert(t, tokens)
    tables[1].free()
    blocks.prefix_tree(cache, "abcd", in_use=tables[0].blocks)


def timelines(draw):
    requests = [pf.Request(4, 8), pf.Request(4, 8)]
    draw({"own": timeline(requests, 4, 4, victim=pf.requester, patience=1, like_threads=True),
          "endless": timeline(requests, 4, 4, victim=pf.requester, patience=None, like_threads=True)})


def watermarks():
    by_jobs = pd.DataFrame({(jobs, name): [0.8, 2.0] for jobs in (512, 2048, 20_000) for name in ("mean", "min", "max")}, [0, 0.1])
    serving.watermarks({0: (0.5, 0.6), 0.1: (2, 2)}, {0: [0.7, 1.1], 0.1: [2, 2.1]}, by_jobs)


RULES = pd.MultiIndex.from_tuples([("requester", 32, "restart"), ("requester", 0, "restart"), ("newest", 0, "keep")])
CAUSES = pd.DataFrame({"mean": [0.5, np.nan, 2.5], "min": [0.4, np.nan, 2.4], "max": [0.6, np.nan, 2.6]}, RULES)
ENGINE = pd.DataFrame({"preemptions": [100, 10], "tokens_per_second": [1000, 1050]}, [0, 0.05])
LOADS = pd.DataFrame([[t, r, 300, 100 * r, 40 * r] for t in ("azure-conv", "answers") for r in (1, 12)],
                     columns=["traffic", "rate", "ttft_p50_ms", "ttft_p99_ms", "tokens_per_second"])
CHUNKS = pd.DataFrame({"longest_step_ms": [20.0, 900.0], "ttft_p50_ms": [400.0, 200.0], "ttft_p99_ms": [1e3, 2e3]}, [257, 200_000])
SHARES = pd.DataFrame([[0.5, 0.2, 0.2, 0.1], [0.9, np.nan, np.nan, np.nan]], ["max", "paged"], list(blocks.KINDS))
SHARING = pd.DataFrame([["beams", "A", 2, 0.3, 0.31, "fitted"], ["beams", "B", 4, 0.5, 0.4, "predicted"]],
                       columns=["method", "data", "n", "paper", "ours", "how"])
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
    "pool map": (pool_map, "later: 5 of 12 blocks are free, at most 4 of them side by side; request 3 in 3 pieces and"),
    "page walk": (lambda: blocks.page_walk([3, 0], 4, 5, 6), "page 0 lies in block 3, page 1 lies in block 0."),
    "staircase": (lambda: blocks.staircase(20, 8), "A new block at lengths 1, 9, 17; at most 7 slots are empty."),
    "block sizes": (lambda: blocks.block_sizes(pf.block_sweep([1, 16, 17, 100], 128), {1: 0, 16: 7.5}, 4), "at 16: 10.50."),
    "reservation": (lambda: blocks.reservation_schemes(SHARES, SHARES), "max: holds a token 50.0%, reserved, used later 20.0%"),
    "saving": (lambda: blocks.saving_by_maximum({"a": {8: 2.0, 16: 4.0}}, {"a": {8: 0.25, 16: 0}}),
               "a: 2.0 times at 8, 4.0 times at 16 slots."),
    "copy on write": (copy_on_write, "block 1 has count 2 and 2 tokens.\nwritten: block 0 has count 2 and 4 tokens"),
    "prefix tree": (prefix_tree, "3 cached blocks: 2 in use, 1 on standby."),
    "pool over time": (lambda: blocks.pool_over_time([(1, 0, 9), (4, 2, 30)], 8, 8), "At the end 50% of the pool is in use"),
    "sharing": (lambda: blocks.sharing(SHARING), "Of 2 values one is fitted; 0 of the others come within 4 points"),
    "chunks": (lambda: paged_attention.chunks([300, 5], {"whole": chunk_list(np.array([300, 5]), 512)[0]}),
               "whole: 2 thread blocks, the longest takes 300 tokens."),
    "ladder": (lambda: paged_attention.ladder(recorded(), {"W4": "long", "W2": "many"}), "long: online softmax 1.5%, split-KV 8"),
    "walk and cost": (lambda: paged_attention.walk_and_cost(recorded(), [7, 2, 19], "W2", "name"), "; split-KV, shuffled: "),
    "by hand": (lambda: timelines(serving.by_hand), "own: 16 steps, 2 thrown out, 4 tokens done again."),
    "timelines": (lambda: timelines(serving.timelines), "own: 16 steps; of the seats' time 50% new tokens"),
    "cliff": (lambda: serving.cliff(recorded_sweep("cliff"), {42: 8650}), "0.2 times at 96. Newest gives way: 2.5 at"),
    "watermarks": (watermarks, "512 jobs: without a reserve 0.80 to 0.80, best at 10% (2.00).\n2,048 jobs"),
    "causes": (lambda: serving.causes(CAUSES, CAUSES),
               "own victim, waits, starts over: 0.50 (0.50)\nown victim, starts over: never ends"),
    "a real engine": (lambda: serving.reserve_of_an_engine(ENGINE, ENGINE), "gains 5.0% in the engine and 5.0% in the simulation"),
    "swap": (lambda: serving.recompute_or_swap({"m": (0.1, 1e9, 2e10)}), "m: equal at 10.0 GB/s, and its bus does 20"),
    "arrivals": (lambda: serving.arrivals([0, 1, 2], [0, 0.5, 2], 3), "At random the gaps are 0.50 to 1.50 seconds"),
    "load": (lambda: serving.load(LOADS, {"all": LOADS.rate > 0}), "all: p99 below a second up to 1 chats a second;"),
    "token budget": (lambda: serving.chunks(CHUNKS), "no limit: the longest wait between two tokens 900 ms"),
    "swap by page size": (lambda: serving.swap_by_page_size(pd.DataFrame({"a": [9.0, 8.0]}, [8, 16])),
                          "a: 9 tokens a second at 8, 8 at 16"),
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
