"""How long the requests are: seeded mixes of lengths, the same on every machine."""

import numpy as np

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
    if num_seqs < 0:
        raise ValueError(f"num_seqs = {num_seqs}")
    shares = [share for share, _, _ in mix]
    if abs(sum(shares) - 1) > 1e-9 or min(shares) < 0:
        raise ValueError(f"the shares of a mix add up to 1, not to {sum(shares):g}")
    for _, lo, hi in mix:
        if not 1 <= lo <= hi:
            raise ValueError(f"lengths from {lo} to {hi}: 1 <= shortest <= longest is needed")
    raw = np.random.RandomState(seed)
    edges = np.cumsum(shares)[:-1]
    return np.array([_length(raw, edges, mix) for _ in range(num_seqs)], np.int64)


def _length(raw, edges, mix):
    p = np.float32(_draw(raw)) * np.float32(2.0**-32)
    _, lo, hi = mix[int(np.searchsorted(edges, p, side="right"))]
    values = hi - lo + 1
    bits = (values - 1).bit_length()
    while bits:
        more = _draw(raw) & ((1 << bits) - 1)
        if more < values:
            return lo + more
    return lo


def _draw(raw):
    return int(raw.randint(0, 2**32, dtype=np.uint32))
