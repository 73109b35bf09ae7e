"""K and V of cached tokens, as arrays."""

import numpy as np

from .errors import RequestTooLarge, whole
from .storage import copy_launches, empty_slots, move_launch, read_slots, row_numbers, tokens_for


class ContiguousCache:
    """A KV cache that reserves max_seq_len slots for each sequence, one behind the other.

    k, v: [num_seqs, max_seq_len, num_kv_heads, head_dim], of dtype, in NumPy (xp=numpy) or on a GPU (xp=cupy);
    seq_lens: int32 [num_seqs], NumPy's, the tokens that each sequence holds. Slots that hold no token are NaN,
    so that a kernel which reads one shows it.
    """

    def __init__(self, num_seqs, max_seq_len, num_kv_heads, head_dim, dtype=np.float32, xp=np):
        shape = dict(num_seqs=num_seqs, max_seq_len=max_seq_len, num_kv_heads=num_kv_heads, head_dim=head_dim)
        self.k, self.v = empty_slots(shape, dtype, xp)
        self.seq_lens = np.zeros(num_seqs, np.int32)
        self.xp = xp

    @property
    def nbytes(self):
        """Bytes reserved, for K and V together."""
        return self.k.nbytes + self.v.nbytes

    def append(self, seq, k, v):
        """Store more tokens of sequence seq: k, v are [num_kv_heads, head_dim], or [tokens, num_kv_heads, head_dim].

        Raises RequestTooLarge if they don't fit into what is reserved.
        """
        k, v = tokens_for(self, k, v)
        seq = self._index(seq)
        start, end = int(self.seq_lens[seq]), int(self.seq_lens[seq]) + len(k)
        if end > self.k.shape[1]:
            raise RequestTooLarge(f"sequence {seq} would have {end} tokens, and {self.k.shape[1]} are reserved for it")
        self.k[seq, start:end], self.v[seq, start:end] = k, v
        self.seq_lens[seq] = end

    def read(self, seq):
        """K and V of the tokens that sequence seq holds, [seq_len, num_kv_heads, head_dim] each."""
        seq = self._index(seq)
        return self.k[seq, : self.seq_lens[seq]], self.v[seq, : self.seq_lens[seq]]

    def free(self, seq):
        """Forget all tokens of sequence seq."""
        seq = self._index(seq)
        self.k[seq] = self.v[seq] = np.nan
        self.seq_lens[seq] = 0

    def _index(self, seq):
        if not 0 <= whole("seq", seq, -len(self.seq_lens) - 1) < len(self.seq_lens):
            raise IndexError(f"sequence {seq} of {len(self.seq_lens)}")
        return int(seq)


class PagedCache:
    """A KV cache of one layer as a pool of blocks, which sequences hold in any order.

    k, v: [num_blocks, block_size, num_kv_heads, head_dim], of dtype, in NumPy (xp=numpy) or on a GPU (xp=cupy). The slot
    of a token is block_id * block_size + offset. Which block is whose a BlockPool knows; the cache moves what it is told
    to move, on a GPU on the current stream. Slots that hold no token are NaN at first.
    """

    def __init__(self, num_blocks, block_size, num_kv_heads, head_dim, dtype=np.float32, xp=np):
        shape = dict(num_blocks=num_blocks, block_size=block_size, num_kv_heads=num_kv_heads, head_dim=head_dim)
        self.k, self.v = empty_slots(shape, dtype, xp)
        self.num_blocks, self.block_size = self.k.shape[:2]
        self.xp = xp

    @property
    def nbytes(self):
        """Bytes of the pool, for K and V together."""
        return self.k.nbytes + self.v.nbytes

    def append(self, slots, k, v):
        """Store tokens: k, v are [num_tokens, num_kv_heads, head_dim], slots are [num_tokens] whole numbers, each once.

        Raises IndexError for a slot that isn't there. Slots on a GPU are read back to be checked.
        """
        self.append_launch(slots, k, v)()

    def append_launch(self, slots, k, v):
        """The Launch that append makes of its arguments."""
        k, v = (self.xp.ascontiguousarray(x) for x in tokens_for(self, k, v))
        shares = self.xp.may_share_memory
        k, v = (x.copy() if shares(x, self.k) or shares(x, self.v) else x for x in (k, v))
        slots = row_numbers("slot", slots, self.num_blocks * self.block_size, once=True)
        if len(slots) != len(k):
            raise ValueError(f"{len(slots)} slots for {len(k)} tokens")
        return move_launch(self.xp, "append", slots, self.k[0, 0].nbytes, (k, v, self.k, self.v))

    def copy_blocks(self, pairs):
        """Copy blocks to other blocks: [(source, target), ...], with the result of copying one after another.

        It takes one launch, or as many as one copy waits for another. Raises IndexError for a block that isn't there.
        """
        pairs = row_numbers("block", pairs, self.num_blocks, columns=2)
        for launch in copy_launches(self.xp, pairs.tolist(), (self.k, self.v)):
            launch()

    def gather_blocks(self, blocks):
        """A copy of some blocks, in their order: [2, n, block_size, num_kv_heads, head_dim], K and then V."""
        blocks = row_numbers("block", blocks, self.num_blocks)
        staging = self.xp.empty((2, len(blocks), *self.k.shape[1:]), self.k.dtype)
        arrays = self.k, self.v, staging
        return move_launch(self.xp, "gather_blocks", blocks, self.k[0].nbytes, arrays, ", false", out=staging)()

    def scatter_blocks(self, staging, blocks):
        """Write what gather_blocks gave into some blocks, each named once, in their order."""
        blocks, staging = row_numbers("block", blocks, self.num_blocks, once=True), self.xp.asarray(staging)
        shape = 2, len(blocks), *self.k.shape[1:]
        if staging.shape != shape or staging.dtype != self.k.dtype:
            raise ValueError(f"{len(blocks)} blocks are {self.k.dtype} {list(shape)}, not {staging.dtype} {list(staging.shape)}")
        staging = self.xp.ascontiguousarray(staging)
        arrays = self.k, self.v, staging if getattr(staging.flags, "writeable", True) else staging.copy()
        move_launch(self.xp, "gather_blocks", blocks, self.k[0].nbytes, arrays, ", true")()

    def read(self, table):
        """K and V of a BlockTable's tokens, [num_tokens, num_kv_heads, head_dim] each."""
        blocks, count = read_slots(self, table)
        staging = self.gather_blocks(blocks)
        return tuple(staging.reshape(2, -1, *self.k.shape[2:])[:, :count])

    def poison(self, blocks):
        """Fill blocks with NaN, so that whoever still reads them shows it."""
        blocks = self.xp.asarray(row_numbers("block", blocks, self.num_blocks))
        self.k[blocks] = self.v[blocks] = np.nan
