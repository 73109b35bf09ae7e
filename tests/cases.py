"""Inputs that several tests share."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pagefault import ContiguousCache, relative_error
from pagefault.build import library_for
from pagefault.cpu import SANITIZED
from pagefault.reference import on_host

LENGTHS = [1, 15, 16, 17, 1000, 2048]
BOUND = {"float32": 2e-6, "float16": 3e-4}  # of ||out - reference|| / ||reference||


def contiguous_case(lengths, num_heads, num_kv_heads, head_dim, dtype, xp=np, seed=0, max_seq_len=None):
    """q, and a ContiguousCache with random K and V; all slots that hold no token are NaN."""
    random = np.random.default_rng([seed, num_heads, head_dim])
    cache = ContiguousCache(len(lengths), max_seq_len or max(lengths) + 3, num_kv_heads, head_dim, dtype, xp)
    for seq, n in enumerate(lengths):
        cache.append(seq, *random.standard_normal((2, n, num_kv_heads, head_dim), np.float32).astype(dtype))
    q = random.standard_normal((len(lengths), num_heads, head_dim), np.float32).astype(dtype)
    return xp.asarray(q), cache


def pool_of(cache, block_size, shuffled=True, unused=(np.nan, np.nan), seed=0):
    """A ContiguousCache's tokens in a pool: k, v, block_tables, of the cache's xp.

    Slots that hold no token have the values `unused` in K and V; so has the block that stands behind the last one of every
    second sequence in the tables. Blocks lie in a random order, or one behind the other.
    """
    blocks = -(-cache.seq_lens // block_size)
    ids = np.arange(blocks.sum() + 2)
    ids = (np.random.default_rng(seed).permutation(ids) if shuffled else ids).astype(np.int32)
    tables = np.full((len(blocks), blocks.max(initial=0) + 2), -1, np.int32)
    k, v = (cache.xp.full((len(ids), block_size, *cache.k.shape[2:]), value, cache.k.dtype) for value in unused)
    for seq, count in enumerate(blocks):
        tables[seq, :count], tables[seq, count], ids = ids[:count], (-1 if seq % 2 else ids[-1]), ids[count:]
        tokens = np.arange(cache.seq_lens[seq])
        slots = cache.xp.asarray(tables[seq, tokens // block_size]), cache.xp.asarray(tokens % block_size)
        k[slots], v[slots] = cache.read(seq)
    return k, v, cache.xp.asarray(tables)


def worst_error(out, exact):
    """The largest relative error of a sequence, NaN if there is one; those whose exact result is 0 are left out."""
    return np.max([relative_error(one, right) for one, right in zip(on_host(out), exact) if right.any()])


def compile_side_by_side(kernels):
    """Compile kernels for the CPU, as many at once as there are processors; under the sanitizers each when it is needed."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda k: library_for(k.source, k.name, k.file, "plain"), [] if SANITIZED else kernels))
