"""Measured beside simulated: an engine under several policies, its steps, and its swaps."""

import statistics
import time
from pathlib import Path

import numpy as np

from .cache import PagedCache
from .engine import Engine
from .fitted import fit_cost
from .host_blocks import HostBlocks
from .policies import newest, requester, watermark
from .simulator import simulate

RECORDED = Path(__file__).parent / "recorded_engine"  # policies, steps, swaps, differences: `python -m pagefault engine`
FITTED = "in pages, 0% free"  # the policy whose steps the cost is fitted to
COUNTED = ["running", "waiting", "decoding", "stalled", "prefill_tokens", "admitted", "preempted", "finished", "swapped_blocks",
           "free_blocks"]  # columns of a Result's steps that have nothing to do with time


def policies(reserve, num_blocks):
    """Rules for a Scheduler by name: what reserves, the published rule at four reserves, and two that take from the newest."""
    published = dict(victim=requester, patience=32)
    return {"reserved": dict(reserve=reserve),
            **{f"in pages, {100 * share:g}% free": published | dict(admission=watermark(share)) for share in (0, 0.02, 0.1, 0.3)},
            "newest gives way": dict(victim=newest, preemption="keep"),
            "newest is swapped": dict(victim=newest, preemption="swap", swap_blocks=num_blocks // 2)}


def compare_policies(decoder, requests, workers, rules, say=print):
    """Serve requests under each of some rules, then simulate it with a cost fitted to the steps of FITTED alone.

    Returns rows, a policy each, and the FittedCost. Raises ArithmeticError if a step's batch isn't the simulated one's.
    """
    common = dict(workers=workers, token_budget=decoder.row_counts[-1])
    measured, logs = {}, {}
    for name, rule in rules.items():
        engine, start = Engine(decoder), time.perf_counter()
        measured[name] = engine.serve(requests, **common, **rule)
        wall, logs[name] = time.perf_counter() - start, engine.log
        found = measured[name].summary
        found["wall_seconds"] = wall
        say(f"{name:18} {found['steps']:6,} steps, {found['preemptions']:4,} preemptions, {found['seconds']:8.2f} s measured, "
            f"{found['tokens_per_second']:9,.1f} tokens/s")
    cost = fit_cost(logs[FITTED], swap_times(decoder))
    rows = []
    for name, rule in rules.items():
        simulated = simulate(requests, decoder.num_blocks, decoder.block_size, cost=cost, **common, **rule)
        if not simulated.steps[COUNTED].equals(measured[name].steps[COUNTED]):
            raise ArithmeticError(f"{name}: the engine and the simulator did different batches")
        found = measured[name].summary
        rows.append(dict(policy=name, jobs=len(requests), steps=found["steps"], preemptions=found["preemptions"],
                         swapped_blocks=found["swapped_blocks"], mean_decoding=found["mean_decoding"],
                         recompute_tax=found["recompute_tax"], measured_s=found["seconds"], wall_s=found["wall_seconds"],
                         swap_s=sum(row[5] for row in logs[name]) / 1e9, simulated_s=simulated.summary["seconds"],
                         measured_tokens_s=found["tokens_per_second"], simulated_tokens_s=simulated.summary["tokens_per_second"],
                         fitted=name == FITTED))
        say(f"{name:18} measured / simulated throughput {rows[-1]['measured_tokens_s'] / rows[-1]['simulated_tokens_s']:.3f}")
    return rows, cost


def swap_times(decoder, counts=(1, 4, 16, 48), repeats=5):
    """(blocks, nanoseconds), a row a move of so many blocks, in all layers, to host blocks in random order, or back."""
    layers, random, found = decoder.shape.num_layers, np.random.RandomState(0), []
    host = HostBlocks(decoder.cache, max(counts) * layers)
    for n in (n for n in counts if n <= decoder.num_blocks):
        blocks, there = decoder.in_all_layers(range(n)), np.add.outer(random.permutation(n) * layers, np.arange(layers)).ravel()
        host.swap_out(blocks, there)  # whatever is made at the first time
        for _ in range(repeats):
            found += [(n, _ns(decoder.xp, host.swap_out, blocks, there)), (n, _ns(decoder.xp, host.swap_in, there, blocks))]
    return found


def swaps_by_block_size(decoder, tokens=1024, sizes=(4, 8, 16, 32, 64, 128, 256), repeats=9):
    """Rows: how long the K and V of so many tokens take to the host's pinned memory and back, by block size.

    Block by block, layer by layer, K and V apart; or gathered into one piece first. And, without a size, how long it takes
    to pin so much memory, and to compute them once more. On a GPU.
    """
    shape, xp, rows = decoder.shape, decoder.xp, []
    for size in sizes:
        count = shape.num_layers * (tokens // size)
        cache = PagedCache(count, size, shape.num_kv_heads, shape.head_dim, decoder.dtype, xp)
        blocks = np.random.RandomState(size).permutation(count)
        host, there = HostBlocks(cache, count), np.arange(count)
        ways = {"a copy a block": ((_copy_each, cache, host, blocks, True), (_copy_each, cache, host, blocks, False)),
                "gathered first": ((host.swap_out, blocks, there), (host.swap_in, there, blocks))}
        for way, (out, back) in ways.items():
            times = [_ns(xp, *out) + _ns(xp, *back) for _ in range(repeats + 1)]  # the first makes what the others find
            rows.append(_row(way, size, tokens, cache.nbytes, times[1:]))
    del host
    times = []
    for _ in range(repeats):
        xp.get_default_pinned_memory_pool().free_all_blocks()
        times.append(_ns(xp, HostBlocks, cache, count))
    rows.append(_row("pinned", 0, tokens, cache.nbytes, times))
    table = np.arange(decoder.arrays["tables"].shape[1])[None] % decoder.num_blocks
    for n in (n for n in (256, 512, 1024) if n <= decoder.row_counts[-1]):
        feed = [[0] * n, range(n), np.repeat(table, n, axis=0), [n - 1]]
        times = [_ns(xp, decoder.step, *feed) for _ in range(repeats)]
        rows.append(_row("computed again", 0, n, 0, times))
    return rows


def _copy_each(cache, host, blocks, out):
    """Blocks one by one, K and V apart, to the host or from it."""
    copy, stream = cache.xp.cuda.runtime.memcpyAsync, cache.xp.cuda.get_current_stream().ptr
    size = cache.k[0].nbytes
    for pool, there in zip((cache.k, cache.v), (host.k, host.v)):
        start = there.ctypes.data
        for i, block in enumerate(blocks.tolist()):
            here = pool.data.ptr + block * size
            copy(start + i * size, here, size, 2, stream) if out else copy(here, start + i * size, size, 1, stream)


def steps_by_rows(decoders, counts=(1, 2, 4, 8, 16, 32, 64, 128), context=512, repeats=15):
    """Rows: how long a step of so many decoding sequences takes, each with a context of so many tokens.

    decoders: {name: Decoder}, of equal sizes: with and without checks at each launch, say.
    """
    rows = []
    for name, decoder in decoders.items():
        blocks = -(-context // decoder.block_size)
        for n in counts:
            table = np.full((n, decoder.arrays["tables"].shape[1]), 0)
            table[:, :blocks] = np.arange(n * blocks).reshape(n, blocks) % decoder.num_blocks
            step = [[0] * n, [context - 1] * n, table, np.arange(n)]
            decoder.step(*step)
            times = [_ns(decoder.xp, decoder.step, *step) for _ in range(repeats)]
            rows.append(_row(name, n, n * context, 0, times))
    return rows


def differences(decoder, requests, workers, rules):
    """Rows: under each of some rules, how many sequences got the tokens of the first rules' run; for each that didn't, where
    it first differs, and how far the two best logits were apart there. Rounding is all that can make such a difference."""
    rows, base = [], None
    for name, rule in rules.items():
        engine = Engine(decoder, margins=True)
        result = engine.serve(requests, workers=workers, **rule)
        base = base or engine
        usual = statistics.median(engine.margins.values())
        first = {key: next((i for i, (a, b) in enumerate(zip(ids, engine.tokens[key])) if a != b), None)
                 for key, ids in base.tokens.items()}
        rows.append(dict(policy=name, preemptions=result.summary["preemptions"], sequence=-1, position=-1, margin=usual,
                         same=sum(i is None for i in first.values()), of=len(first)))
        rows += [dict(policy=name, preemptions=-1, sequence=key[0], position=i, margin=base.margins[*key, i], same=0, of=0)
                 for key, i in first.items() if i is not None]
    return rows


def _row(way, size, tokens, nbytes, times):
    return dict(way=way, size=size, tokens=tokens, bytes=nbytes, median_us=round(statistics.median(times) / 1e3, 1),
                low_us=round(min(times) / 1e3, 1), high_us=round(max(times) / 1e3, 1), repeats=len(times))


def _ns(xp, call, *args):
    """Nanoseconds of a call, until the GPU has done all of it."""
    if xp is not np:
        xp.cuda.Device().synchronize()
    start = time.perf_counter_ns()
    call(*args)
    if xp is not np:
        xp.cuda.Device().synchronize()
    return time.perf_counter_ns() - start
