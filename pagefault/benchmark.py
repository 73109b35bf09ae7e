"""Kernels timed on a GPU, each checked before it is timed; and the recorded results of one GPU."""

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from .attention import naive_launch, online_softmax_launch, split_kv_launch
from .errors import RequestTooLarge
from .kernel import ladder_kernel
from .reference import dequantized, on_host, reference_attention, relative_error
from .tensor_core import int8_launch, tensor_core_launch
from .works import inputs, pool_of

RECORDED = Path(__file__).parent / "recorded.csv"
COUNTERS = Path(__file__).parent / "recorded_counters.csv"  # what the GPU's own counters say: tests/record_counters.py
RUNG_COUNTERS = Path(__file__).parent / "recorded_rungs.csv"  # and what they say of every rung
BOUND = {"float32": 2e-6, "float16": 3e-4}  # of the error, for contexts to 2,048 tokens
TENSOR_BOUND = 4e-4  # of kernels that round weights to float16 too
LONG_BOUND = 1e-5  # float32 beyond: a mean of random values shrinks with the context, the rounding of its sum doesn't
BURST_MS, PAUSE_MS = 5.0, 25.0  # a kernel's turn, and the rest before it
RUNGS = {"naive_attention": naive_launch, "online_softmax": online_softmax_launch, "split_kv": split_kv_launch,
         "tensor_core": tensor_core_launch, "int8_pages": int8_launch}
READERS = ((2, 256, 2), (8, 128, 16), (8, 512, 32), (8, 512, 128))  # loads in flight, threads, thread blocks a processor
COLD_BYTES = 4 * 60 * 2**20  # rotate over inputs of at least so many bytes: several times a large GPU's L2 cache


def take_turns(sets_of_calls, repeats=9, target_ms=25.0, pause_ms=0.0):
    """Seconds a call of each set of calls, [repeats], sorted: of a CUDA graph of them all, replayed for about target_ms.

    The graphs take turns, so that a clock that changes hits all alike. pause_ms: the GPU rests for so long before each;
    without, a power limit lowers its clock after some seconds.
    """
    import cupy

    stream, (start, end) = cupy.cuda.Stream(non_blocking=True), (cupy.cuda.Event() for _ in "se")
    with stream:
        graphs = []
        for calls in sets_of_calls:
            for call in calls:
                call()
            stream.synchronize()
            stream.begin_capture()
            for call in calls:
                call()
            graphs.append(stream.end_capture())

        def seconds(graph, replays):
            time.sleep(pause_ms / 1e3)
            start.record(stream)
            for _ in range(replays):
                graph.launch(stream)
            end.record(stream)
            end.synchronize()
            return cupy.cuda.get_elapsed_time(start, end) / 1e3 / replays

        replays = [max(2, int(target_ms / 1e3 / max(seconds(graph, 1), 1e-6))) for graph in graphs]
        rounds = [[seconds(graph, n) for graph, n in zip(graphs, replays)] for _ in range(1 + repeats)]
    return [sorted(t / len(calls) for t in times) for calls, times in zip(sets_of_calls, zip(*rounds[1:]))]


