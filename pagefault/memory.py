"""Memory that is reserved against memory that holds tokens, counted exactly."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .errors import RequestTooLarge, whole


@dataclass(frozen=True)
class Memory:
    """Token slots of some sequences: stored (they hold a token) and reserved (nobody else may use them)."""

    stored: int
    reserved: int

    @property
    def wasted(self):
        """Slots that are reserved and empty."""
        return self.reserved - self.stored

    @property
    def utilization(self):
        """The share of the reserved slots that hold a token, from 0 to 1."""
        return self.stored / self.reserved if self.reserved else 1.0


def contiguous_memory(seq_lens, max_seq_len):
    """The Memory of a cache that reserves max_seq_len slots for each sequence.

    seq_lens: [num_seqs] tokens. Raises RequestTooLarge if one is longer than max_seq_len.

    >>> contiguous_memory([83, 1145, 118], 2048)
    Memory(stored=1346, reserved=6144)
    """
    seq_lens = checked_lengths(seq_lens)
    max_seq_len = whole("max_seq_len", max_seq_len, 1)
    if seq_lens.size and seq_lens.max() > max_seq_len:
        i = int(seq_lens.argmax())
        raise RequestTooLarge(f"sequence {i} has {seq_lens[i]} tokens, and {max_seq_len} are reserved for it")
    return Memory(int(seq_lens.sum()), len(seq_lens) * max_seq_len)


def paged_memory(seq_lens, block_size):
    """The Memory of a cache that gives each sequence whole blocks, the last one perhaps partly empty.

    seq_lens: [num_seqs] tokens. Lengths spread evenly waste (block_size - 1) / 2 slots a sequence.

    >>> paged_memory([1, 16, 17, 100], 16)
    Memory(stored=134, reserved=176)
    """
    seq_lens = checked_lengths(seq_lens)
    block_size = whole("block_size", block_size, 1, 2**31 - 1)
    return Memory(int(seq_lens.sum()), int((-(-seq_lens // block_size)).sum()) * block_size)


def block_sweep(seq_lens, max_seq_len, block_sizes=(1, 16, 64, 256)):
    """What each block size makes of these sequences: a pandas frame, a row a block size.

    Columns, in token slots: block_size, blocks, reserved, wasted, utilization, saving (what contiguous_memory reserves
    / reserved; NaN for no sequences), table_entries (block ids in a sequence's row of the block table:
    max_seq_len / block_size, rounded up). Raises RequestTooLarge if a sequence is longer than max_seq_len.

    >>> block_sweep([1, 16, 17, 100], 128)[["block_size", "blocks", "wasted", "table_entries"]].values.tolist()
    [[1, 134, 0, 128], [16, 11, 42, 8], [64, 5, 186, 2], [256, 4, 890, 1]]
    """
    seq_lens = checked_lengths(seq_lens)
    contiguous = contiguous_memory(seq_lens, max_seq_len)
    sizes = [whole("block_size", size, 1, 2**31 - 1) for size in block_sizes]
    memories = [paged_memory(seq_lens, size) for size in sizes]
    sweep = pd.DataFrame({
        "block_size": sizes,
        "blocks": [memory.reserved // size for size, memory in zip(sizes, memories)],
        "reserved": [memory.reserved for memory in memories],
        "wasted": [memory.wasted for memory in memories],
        "utilization": [memory.utilization for memory in memories],
    })
    sweep["saving"] = contiguous.reserved / sweep.reserved
    sweep["table_entries"] = [-(-int(max_seq_len) // size) for size in sizes]
    return sweep


def capacity(num_slots, seq_len, block_size):
    """How many sequences of seq_len tokens a pool of num_slots token slots holds, each in whole blocks.

    A contiguous cache is the case of one huge block: block_size = max_seq_len.

    >>> capacity(65_536, 640, 16), capacity(65_536, 640, 2048)
    (102, 32)
    """
    block_size = whole("block_size", block_size, 1)
    return whole("num_slots", num_slots) // block_size // -(-whole("seq_len", seq_len, 1) // block_size)


def checked_lengths(seq_lens):
    """seq_lens as int64 [num_seqs]; raises ValueError unless they are whole numbers from 0 to 2^31 - 1."""
    lengths = np.asarray(seq_lens)
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise ValueError(f"sequence lengths are a row of whole numbers, not {lengths.dtype} {list(lengths.shape)}")
    for i in (lengths.argmin(), lengths.argmax()) if lengths.size else ():
        whole(f"seq_lens[{i}]", lengths[i], 0, 2**31 - 1)
    return lengths.astype(np.int64)
