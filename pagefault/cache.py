"""K and V of cached tokens, as arrays."""

import numpy as np

from .errors import RequestTooLarge


class ContiguousCache:
    """A KV cache that reserves max_seq_len slots for each sequence, one behind the other.

    k, v: [num_seqs, max_seq_len, num_kv_heads, head_dim], of dtype, in NumPy (xp=numpy) or on a GPU (xp=cupy);
    seq_lens: int32 [num_seqs], NumPy's, the tokens that each sequence holds. Slots that hold no token are NaN,
    so that a kernel which reads one shows it.
    """

    def __init__(self, num_seqs, max_seq_len, num_kv_heads, head_dim, dtype=np.float32, xp=np):
        for name, n in dict(num_seqs=num_seqs, max_seq_len=max_seq_len, num_kv_heads=num_kv_heads, head_dim=head_dim).items():
            if n < 1:
                raise ValueError(f"{name} = {n}, it is at least 1")
        shape = (num_seqs, max_seq_len, num_kv_heads, head_dim)
        self.k, self.v = (xp.full(shape, np.nan, dtype) for _ in "kv")
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
        k, v = (self.xp.asarray(x) for x in (k, v))
        k, v = (x[None] if x.ndim == 2 else x for x in (k, v))
        if k.shape != v.shape or k.shape[1:] != self.k.shape[2:]:
            raise ValueError(f"k {list(k.shape)} and v {list(v.shape)} are both [tokens, {self.k.shape[2]}, {self.k.shape[3]}]")
        self._check(seq)
        start, end = int(self.seq_lens[seq]), int(self.seq_lens[seq]) + len(k)
        if end > self.k.shape[1]:
            raise RequestTooLarge(f"sequence {seq} would have {end} tokens, and {self.k.shape[1]} are reserved for it")
        self.k[seq, start:end], self.v[seq, start:end] = k, v
        self.seq_lens[seq] = end

    def read(self, seq):
        """K and V of the tokens that sequence seq holds, [seq_len, num_kv_heads, head_dim] each."""
        self._check(seq)
        return self.k[seq, : self.seq_lens[seq]], self.v[seq, : self.seq_lens[seq]]

    def free(self, seq):
        """Forget all tokens of sequence seq."""
        self._check(seq)
        self.k[seq] = self.v[seq] = np.nan
        self.seq_lens[seq] = 0

    def _check(self, seq):
        if not 0 <= seq < len(self.seq_lens):
            raise IndexError(f"sequence {seq} of {len(self.seq_lens)}")
