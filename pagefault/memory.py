"""Memory that is reserved against memory that holds tokens, counted exactly."""

from dataclasses import dataclass

import numpy as np

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


def checked_lengths(seq_lens):
    """seq_lens as int64 [num_seqs]; raises ValueError unless they are whole numbers from 0 to 2^31 - 1."""
    lengths = np.asarray(seq_lens)
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise ValueError(f"sequence lengths are a row of whole numbers, not {lengths.dtype} {list(lengths.shape)}")
    for i in (lengths.argmin(), lengths.argmax()) if lengths.size else ():
        whole(f"seq_lens[{i}]", lengths[i], 0, 2**31 - 1)
    return lengths.astype(np.int64)
