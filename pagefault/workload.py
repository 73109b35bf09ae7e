"""How long the requests are: seeded mixes of lengths, the same on every machine."""

import numpy as np

from .errors import whole

# Mixes of lengths: (share, shortest, longest), bounds included.
PUBLISHED_MIX = ((0.5, 32, 128), (0.3, 256, 512), (0.2, 1024, 2048))
MIXES = {
    "published": PUBLISHED_MIX,
    "short chats": ((1.0, 32, 128),),
    "medium chats": ((1.0, 256, 512),),
    "uniform": ((1.0, 1, 2048),),
    "long documents": ((1.0, 1024, 2048),),
}


def mixed_lengths(num_seqs, seed, mix=PUBLISHED_MIX):
    """Draw num_seqs sequence lengths from a mix; int64 [num_seqs].

    With PUBLISHED_MIX and seed 42 or 7 these are the lengths behind a published memory table, bit for bit: C++'s
    std::mt19937(seed), for each sequence one raw number that picks the kind, then a length as libc++'s
    uniform_int_distribution draws it (so many random bits as the range needs, drawn again when beyond it).

    >>> mixed_lengths(6, 42).tolist()
    [83, 1145, 118, 106, 1895, 386]
    """
    shares = [float(share) for share, _, _ in mix]
    if not abs(sum(shares) - 1) < 1e-9 or min(shares) < 0:
        raise ValueError(f"the shares of a mix are positive and add up to 1, not {shares}")
    for i, (_, lo, hi) in enumerate(mix):
        whole(f"the longest of part {i}", hi, whole(f"the shortest of part {i}", lo, 1), 2**31 - 1)
    raw = np.random.RandomState(whole("seed", seed, 0, 2**32 - 1))
    edges = np.cumsum(shares)[:-1]
    return np.array([_length(raw, edges, mix) for _ in range(whole("num_seqs", num_seqs))], np.int64)


def _length(raw, edges, mix):
    p = np.float32(_draw(raw)) * np.float32(2.0**-32)
    _, lo, hi = mix[int(np.searchsorted(edges, p, side="right"))]
    values = int(hi) - int(lo) + 1
    bits = (values - 1).bit_length()
    while bits:
        more = _draw(raw) & ((1 << bits) - 1)
        if more < values:
            return lo + more
    return lo


def _draw(raw):
    return int(raw.randint(0, 2**32, dtype=np.uint32))
