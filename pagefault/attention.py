"""The ladder of attention kernels, one Python function a rung: checks, chooses, launches.

All rungs have one signature. Each computes the attention of one new token a sequence over what is cached for it:

q, out: [num_seqs, num_heads, head_dim]; all arrays are float32 or all float16, and all NumPy's, or all on one GPU.
k, v: a contiguous cache [num_seqs, max_seq_len, num_kv_heads, head_dim], or, with block_tables, a pool
[num_blocks, block_size, num_kv_heads, head_dim].
seq_lens: [num_seqs] whole numbers, the new token counted; a sequence of 0 tokens gives a row of zeros.
block_tables: [num_seqs, max_blocks] whole numbers; past a sequence's last block anything may stand, -1 say.
scale: of the scores, 1 / sqrt(head_dim) unless given.

A rung returns out, a new array unless one is given. Arrays of other libraries come in, out too, through DLPack or the CUDA
array interface, without a copy. The tokens of a prompt are rows that share one table, with lengths that rise by one: so
causal prefill is a batch like any other. A rung's `_launch` gives the same as a Launch, which can be run many times.
"""

import numpy as np

from .batch import checked_batch, own_array
from .errors import KernelError, RequestTooLarge, whole
from .kernel import Launch, blocks_at_once, ladder_kernel, processors, shared_limit, tensor_cores

THREADS = 128  # of the naive kernels; a power of two
WARP_THREADS = 32 * 8  # of the others: WARPS in their source
LEAST_CHUNK = 128  # tokens: below it a thread block has too little to do
TILE, WARPS, STAGES = 16, 4, 3  # of tensor_core.cu


def naive_attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """Attention with all scores in shared memory: kernels/naive_attention.cu, with a page walk in paged_attention.cu.

    The module's docstring says what the arguments are. Returns out.
    Raises RequestTooLarge for a context whose scores exceed a thread block's shared memory.
    """
    return naive_launch(q, k, v, seq_lens, block_tables, scale, out)()


def naive_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """The Launch that naive_attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    longest = int(b.lengths.max(initial=0))
    shared, limit = 4 * (THREADS + longest), shared_limit(b.xp)
    if shared > limit:
        raise RequestTooLarge(f"a context of {longest:,} tokens needs {shared:,} bytes of shared memory for its scores; "
                              f"a thread block has at most {limit:,}, enough for {limit // 4 - THREADS:,} tokens")
    num_seqs, num_heads, head_dim = b.q.shape
    if b.tables is None:
        kernel, where = ladder_kernel("naive_attention.cu", f"naive_attention<{b.type}>"), (b.seq_lens,)
    else:
        kernel = ladder_kernel("paged_attention.cu", f"paged_attention<{b.type}, {b.k.shape[1]}>")
        where = b.tables, b.seq_lens
    args = (b.q, b.k, b.v, *where, b.out, b.layout[2], b.k.shape[2], head_dim, b.scale)
    return Launch(kernel, (num_seqs, num_heads), (THREADS,), args, shared, b.out)


def online_softmax_attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """Attention in one pass over K and V, whatever the context's length: kernels/online_softmax.cu.

    The module's docstring says what the arguments are; head_dim is a multiple of 8, at most 256. Returns out.
    """
    return online_softmax_launch(q, k, v, seq_lens, block_tables, scale, out)()


def online_softmax_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """The Launch that online_softmax_attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    _check_pieces(b)
    num_seqs, num_heads, head_dim = b.q.shape
    layout, tables, table_size = b.layout
    kernel = ladder_kernel("online_softmax.cu", f"online_softmax<{b.type}, {head_dim}, {layout}>")
    args = (b.q, b.k, b.v, tables, b.seq_lens, b.out, table_size, num_heads, b.k.shape[2], b.scale)
    return Launch(kernel, (num_seqs * num_heads,), (WARP_THREADS,), args, 0, b.out)


def split_kv_attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """Attention that splits contexts over thread blocks and reads each K and V once: kernels/split_kv.cu.

    The module's docstring says what the arguments are; head_dim is a multiple of 8, at most 256. split_tokens: a thread
    block takes at most so many tokens; unless given, an equal share of all, if that is 128 or more. (For groups
    of more than 8 query heads, or of 4 and a head_dim above 128, K and V are read as often as it takes.) Returns out.
    """
    return split_kv_launch(q, k, v, seq_lens, block_tables, scale, out, split_tokens)()


