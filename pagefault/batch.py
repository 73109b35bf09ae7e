"""What attention is asked for: arrays of any library, checked against each other before anything runs."""

import numbers
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from .errors import RequestTooLarge
from .gpu import import_cupy
from .memory import checked_lengths
from .reference import on_host

TYPES = {"float32": "float", "float16": "__half"}
LONGEST = 2**31 - 2**16  # tokens of a sequence: a thread block's next step past the end is still an int


@dataclass
class Batch:
    """The arguments of attention, which fit each other; its arrays are those of xp, NumPy or CuPy."""

    xp: ModuleType
    q: object
    k: object
    v: object
    out: object
    lengths: np.ndarray  # seq_lens, in the CPU's memory
    seq_lens: object  # int32, as kernels take them
    tables: object  # int32, too; None for a contiguous cache
    scale: float

    @property
    def type(self):
        """What q, k, v and out hold, in C++."""
        return TYPES[self.q.dtype.name]

    @property
    def layout(self):
        """The cache's layout in C++, and the two members that it has (kernels/layout.cuh)."""
        if self.tables is None:
            return "Contiguous", self.seq_lens, self.k.shape[1]  # any array will do
        return f"Paged<{self.k.shape[1]}>", self.tables, self.tables.shape[1]


def checked_batch(q, k, v, seq_lens, block_tables, scale, out, stored=None):
    """The Batch of these arguments, which attention.py describes; stored: the dtype of k and v, unless given that of q.

    Raises TypeError or ValueError, by name, for what doesn't fit; RequestTooLarge for a sequence longer than its slots.
    """
    arrays = {name: own_array(a) for name, a in dict(q=q, k=k, v=v).items()}
    xp, (q, k, v) = _module(arrays), arrays.values()
    lengths = checked_lengths(on_host(own_array(seq_lens)))
    _check_shapes(q, k, v, lengths, block_tables is not None, stored)
    if block_tables is not None:
        block_tables = own_array(block_tables)
        host = np.asarray(on_host(block_tables))
        _check_tables(host, lengths, *k.shape[:2])
        block_tables = xp.ascontiguousarray(host if xp is np else xp.asarray(block_tables), np.int32)
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, (numbers.Real, np.number))):
        raise TypeError(f"scale = {scale!r} is not a number")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if not abs(scale) < float("inf"):
        raise ValueError(f"scale = {scale}")
    own_out = xp.empty_like(q) if out is None else own_array(out)
    if type(own_out) is not type(q):
        raise TypeError(f"out is a {type(out).__name__}, and q a {type(q).__name__}")
    if own_out.shape != q.shape or own_out.dtype != q.dtype:
        raise ValueError(f"out is {own_out.dtype} {list(own_out.shape)}, and q {q.dtype} {list(q.shape)}")
    for name, a in (("q", q), ("k", k), ("v", v)):
        if out is not None and xp.may_share_memory(own_out, a):
            raise ValueError(f"out lies in the memory of {name}, which is read while out is written")
    return Batch(xp, q, k, v, own_out, lengths, xp.asarray(lengths.astype(np.int32)), block_tables, scale)