def prepare(work, seed=0):
    """Inputs of a work, as many as it takes to rotate over more than the L2 cache, and the first and last one's `expected`."""
    data = [inputs(work, seed + i) for i in range(min(64, max(1, -(-COLD_BYTES // work.bytes))))]
    first, last = expected(work, *data[0]), expected(work, *data[-1]) if len(data) > 1 else None
    return data, (first, first if last is None else last)


def expected(work, q, *cache):
    """What float64 gives for a few sequences of a work; of int8, for what its bytes stand for."""
    pick = _picked(work)
    k, v, *scales = (x[pick] for x in cache)
    if scales:
        k, v = dequantized(k, scales[0]), dequantized(v, scales[1])
    return reference_attention(q[pick], k, v, [work.seq_lens[i] for i in pick])


def _picked(work):
    return sorted({0, len(work.seq_lens) - 1, int(np.argmax(work.seq_lens))})


def check(work, launch, exact, tolerance=None):
    """Run a launch; its relative error, as check_out has it."""
    launch.out[:] = np.nan
    launch()
    return check_out(work, launch, exact, tolerance)


def check_out(work, launch, exact, tolerance=None):
    """The relative error of what a launch's out holds; exact: `expected` of its inputs.

    Raises ArithmeticError beyond the bound, or tolerance, or if a value is missing.
    """
    out = on_host(launch.out)
    if not np.isfinite(out).all():
        raise ArithmeticError(f"{work.name}: {np.count_nonzero(~np.isfinite(out))} results are not finite")
    error = relative_error(out[_picked(work)], exact)
    if "tensor_core" in launch.kernel.name:
        bound = TENSOR_BOUND
    else:
        bound = LONG_BOUND if max(work.seq_lens) > 2048 and work.dtype == "float32" else BOUND[work.dtype]
    bound = bound if tolerance is None else tolerance
    if not error <= bound:
        raise ArithmeticError(f"{work.name}: {launch.kernel.name}: relative error {error:.1e}, and {bound:g} is allowed")
    return error


def read_ceiling(buffers, repeats):
    """Seconds, sorted, to read one of some equal arrays, in the fastest of several launches: what no kernel can beat."""
    import cupy

    sink, processors = cupy.zeros(1, np.uint32), cupy.cuda.Device().attributes["MultiProcessorCount"]
    readers = []
    for in_flight, threads, blocks in READERS:
        reader = ladder_kernel("read_ceiling.cu", f"read_ceiling<{in_flight}>")
        readers.append([partial(reader, (blocks * processors,), (threads,), (b, b.nbytes // 16, sink)) for b in buffers])
    times = [statistics.median(t) for t in take_turns(readers, 3, BURST_MS, PAUSE_MS)]
    return take_turns([readers[times.index(min(times))]], repeats, BURST_MS, PAUSE_MS)[0]


def measure(work, seed=0, repeats=9, kernels=("naive_attention",), pages=(), tolerance=None, shuffle_seed=1, prepared=None):
    """Rows of the recorded table for one work: reading as many bytes, and each kernel over a contiguous cache and over pools.

    pages: (block_size, order) of each pool; shuffle_seed: of the order "shuffled"; prepared: of `prepare`, if it was called
    before. What one kernel does over all of them is timed in turns, in bursts of a few milliseconds. to_contiguous is a row's
    median over the contiguous one's. A kernel that can't take the work is left out, and why is printed to stderr. Raises
    ArithmeticError if a result is wrong, or not the same bytes over a pool.
    """
    import cupy

    data, exact = prepared or prepare(work, seed)
    random = cupy.random.default_rng(seed)
    ceiling = read_ceiling([random.standard_normal(work.bytes // 4, dtype=np.float32) for _ in data], repeats)
    rows = [row(work, "read_ceiling", ceiling)]
    pools = {page: [pool_of(cache, work.seq_lens, *page, shuffle_seed) for _, *cache in data] for page in pages}
    for kernel in kernels:
        launch = RUNGS[kernel]
        try:
            launches = {None: [launch(*d, work.seq_lens) for d in data]}
        except RequestTooLarge as e:
            print(f"{work.name}: {kernel} is left out: {e}", file=sys.stderr)
            continue
        for page, pool in pools.items():
            launches[page] = [launch(q, *cache, work.seq_lens, t) for (q, *_), (*cache, t) in zip(data, pool)]
        compile_side_by_side(some[0].kernel for some in launches.values())
        errors = [check(work, some[0], exact[0], tolerance) for some in launches.values()]
        times = take_turns(list(launches.values()), repeats, BURST_MS, PAUSE_MS)
        for i in (0, -1):  # what was timed, as it stands after the last replay
            errors = [max(e, check_out(work, some[i], exact[i], tolerance)) for e, some in zip(errors, launches.values())]
            if not all((some[i].out == launches[None][i].out).all() for some in launches.values()):
                raise ArithmeticError(f"{work.name}: {kernel} gives other bytes over a pool than over a contiguous cache")
        first = statistics.median(times[0])
        for page, t, error in zip(launches, times, errors):
            layout = ("contiguous", 0, "") if page is None else ("paged", *page)
            rows.append(row(work, kernel, t, error, layout, statistics.median(t) / first))
    return rows


def compile_side_by_side(kernels):
    """Compile kernels for the GPU, as many at once as there are processors."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda kernel: kernel._gpu, dict.fromkeys(kernels)))


def row(work, kernel, times, error=0.0, layout=("contiguous", 0, ""), to_contiguous=1.0):
    """A row of the recorded table, of sorted seconds a call."""
    us = {name: round(1e6 * of(times), 3) for name, of in (("mean_us", statistics.mean), ("median_us", statistics.median),
                                                        ("sd_us", statistics.stdev), ("low_us", min), ("high_us", max))}
    return dict(kernel=kernel, work=work.name, layout=layout[0], block_size=layout[1], order=layout[2],
                num_seqs=len(work.seq_lens), tokens=sum(work.seq_lens), bytes=work.bytes, flop=work.flop, **us,
                to_contiguous=round(to_contiguous, 4), repeats=len(times), error=f"{error:.1e}")


def machine():
    """The columns that say where and when a row was measured."""
    import cupy

    def version(n):
        return f"{n // 1000}.{n % 1000 // 10}"

    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    return dict(device=name, driver=_driver(), cuda=version(runtime.runtimeGetVersion()), cupy=cupy.__version__,
                numpy=np.__version__, date=date.today().isoformat())


def _driver():
    done = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.split("\n")[0].strip()


def recorded(path=RECORDED):
    """The recorded results as a pandas frame, a row a kernel and work; or, from COUNTERS, a row a counter."""
    return pd.read_csv(path, encoding="utf-8")


def record(rows, command, path=RECORDED):
    """Write rows, measured just now on this machine, as the recorded results."""
    pd.DataFrame(rows).assign(**machine(), command=command).to_csv(path, index=False, encoding="utf-8", lineterminator="\n")
