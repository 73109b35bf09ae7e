"""The top of the ladder: attention on tensor cores, over float16 and over int8. attention.py says what the arguments are."""

import numpy as np

from .batch import address, check_pieces, checked_batch, own_array
from .chunks import chunked
from .errors import KernelError
from .kernel import Launch, blocks_at_once, ladder_kernel, processors, tensor_cores

TILE, WARPS = 16, 4  # as in kernels/tensor_core.cu and tiles.cuh


def tensor_core_attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """Attention with tensor cores and asynchronous copies, for float16: kernels/tensor_core.cu.

    head_dim is 64 or 128. split_tokens: as for split_kv_attention, but chunks begin at multiples of 16. (For groups of more
    than 16 query heads K and V are read as often as it takes.) Returns out.
    Raises KernelError on a GPU without what it needs, which is compute capability 8.0.
    """
    return tensor_core_launch(q, k, v, seq_lens, block_tables, scale, out, split_tokens)()


def tensor_core_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """The Launch that tensor_core_attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    check_pieces(b)
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
    check_pieces(b)
    if b.k.shape[1] % TILE:
        raise ValueError(f"{'block_size' if block_tables is not None else 'max_seq_len'} = {b.k.shape[1]}; of int8 it is a "
                         f"multiple of {TILE}")
    shape = (*b.k.shape[:1], *([] if block_tables is not None else [b.k.shape[1] // TILE]), b.k.shape[2])
    scales = own_array(k_scales), own_array(v_scales)
    for name, s in zip(("k_scales", "v_scales"), scales):
        there = isinstance(s, np.ndarray) if b.xp is np else hasattr(s, "__cuda_array_interface__")
        if not there or s.dtype != np.float32 or s.shape != shape:
            raise ValueError(f"{name} is a {type(s).__name__} of {getattr(s, 'dtype', '?')} {list(np.shape(s))}, and k's scales "
                             f"are a {type(b.k).__name__} of float32 {list(shape)}")
    return _tensor_core(b, "signed char", scales, split_tokens)


def _tensor_core(b, stored, scales, split_tokens):
    """The Launch of tensor_core.cu for a Batch; stored: what its caches hold, in C++; scales: of int8, K's and V's."""
    num_seqs, num_heads, head_dim = b.q.shape
    num_kv_heads = b.k.shape[2]
    if head_dim not in (64, 128):
        raise ValueError(f"head_dim = {head_dim}; this kernel takes 64 and 128")
    if address(b.q) % 4:
        raise ValueError(f"q begins {address(b.q) % 4} bytes behind a multiple of 4, and is loaded 4 bytes at once; copy it")
    if not tensor_cores(b.xp):
        raise KernelError("this kernel needs a GPU of compute capability 8.0 or more")
    group = max(g for g in range(1, 17) if num_heads // num_kv_heads % g == 0)
    many = num_seqs * num_heads // group >= 4 * 3 * processors(b.xp)  # thread blocks, in 4 waves of 3 on a processor
    stages, most = (2, 3) if many or stored != "__half" else (3, 2)
    shared = WARPS * max(stages * TILE * 2 * head_dim * b.k.dtype.itemsize, group * 4 * (head_dim + 2))
    at_once = processors(b.xp) * blocks_at_once(b.xp, shared, most) * group // num_heads
    layout, tables, table_size = b.layout
    kernel = ladder_kernel("tensor_core.cu", f"tensor_core<{stored}, {head_dim}, {group}, {stages}, {layout}>")
    chunks, parts, arrived = chunked(b, split_tokens, at_once, TILE)
    args = (b.q, b.k, b.v, *(scales or [b.xp.empty(1, np.float32)] * 2), tables, chunks, b.out, parts, arrived, table_size,
            num_heads, num_kv_heads, b.scale)
    return Launch(kernel, (len(chunks) * num_heads // group,), (32 * WARPS,), args, shared, b.out, arrived)
