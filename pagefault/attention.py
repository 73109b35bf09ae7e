"""One Python function a kernel of the ladder: checks, casts, launches."""

import numpy as np

from .errors import RequestTooLarge
from .kernel import Launch, ladder_kernel, shared_limit
from .memory import checked_lengths
from .reference import on_host

THREADS = 128
TYPES = {"float32": "float", "float16": "__half"}


def naive_attention(q, k, v, seq_lens, scale=None, out=None):
    """Attention of one new token a sequence over a contiguous cache, with all scores in shared memory.

    q, out: [num_seqs, num_heads, head_dim]; k, v: [num_seqs, max_seq_len, num_kv_heads, head_dim]; all float32 or
    all float16, of NumPy or of CuPy. seq_lens: [num_seqs] whole numbers, the new token counted; a sequence of 0
    tokens gives a row of zeros. scale: of the scores, 1 / sqrt(head_dim) unless given. Returns out.
    Raises RequestTooLarge for a context whose scores exceed a thread block's shared memory.
    """
    return naive_launch(q, k, v, seq_lens, scale, out)()


def naive_launch(q, k, v, seq_lens, scale=None, out=None):
    """The Launch that naive_attention makes of its arguments."""
    xp = _module(q=q, k=k, v=v)
    lengths = checked_lengths(on_host(seq_lens))
    _check_shapes(q, k, v, lengths)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if not abs(scale) < float("inf"):
        raise ValueError(f"scale = {scale}")
    out = xp.empty_like(q) if out is None else out
    if type(out) is not type(q):
        raise TypeError(f"out is a {type(out).__name__}, and q a {type(q).__name__}")
    if out.shape != q.shape or out.dtype != q.dtype:
        raise ValueError(f"out is {out.dtype} {list(out.shape)}, and q {q.dtype} {list(q.shape)}")
    num_seqs, num_heads, head_dim = q.shape
    shared, limit = 4 * (THREADS + int(lengths.max(initial=0))), shared_limit(xp)
    if shared > limit:
        raise RequestTooLarge(f"a context of {lengths.max():,} tokens needs {shared:,} bytes of shared memory for its scores; "
                              f"a thread block has at most {limit:,}, enough for {limit // 4 - THREADS:,} tokens")
    run = ladder_kernel("naive_attention.cu", f"naive_attention<{TYPES[q.dtype.name]}>")
    args = (q, k, v, xp.asarray(lengths.astype(np.int32)), out, k.shape[1], k.shape[2], head_dim, scale)
    return Launch(run, (num_seqs, num_heads), (THREADS,), args, shared, out)


def _module(**arrays):
    """NumPy or CuPy, whose arrays these are."""
    if all(isinstance(a, np.ndarray) for a in arrays.values()):
        return np
    if all(hasattr(a, "__cuda_array_interface__") for a in arrays.values()):
        import cupy

        return cupy
    types = ", ".join(f"{name} is a {type(a).__module__}.{type(a).__name__}" for name, a in arrays.items())
    raise TypeError(f"{types}; all are NumPy's arrays, or all CuPy's")


def _check_shapes(q, k, v, lengths):
    if q.ndim != 3 or k.ndim != 4 or k.shape != v.shape or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[2]:
        raise ValueError(f"q {list(q.shape)} is [num_seqs, num_heads, head_dim], and k {list(k.shape)} and v {list(v.shape)} "
                         "are [num_seqs, max_seq_len, num_kv_heads, head_dim]")
    if 0 in q.shape[1:] + k.shape[1:]:
        raise ValueError(f"q {list(q.shape)} and k {list(k.shape)}: heads, head_dim and max_seq_len are at least 1")
    if q.shape[1] % k.shape[2]:
        raise ValueError(f"{q.shape[1]} query heads can't share {k.shape[2]} KV heads equally")
    if not q.dtype == k.dtype == v.dtype or q.dtype.name not in TYPES:
        raise TypeError(f"q, k, v hold {q.dtype}, {k.dtype}, {v.dtype}; all are float32 or all float16")
    if len(lengths) != q.shape[0]:
        raise ValueError(f"{len(lengths)} sequence lengths for {q.shape[0]} sequences")
    if lengths.size and lengths.max() > k.shape[1]:
        raise RequestTooLarge(f"sequence {lengths.argmax()} has {lengths.max()} tokens, and the cache {k.shape[1]} slots for each")