def own_array(x):
    """NumPy's or CuPy's array of the same memory, if x is an array of some library; else x itself."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "__cuda_array_interface__"):
        return import_cupy().asarray(x)
    if hasattr(x, "__dlpack__"):
        return (np if x.__dlpack_device__()[0] == 1 else import_cupy()).from_dlpack(x)  # 1: the CPU's memory
    return x


def _module(arrays):
    """NumPy or CuPy, whose arrays these are."""
    if all(isinstance(a, np.ndarray) for a in arrays.values()):
        return np
    if all(hasattr(a, "__cuda_array_interface__") for a in arrays.values()):
        return import_cupy()
    types = ", ".join(f"{name} is a {type(a).__module__}.{type(a).__name__}" for name, a in arrays.items())
    raise TypeError(f"{types}; all are NumPy's arrays, or all CuPy's")


def _check_shapes(q, k, v, lengths, paged, stored):
    first = "num_blocks, block_size" if paged else "num_seqs, max_seq_len"
    fit = q.ndim == 3 and k.ndim == 4 and k.shape == v.shape and k.shape[3] == q.shape[2]
    if not fit or not (paged or k.shape[0] == q.shape[0]):
        raise ValueError(f"q {list(q.shape)} is [num_seqs, num_heads, head_dim], and k {list(k.shape)} and v {list(v.shape)} "
                         f"are [{first}, num_kv_heads, head_dim]")
    if 0 in q.shape[1:] + k.shape[1:]:
        raise ValueError(f"q {list(q.shape)} and k {list(k.shape)}: heads, head_dim and {first.split()[1]} are at least 1")
    if q.shape[1] % k.shape[2]:
        raise ValueError(f"{q.shape[1]} query heads can't share {k.shape[2]} KV heads equally")
    if stored and [x.dtype.name for x in (q, k, v)] != ["float16", stored, stored]:
        raise TypeError(f"q, k, v hold {q.dtype}, {k.dtype}, {v.dtype}; q is float16, k and v are {stored}")
    if not stored and not q.dtype == k.dtype == v.dtype or q.dtype.name not in TYPES:
        raise TypeError(f"q, k, v hold {q.dtype}, {k.dtype}, {v.dtype}; all are float32 or all float16")
    if k.shape[0] * k.shape[1] >= 2**32:
        raise ValueError(f"k {list(k.shape)} has {k.shape[0] * k.shape[1]:,} slots, and kernels count to {2**32 - 1:,}")
    if lengths.max(initial=0) > LONGEST:
        raise RequestTooLarge(f"sequence {lengths.argmax()} has {lengths.max():,} tokens, and kernels count to {LONGEST:,}")
    if len(lengths) != q.shape[0]:
        raise ValueError(f"{len(lengths)} sequence lengths for {q.shape[0]} sequences")
    if not paged and lengths.max(initial=0) > k.shape[1]:
        raise RequestTooLarge(f"sequence {lengths.argmax()} has {lengths.max()} tokens, and the cache {k.shape[1]} slots for each")


def _check_tables(tables, lengths, num_blocks, block_size):
    """Every block that holds a token is one of the pool's; what lies past a sequence's end doesn't matter."""
    if tables.ndim != 2 or len(tables) != len(lengths) or tables.dtype.kind not in "iu":
        raise ValueError(f"block_tables are {tables.dtype} {list(tables.shape)}; they are whole numbers "
                         f"[num_seqs = {len(lengths)}, max_blocks]")
    blocks = -(-lengths // block_size)
    if blocks.max(initial=0) > tables.shape[1]:
        i = int(blocks.argmax())
        raise RequestTooLarge(f"sequence {i} has {lengths[i]} tokens, {blocks[i]} blocks of {block_size}, and its row of "
                              f"block_tables {tables.shape[1]}")
    wrong = ((tables < 0) | (tables >= num_blocks)) & (np.arange(tables.shape[1]) < blocks[:, None])
    if wrong.any():
        i, j = (int(n[0]) for n in wrong.nonzero())
        raise ValueError(f"block_tables[{i}, {j}] = {tables[i, j]}, and the pool has blocks 0 to {num_blocks - 1}; sequence {i} "
                         f"has {lengths[i]} tokens in {blocks[i]} blocks")


def check_pieces(b):
    """What loads of 16 bytes need."""
    head_dim = b.q.shape[2]
    if head_dim % 8 or head_dim > 256:
        raise ValueError(f"head_dim = {head_dim}; this kernel takes multiples of 8 up to 256")
    for name, a in (("k", b.k), ("v", b.v)):
        if address(a) % 16:
            raise ValueError(f"{name} begins {address(a) % 16} bytes behind a multiple of 16, and is loaded 16 bytes at once; "
                             "copy it")


def address(a):
    return a.ctypes.data if isinstance(a, np.ndarray) else a.data.ptr
