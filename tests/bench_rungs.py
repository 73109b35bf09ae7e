"""Each rung of the ladder over a pool, beside the same over a contiguous cache.  python tests/bench_rungs.py [works]

On a GPU: times, checked before and after, of CUDA graphs that take turns; and the share of the time in which a kernel that
merely reads as many bytes is done. Without one: what the rungs ask of memory on the 32 requests of notebook 1.
"""

import argparse
import statistics
from functools import partial

import numpy as np
from cases import contiguous_case, pool_of

from pagefault import ContiguousCache, RequestTooLarge, gpu_available
from pagefault import benchmark as b
from pagefault.attention import naive_launch, online_softmax_launch, split_kv_launch

RUNGS = {"naive": naive_launch, "online_softmax": online_softmax_launch, "split_kv": split_kv_launch}
WORKS = {w.name: w for w in b.works() if w.name[0] == "W"} | {"W4": b.Work("W4", (131072,), 32, 8, 128, "float16")}


def inputs(work, seed, **pool):
    """q, the contiguous k and v, and k, v, block_tables of a pool, on the GPU."""
    import cupy

    q, k, v = b.inputs(work, seed)
    cache = ContiguousCache(len(work.seq_lens), 1, work.num_kv_heads, work.head_dim, work.dtype, cupy)
    cache.k, cache.v, cache.seq_lens = k, v, np.array(work.seq_lens, np.int32)
    return q, k, v, pool_of(cache, seed=seed, **pool)


def measure(work, seed, repeats, **pool):
    import cupy

    data = [inputs(work, seed + i, **pool) for i in range(min(64, max(1, -(-b.COLD_BYTES // work.bytes))))]
    buffers = [cupy.random.default_rng(seed).standard_normal(work.bytes // 4, dtype=np.float32) for _ in data]
    ceiling = statistics.median(b.read_ceiling(buffers, repeats))
    del buffers
    print(f"{work.name}: {sum(work.seq_lens):,} tokens, {work.bytes:,} bytes, read in {1e6 * ceiling:.2f} us "
          f"({work.bytes / ceiling / 1e9:,.0f} GB/s)", flush=True)
    for name, rung in RUNGS.items():
        try:
            paged = [rung(q, *pages, work.seq_lens, tables) for q, _, _, (*pages, tables) in data]
            twins = [rung(q, k, v, work.seq_lens) for q, k, v, _ in data]
        except RequestTooLarge as e:
            print(f"  {name:15} {e}")
            continue
        errors = [b.check(work, launches[0], *data[0][:3]) for launches in (paged, twins)]
        same = cupy.array_equal(paged[0].out, twins[0].out)
        times = b.take_turns((paged, twins), repeats)
        errors += [b.check(work, launches[-1], *data[-1][:3]) for launches in (paged, twins)]
        medians = [statistics.median(t) for t in times]
        texts = [f"{what} {1e6 * m:10.2f} us [{1e6 * t[0]:.2f} to {1e6 * t[-1]:.2f}], {ceiling / m:6.1%} of reading"
                 for what, m, t in zip(("paged", "contiguous"), medians, times)]
        print(f"  {name:15} {texts[0]}; {texts[1]}; paged / contiguous {medians[0] / medians[1]:.3f}; "
              f"error {max(errors):.1e}, {'equal' if same else 'unequal'} bytes", flush=True)


def counts(block_size):
    work = WORKS["W1"]
    q, cache = contiguous_case(work.seq_lens, 1, 1, 64, "float32")
    k, v, tables = pool_of(cache, block_size)
    print("rung, cache: global load requests, sectors, sectors a request; shared wavefronts (load, store), conflicts")
    for name, rung in RUNGS.items():
        for layout, launch in (("contiguous", partial(rung, q, cache.k, cache.v, cache.seq_lens)),
                               ("paged", partial(rung, q, k, v, cache.seq_lens, tables))):
            t = launch().profile().total
            load, shared = t.loc["global load"], t[t.index.str.startswith("shared")]
            print(f"{name}, {layout}: {load.requests:,.0f}, {load.sectors:,.0f}, {load.sectors_per_request:.2f}; "
                  f"{' + '.join(f'{n:,}' for n in shared.wavefronts)}, {shared.conflicts.sum():,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", default=list(WORKS), help="of " + ", ".join(WORKS))
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--ordered", action="store_true", help="blocks lie one behind the other, not shuffled")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    if not gpu_available():
        return counts(args.block_size)
    print(b.machine())
    for work in args.works:
        measure(WORKS[work], args.seed, args.repeats, block_size=args.block_size, shuffled=not args.ordered)


if __name__ == "__main__":
    main()
