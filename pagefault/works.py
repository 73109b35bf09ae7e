"""What the kernels are timed on: works, their inputs, and these in pages."""

from dataclasses import dataclass

import numpy as np

from .gpu import import_cupy
from .int8_cache import SCALED, Int8Cache
from .workload import mixed_lengths


@dataclass(frozen=True)
class Work:
    """What a kernel is timed on: random K and V of these sequences."""

    name: str
    seq_lens: tuple
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str  # of K and V; where it is int8, q and out are float16

    @property
    def rungs(self):
        """The kernels that take it, by their names in benchmark.RUNGS."""
        plain = "naive_attention", "online_softmax", "split_kv"
        return {"float32": plain, "float16": (*plain, "tensor_core"), "int8": ("int8_pages",)}[self.dtype]

    @property
    def bytes(self):
        """Bytes of K and V, each read once; without the scales of int8."""
        return sum(self.seq_lens) * 2 * self.num_kv_heads * self.head_dim * np.dtype(self.dtype).itemsize

    @property
    def flop(self):
        """Multiplications and additions of q . k and of the weighted sum: 4 x head_dim a token and query head."""
        return sum(self.seq_lens) * 4 * self.num_heads * self.head_dim


def works():
    """The works of the recorded table; W1 to W4 are the names in its rows."""
    mixed = {n: tuple(mixed_lengths(n, 42).tolist()) for n in (32, 64)}
    sweep = [Work(f"32 x {n}", (n,) * 32, 1, 1, 64, "float32") for n in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)]
    large = {"W2": (2048,) * 64, "W2m": mixed[64], "W3": (8192,) * 256, "W4": (131_072,)}
    return [Work("W1", mixed[32], 1, 1, 64, "float32"), *(Work(name, lens, 32, 8, 128, "float16") for name, lens in large.items()),
            *(Work(f"{name} int8", lens, 32, 8, 128, "int8") for name, lens in large.items()), *sweep]


def inputs(work, seed, xp=None):
    """q, and a contiguous cache of a work: k and v, whose slots without a token are NaN; or int8's four arrays.

    Arrays are random, and those of xp, which is CuPy unless given.
    """
    xp = xp or import_cupy()
    random, dtype = xp.random.default_rng(seed), "float16" if work.dtype == "int8" else work.dtype
    shape = (len(work.seq_lens), max(work.seq_lens), work.num_kv_heads, work.head_dim)
    k, v = (xp.full(shape, np.nan, dtype) for _ in "kv")
    for x in (k, v):
        for seq, n in enumerate(work.seq_lens):
            x[seq, :n] = random.standard_normal((n, *shape[2:]), dtype=np.float32)
    q = random.standard_normal((len(work.seq_lens), work.num_heads, work.head_dim), dtype=np.float32).astype(dtype)
    return q, *(in_int8(k, v, work.seq_lens) if work.dtype == "int8" else (k, v))


def in_int8(k, v, seq_lens):
    """k and v of a contiguous cache as int8, longer by up to 15 slots, and their scales: what int8_launch takes."""
    xp = np if isinstance(k, np.ndarray) else import_cupy()
    runs = -(-k.shape[1] // SCALED)
    cache = Int8Cache(len(k) * runs, SCALED, *k.shape[2:], xp=xp)
    for seq, n in enumerate(seq_lens):
        cache.append(seq * runs * SCALED + np.arange(n), k[seq, :n], v[seq, :n])
    heads = k.shape[2:]
    values = (x.reshape(len(k), -1, *heads) for x in (cache.k, cache.v))
    return *values, *(x.reshape(len(k), runs, heads[0]) for x in (cache.k_scales, cache.v_scales))


def in_pages(k, v, seq_lens, block_size, order, seed):
    """k and v of a contiguous cache in a pool, and its block tables; frames "ordered" or "shuffled". Arrays of NumPy or CuPy."""
    xp = np if isinstance(k, np.ndarray) else import_cupy()
    num_seqs, longest, *heads = k.shape
    width, nobodys = -(-longest // block_size), np.nan if k.dtype.kind == "f" else 0
    used = np.arange(width) < -(-np.array(seq_lens)[:, None] // block_size)
    ids = np.arange(used.sum(), dtype=np.int32)
    tables = np.full(used.shape, -1, np.int32)
    tables[used] = np.random.default_rng(seed).permutation(ids) if order == "shuffled" else ids
    pool = [xp.full((max(1, len(ids)), block_size, *heads), nobodys, k.dtype) for _ in "kv"]
    for seq, row in enumerate(tables):
        for mine, to in zip((k, v), pool):
            pages = xp.full((int(used[seq].sum()) * block_size, *heads), nobodys, k.dtype)
            pages[: seq_lens[seq]] = mine[seq, : seq_lens[seq]]
            to[xp.asarray(row[used[seq]])] = pages.reshape(-1, block_size, *heads)
    return *pool, xp.asarray(tables)


def pool_of(cache, seq_lens, block_size, order, seed):
    """What in_pages gives of a contiguous cache, k and v, or of int8's four arrays, in pages of 16 whatever block_size says."""
    if len(cache) == 2:
        return in_pages(*cache, seq_lens, block_size, order, seed)
    k, v, tables = in_pages(*cache[:2], seq_lens, SCALED, order, seed)
    scales = in_pages(*cache[2:], -(-np.array(seq_lens) // SCALED), 1, order, seed)  # as many pages, in the same places
    return k, v, *(x[:, 0] for x in scales[:2]), tables