def split_kv_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """The Launch that split_kv_attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    _check_pieces(b)
    num_seqs, num_heads, head_dim = b.q.shape
    group = max(g for g in range(1, 9) if num_heads // b.k.shape[2] % g == 0 and (g == 1 or g * head_dim <= 1024))
    if split_tokens is None:
        at_once = processors(b.xp) * (1 if group > 4 else 2) * group // num_heads  # chunks that run at the same time
        split_tokens = max(LEAST_CHUNK, -(-int(b.lengths.sum()) // max(1, at_once)))
    layout, tables, table_size = b.layout
    kernel = ladder_kernel("split_kv.cu", f"split_kv<{b.type}, {head_dim}, {group}, {layout}>")
    chunks, parts, arrived = _chunked(b, whole("split_tokens", split_tokens, 1))
    args = (b.q, b.k, b.v, tables, chunks, b.out, parts, arrived, table_size, num_heads, b.k.shape[2], b.scale)
    return Launch(kernel, (len(chunks) * num_heads // group,), (WARP_THREADS,), args, 0, b.out)


def tensor_core_attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """Attention with tensor cores and asynchronous copies, for float16: kernels/tensor_core.cu.

    The module's docstring says what the arguments are; head_dim is 64 or 128. split_tokens is as for split_kv_attention,
    and taken as the multiple of 16 below it, at least 16. A GPU needs compute capability 8.0. Returns out.
    """
    return tensor_core_launch(q, k, v, seq_lens, block_tables, scale, out, split_tokens)()


def tensor_core_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """The Launch that tensor_core_attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    _check_pieces(b)
    if b.type != "__half":
        raise TypeError(f"q, k, v hold {b.q.dtype}; this kernel takes float16")
    return _tensor_core(b, "__half", None, split_tokens)


