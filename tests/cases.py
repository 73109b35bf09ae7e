"""Inputs that several tests share."""

import numpy as np

from pagefault import ContiguousCache

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
