"""K and V of cached tokens, as arrays."""

import numpy as np

from .errors import RequestTooLarge, whole


class ContiguousCache:
    """A KV cache that reserves max_seq_len slots for each sequence, one behind the other.

    k, v: [num_seqs, max_seq_len, num_kv_heads, head_dim], of dtype, in NumPy (xp=numpy) or on a GPU (xp=cupy);
    seq_lens: int32 [num_seqs], NumPy's, the tokens that each sequence holds. Slots that hold no token are NaN,
    so that a kernel which reads one shows it.
    """

    def __init__(self, num_seqs, max_seq_len, num_kv_heads, head_dim, dtype=np.float32, xp=np):
        shape = dict(num_seqs=num_seqs, max_seq_len=max_seq_len, num_kv_heads=num_kv_heads, head_dim=head_dim)
        shape = tuple(whole(name, n, 1) for name, n in shape.items())
        if np.dtype(dtype).kind != "f":
            raise TypeError(f"dtype = {np.dtype(dtype)}, a floating-point type is needed")
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
        k, v = (self._numbers(x) for x in (k, v))
        if k.shape != v.shape or k.shape[1:] != self.k.shape[2:]:
            raise ValueError(f"k {list(k.shape)} and v {list(v.shape)} are both [tokens, {self.k.shape[2]}, {self.k.shape[3]}]")
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

    def _numbers(self, x):
        """Some tokens' K or V in the cache's dtype, [tokens, num_kv_heads, head_dim]."""
        x = self.xp.asarray(x)
        if x.dtype.kind not in "fiu":
            raise TypeError(f"K and V are real numbers, not {x.dtype}")
        with np.errstate(over="ignore"):
            cast = x.astype(self.k.dtype, copy=False)
        if x.dtype != cast.dtype and bool((self.xp.isinf(cast) & self.xp.isfinite(x)).any()):
            raise ValueError(f"a number up to {float(abs(x).max()):g} is beyond {cast.dtype}")
        return cast[None] if x.ndim == 2 else cast