def int8_attention(q, k, v, k_scales, v_scales, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """Attention over int8 caches, with float16 queries: kernels/tensor_core.cu once more.

    The other arguments are those of tensor_core_attention. k, v: int8. k_scales, v_scales: float32 [num_blocks, num_kv_heads],
    as an Int8Cache has them, for blocks of a multiple of 16 tokens; for a contiguous cache
    [num_seqs, max_seq_len / 16, num_kv_heads]. Returns out, float16.
    """
    return int8_launch(q, k, v, k_scales, v_scales, seq_lens, block_tables, scale, out, split_tokens)()


def int8_launch(q, k, v, k_scales, v_scales, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """The Launch that int8_attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out, "int8")
    _check_pieces(b)
    if b.k.shape[1] % TILE:
        raise ValueError(f"{'block_size' if block_tables is not None else 'max_seq_len'} = {b.k.shape[1]}; of int8 it is a "
                         f"multiple of {TILE}")
    shape = (*b.k.shape[:1], *([] if block_tables is not None else [b.k.shape[1] // TILE]), b.k.shape[2])
    scales = own_array(k_scales), own_array(v_scales)
    for name, s in zip(("k_scales", "v_scales"), scales):
        if type(s) is not type(b.k) or s.dtype != np.float32 or s.shape != shape:
            raise ValueError(f"{name} is a {type(s).__name__} of {getattr(s, 'dtype', '?')} {list(np.shape(s))}, and k's scales "
                             f"are a {type(b.k).__name__} of float32 {list(shape)}")
    return _tensor_core(b, "signed char", scales, split_tokens)


def attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """Attention by the best rung that takes these arguments on this machine; the module's docstring says what they are.

    That is tensor_core_attention for float16 and a head_dim of 64 or 128 (on a GPU of compute capability 8.0 or more), else
    split_kv_attention for a head_dim that is a multiple of 8 up to 256, else naive_attention. Returns out.
    """
    return attention_launch(q, k, v, seq_lens, block_tables, scale, out)()


def attention_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """The Launch that attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    head_dim = b.q.shape[2]
    if head_dim % 8 or head_dim > 256 or _address(b.k) % 16 or _address(b.v) % 16:
        rung = naive_launch
    elif b.type == "__half" and head_dim in (64, 128) and tensor_cores(b.xp):
        rung = tensor_core_launch
    else:
        rung = split_kv_launch
    return rung(q, k, v, seq_lens, block_tables, scale, out)


def _tensor_core(b, stored, scales, split_tokens):
    """The Launch of tensor_core.cu for a Batch; stored: what its caches hold, in C++; scales: of int8, K's and V's."""
    num_seqs, num_heads, head_dim = b.q.shape
    num_kv_heads = b.k.shape[2]
    if head_dim not in (64, 128):
        raise ValueError(f"head_dim = {head_dim}; this kernel takes 64 and 128")
    if not tensor_cores(b.xp):
        raise KernelError("this kernel needs a GPU of compute capability 8.0 or more")
    group = max(g for g in range(1, 17) if num_heads // num_kv_heads % g == 0)
    shared = WARPS * STAGES * TILE * 2 * head_dim * b.k.dtype.itemsize
    if split_tokens is None:
        at_once = processors(b.xp) * blocks_at_once(b.xp, shared, 2) * group // num_heads
        split_tokens = max(LEAST_CHUNK, -(-int(b.lengths.sum()) // max(1, at_once)))
    layout, tables, table_size = b.layout
    kernel = ladder_kernel("tensor_core.cu", f"tensor_core<{stored}, {head_dim}, {group}, {layout}>")
    chunks, parts, arrived = _chunked(b, whole("split_tokens", split_tokens, 1), TILE)
    args = (b.q, b.k, b.v, *(scales or [b.xp.empty(1, np.float32)] * 2), tables, chunks, b.out, parts, arrived, table_size, num_heads,
            num_kv_heads, b.scale)
    return Launch(kernel, (len(chunks) * num_heads // group,), (32 * WARPS,), args, shared, b.out)


def _chunked(b, split_tokens, multiple=1):
    """A Batch's chunks, room for the parts, and how many of them have arrived, as kernels take them."""
    chunks, num_parts = chunk_list(b.lengths, split_tokens, multiple)
    num_seqs, num_heads, head_dim = b.q.shape
    parts = b.xp.empty((num_parts, num_heads, 2 + head_dim), np.float32)
    return b.xp.asarray(chunks), parts, b.xp.zeros((num_seqs, num_heads), np.int32)


def chunk_list(lengths, most, multiple=1):
    """A batch cut into chunks of at most `most` tokens, the longest first; and how many are not a whole sequence.

    lengths: int64 [num_seqs]. Chunks begin at a multiple of `multiple` tokens (of which one may be more than `most`), those
    of a sequence are as equal as that allows, and one of 0 tokens has one chunk. Returns int32 [chunks, 6], whose columns
    are the members of Chunk in kernels/chunks.cuh.

    >>> chunk_list(np.array([5, 12]), 8)[0].tolist()
    [[1, 0, 6, 0, 2, 0], [1, 6, 12, 1, 2, 0], [0, 0, 5, 0, 1, 0]]
    """
    units = -(-lengths // multiple)
    num_parts = np.maximum(1, -(-units // max(1, most // multiple)))
    split = np.where(num_parts > 1, num_parts, 0)
    seq = np.repeat(np.arange(len(lengths)), num_parts)
    part = np.arange(len(seq)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    begin, end = (np.minimum(units[seq] * p // num_parts[seq] * multiple, lengths[seq]) for p in (part, part + 1))
    chunks = np.stack([seq, begin, end, part, num_parts[seq], (np.cumsum(split) - split)[seq]], axis=1)
    return chunks[np.argsort(begin - end, kind="stable")].astype(np.int32), int(split.sum())


def _check_pieces(b):
    """What loads of 16 bytes need."""
    head_dim = b.q.shape[2]
    if head_dim % 8 or head_dim > 256:
        raise ValueError(f"head_dim = {head_dim}; this kernel takes multiples of 8 up to 256")
    for name, a in (("k", b.k), ("v", b.v)):
        if _address(a) % 16:
            raise ValueError(f"{name} begins {_address(a) % 16} bytes behind a multiple of 16, and is loaded 16 bytes at once; copy it")


def _address(a):
    return a.ctypes.data if isinstance(a, np.ndarray) else a.data.ptr
