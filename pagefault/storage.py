"""What the caches share: empty arrays, checks of what goes in, and kernels that move rows of bytes."""

from math import gcd

import numpy as np

from .errors import whole
from .kernel import Launch, ladder_kernel
from .reference import on_host

THREADS = 128
PIECES = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}  # of so many bytes


def empty_slots(shape, dtype, xp):
    """K and V as arrays of NaN, of a shape {name: size}; raises ValueError or TypeError if there can be none."""
    shape = tuple(whole(name, n, 1) for name, n in shape.items())
    if np.dtype(dtype).kind != "f" or not np.dtype(dtype).isnative:
        raise TypeError(f"dtype = {np.dtype(dtype)}, a floating-point type in this machine's byte order is needed")
    return tuple(xp.full(shape, np.nan, dtype) for _ in "kv")


def tokens_for(cache, k, v, dtype=None):
    """K and V of some tokens, for a cache: in a dtype, unless given its own, [tokens, num_kv_heads, head_dim] each."""
    k, v = (_numbers(x, np.dtype(dtype or cache.k.dtype), cache.xp) for x in (k, v))
    if k.shape != v.shape or k.shape[1:] != cache.k.shape[2:]:
        raise ValueError(f"k {list(k.shape)} and v {list(v.shape)} are both [tokens, {cache.k.shape[2]}, {cache.k.shape[3]}]")
    return k, v


def _numbers(x, dtype, xp):
    x = xp.asarray(x)
    if x.dtype != dtype:
        if x.dtype.kind not in "fiu":
            raise TypeError(f"K and V are real numbers, not {x.dtype}")
        with np.errstate(over="ignore"):
            cast = x.astype(dtype)
        beyond = xp.isinf(cast) & xp.isfinite(x)
        if bool(beyond.any()):
            raise ValueError(f"a number up to {float(abs(x[beyond]).max()):g} is beyond {dtype}")
        x = cast
    return x[None] if x.ndim == 2 else x


def row_numbers(what, numbers, count, columns=None, once=False):
    """Numbers of rows as int64 [n], or [n, columns]; a GPU's are read back.

    Raises TypeError unless they are whole numbers, IndexError for one that isn't from 0 to count - 1, ValueError for
    another shape, or, if each is to be there once, for one that is there twice.
    """
    numbers = np.asarray(on_host(numbers))
    if not numbers.size:
        return np.empty((0, columns) if columns else 0, np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{what}s are whole numbers, not {numbers.dtype}")
    if numbers.ndim == 0 or numbers.shape[1:] != ((columns,) if columns else ()):
        raise ValueError(f"{what}s {list(numbers.shape)} are [n{f', {columns}' if columns else ''}]")
    wrong = (numbers < 0) | (numbers >= count)
    if wrong.any():
        raise IndexError(f"{what} {numbers[wrong][0]:,} of {count:,}")
    if once and len(set(numbers.tolist())) < len(numbers):
        found, times = np.unique(numbers, return_counts=True)
        raise ValueError(f"{what} {found[times > 1][0]:,} is there more than once")
    return numbers.astype(np.int64)


def copy_rounds(pairs):
    """The pairs (source, target) in as few rounds as give what copying one after another gives, if a round has no order.

    A pair comes after those before it that wrote its source or its target, or read its target.

    >>> copy_rounds([(0, 1), (2, 3), (1, 4), (5, 1)])
    [[(0, 1), (2, 3)], [(1, 4)], [(5, 1)]]
    """
    read, written, rounds = {}, {}, []  # block: the first round after its last reader, or its last writer
    for source, target in pairs:
        if source == target:
            continue
        n = max(written.get(source, 0), written.get(target, 0), read.get(target, 0))
        if n == len(rounds):
            rounds.append([])
        rounds[n].append((source, target))
        read[source], written[target] = max(n + 1, read.get(source, 0)), n + 1
    return rounds


def copy_launches(xp, pairs, arrays):
    """The Launches that copy rows of two arrays: one a round."""
    return [move_launch(xp, "copy_blocks", np.array(some, np.int64), arrays[0][0].nbytes, arrays) for some in copy_rounds(pairs)]


def read_slots(cache, table):
    """The blocks of a BlockTable that hold its tokens in a cache, and how many tokens these are.

    Raises ValueError if the table is over blocks of another size, or has fewer than its tokens take.
    """
    n, size = whole("num_tokens", table.num_tokens), getattr(table, "pool", cache).block_size
    if size != cache.block_size:
        raise ValueError(f"a table over blocks of {size}, and the cache has blocks of {cache.block_size}")
    count = -(-n // size)
    if count > len(table.blocks):
        raise ValueError(f"{n} tokens take {count} blocks of {size}, and the table has {len(table.blocks)}")
    return row_numbers("block", table.blocks[:count], cache.num_blocks), n


def move_launch(xp, file, rows, row_bytes, arrays, flag="", out=None):
    """The Launch of a kernel that moves one row of row_bytes bytes for each row number, in pieces as wide as can be.

    A piece is 16, 8, 4, 2 or 1 bytes: what divides a row's bytes and the arrays' addresses.
    """
    size = gcd(16, row_bytes, *(a.ctypes.data if isinstance(a, np.ndarray) else a.data.ptr for a in arrays))
    if size < 8:
        arrays = [a.reshape(-1).view(f"u{size}") for a in arrays]
    pieces = row_bytes // size
    threads = min(THREADS, pieces)
    kernel = ladder_kernel(f"{file}.cu", f"{file}<{PIECES[size]}{flag}>")
    return Launch(kernel, (len(rows), -(-pieces // threads)), (threads,), (*arrays, xp.asarray(rows), pieces), 0, out)
