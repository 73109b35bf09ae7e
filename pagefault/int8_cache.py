"""A KV cache of bytes: pages at half the size."""

import numpy as np

from .errors import whole
from .kernel import Launch, ladder_kernel
from .reference import dequantized
from .storage import copy_launches, read_slots, row_numbers, tokens_for

SCALED = 16  # tokens: blocks hold multiples of it, so that a tile of tensor_core.cu has one scale
THREADS = 128  # of append_int8.cu


class Int8Cache:
    """A KV cache of one layer as a pool of blocks of 8-bit numbers: K, and V, of a KV head in a block are those times one scale.

    k, v: int8 [num_blocks, block_size, num_kv_heads, head_dim]; k_scales, v_scales: float32 [num_blocks, num_kv_heads], NaN
    at first. Arrays are NumPy's (xp=numpy) or a GPU's (xp=cupy). block_size is a multiple of 16.
    """

    def __init__(self, num_blocks, block_size, num_kv_heads, head_dim, xp=np):
        shape = dict(num_blocks=num_blocks, block_size=block_size, num_kv_heads=num_kv_heads, head_dim=head_dim)
        shape = tuple(whole(name, n, 1) for name, n in shape.items())
        if block_size % SCALED:
            raise ValueError(f"block_size = {block_size}; blocks of int8 hold multiples of {SCALED} tokens")
        self.k, self.v = (xp.zeros(shape, np.int8) for _ in "kv")
        self.k_scales, self.v_scales = (xp.full((num_blocks, num_kv_heads), np.nan, np.float32) for _ in "kv")
        self.num_blocks, self.block_size, self.xp = num_blocks, block_size, xp

    @property
    def nbytes(self):
        """Bytes of the pool, for K, V and their scales together."""
        return self.k.nbytes + self.v.nbytes + self.k_scales.nbytes + self.v_scales.nbytes

    def append(self, slots, k, v):
        """Store tokens, rounded: k, v are [num_tokens, num_kv_heads, head_dim], slots [num_tokens] whole numbers, each once.

        A block is filled from its first slot on: a token there begins it anew, and what it held is forgotten. Where a later
        token is too large for the block's scale, the scale grows, and the tokens before it are rounded once more. A number
        that isn't finite makes its head's K, or V, of the whole block so. Raises IndexError for a slot that isn't there.
        """
        self.append_launch(slots, k, v)()

    def append_launch(self, slots, k, v):
        """The Launch that append makes of its arguments."""
        k, v = tokens_for(self, k, v, np.float32)
        slots = row_numbers("slot", slots, self.num_blocks * self.block_size, once=True)
        if len(slots) != len(k):
            raise ValueError(f"{len(slots)} slots for {len(k)} tokens")
        order = np.argsort(slots)
        slots = slots[order]
        first = np.flatnonzero(np.diff(slots // self.block_size, prepend=-1, append=-1) if len(slots) else []).astype(np.int32)
        k, v = (self.xp.ascontiguousarray(x[self.xp.asarray(order)]) for x in (k, v))
        args = (k, v, self.k, self.v, self.k_scales, self.v_scales, self.xp.asarray(slots), self.xp.asarray(first),
                self.block_size, self.k.shape[3])
        grid = max(0, len(first) - 1), self.k.shape[2]
        return Launch(ladder_kernel("append_int8.cu", "append_int8"), grid, (THREADS,), args, 0, None)

    def copy_blocks(self, pairs):
        """Copy blocks, with their scales, to other blocks: PagedCache.copy_blocks."""
        pairs = row_numbers("block", pairs, self.num_blocks, columns=2).tolist()
        for arrays in ((self.k, self.v), (self.k_scales, self.v_scales)):
            for launch in copy_launches(self.xp, pairs, arrays):
                launch()

    def read(self, table):
        """K and V of a BlockTable's tokens as float32, [num_tokens, num_kv_heads, head_dim] each."""
        blocks, count = read_slots(self, table)
        blocks = self.xp.asarray(blocks)
        found = (dequantized(x[blocks], s[blocks]) for x, s in ((self.k, self.k_scales), (self.v, self.v_scales)))
        return tuple(x.reshape(-1, *x.shape[2:])[:count] for x in found)
