"""What a kernel's result is compared with: attention in float64, in NumPy, written to be read."""

import numpy as np


def on_host(array):
    """A CuPy array's copy in the CPU's memory; anything else as it is."""
    return array.get() if hasattr(array, "get") else array


def softmax(scores):
    """exp(scores) / sum, along the last axis, in float64; no score is too large, since the largest is taken off."""
    scores = np.asarray(scores, np.float64)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def reference_attention(q, k, v, seq_lens, scale=None):
    """One new token's attention for each sequence; float64 [num_seqs, num_heads, head_dim].

    q: [num_seqs, num_heads, head_dim]; k, v: [num_seqs, max_seq_len, num_kv_heads, head_dim], of NumPy or of CuPy;
    seq_lens: [num_seqs]; scale: of the scores, 1 / sqrt(head_dim) unless given. A sequence without tokens gives 0.
    """
    q, k, v, seq_lens = (on_host(x) for x in (q, k, v, seq_lens))
    num_heads, head_dim = q.shape[1:]
    if len(seq_lens) != len(q) or num_heads % k.shape[2] or max(seq_lens, default=0) > k.shape[1] or min(seq_lens, default=0) < 0:
        raise ValueError(f"q {list(q.shape)}, k {list(k.shape)} and {len(seq_lens)} lengths don't fit each other")
    scale = head_dim**-0.5 if scale is None else scale
    out = np.zeros(q.shape)
    for seq, seq_len in enumerate(seq_lens):
        if seq_len:
            keys, values = (x[seq, :seq_len].astype(np.float64) for x in (k, v))
            keys, values = (np.repeat(x, num_heads // k.shape[2], axis=1) for x in (keys, values))
            scores = np.einsum("hd,thd->ht", q[seq].astype(np.float64), keys) * scale
            out[seq] = np.einsum("ht,thd->hd", softmax(scores), values)
    return out


def gathered(pool, block_tables, seq_lens):
    """The tokens that a pool holds, in order: [num_seqs, longest, num_kv_heads, head_dim], NaN (int8: 0) where there is none.

    pool: [num_blocks, block_size, num_kv_heads, head_dim] of NumPy or of CuPy, and so is the result;
    block_tables: [num_seqs, max_blocks]; seq_lens: [num_seqs]. What comes out is a contiguous cache.
    """
    block_tables, seq_lens, block_size = on_host(block_tables), on_host(seq_lens), pool.shape[1]
    shape, nobodys = (len(seq_lens), max(seq_lens, default=0), *pool.shape[2:]), np.nan if pool.dtype.kind == "f" else 0
    cache = np.full_like(pool, nobodys, shape=shape)
    for seq, seq_len in enumerate(seq_lens):
        blocks, offsets = block_tables[seq, np.arange(seq_len) // block_size], np.arange(seq_len) % block_size
        cache[seq, :seq_len] = pool[np.asarray(blocks, like=pool), np.asarray(offsets, like=pool)]
    return cache


def dequantized(x, scales):
    """The numbers that an int8 cache stands for, float32, of x's shape: bytes times the scale of their block and KV head.

    x: int8, a pool [num_blocks, block_size, num_kv_heads, head_dim] with scales float32 [num_blocks, num_kv_heads], or a
    contiguous cache [num_seqs, max_seq_len, num_kv_heads, head_dim] with scales [num_seqs, max_seq_len / 16, num_kv_heads].
    """
    return x * (scales[:, None, :, None] if scales.ndim == 2 else scales.repeat(x.shape[1] // scales.shape[1], axis=1)[..., None])


def relative_error(out, reference):
    """||out - reference|| / ||reference||, in float64."""
    out = np.asarray(on_host(out), np.float64)
    return float(np.linalg.norm(out - reference) / np.linalg.norm(reference))
