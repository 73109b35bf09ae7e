"""How long requests are and when they come: seeded mixes and arrivals, the same on every machine."""

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
            return int(lo) + more
    return int(lo)


def _draw(raw):
    return int(raw.randint(0, 2**32, dtype=np.uint32))


def poisson_arrivals(num_requests, rate, seed):
    """When requests come that know nothing of each other, `rate` a second; int64 [num_requests] nanoseconds, the first at 0.

    >>> poisson_arrivals(4, 2.0, seed=0).tolist()
    [0, 81681557, 190475267, 280831923]
    """
    return bursty_arrivals(num_requests, rate, 1, seed)


def bursty_arrivals(num_requests, rate, cv, seed, burst_rate=None):
    """When requests come, `rate` a second, in gaps whose standard deviation is cv times their mean; int64 [num_requests]
    nanoseconds, ascending, the first at 0.

    The gaps have a gamma distribution: cv = 1 makes a Poisson process, less is more even, more comes in bursts. With
    burst_rate a gap is exponential, and is either one within a burst, of burst_rate requests a second, or a pause; how
    long and how frequent pauses are follows from rate and cv.
    """
    num_gaps = max(0, whole("num_requests", num_requests) - 1)
    rate, cv, burst_rate = float(rate), float(cv), None if burst_rate is None else float(burst_rate)
    if not (1e-9 <= rate <= 1e9 and 0.01 <= cv <= 100):
        raise ValueError(f"rate = {rate:g} is from 1e-09 to 1e+09, and cv = {cv:g} from 0.01 to 100")
    if burst_rate is not None and not (cv > 1 and 1.001 * rate <= burst_rate <= 1e9):
        raise ValueError(f"for pauses, cv = {cv:g} is above 1, and burst_rate = {burst_rate:g} above rate = {rate:g}")
    gaps, mean = stream(seed, 0), 1 / rate
    if burst_rate is None:
        gaps = gaps.standard_gamma(1 / (cv * cv), num_gaps) * (cv * cv * mean)
    else:
        # Two unknowns, a pause and the share of pauses, from two means: of the gaps, mean, and of their squares,
        # (1 + cv^2) mean^2. An exponential gap's square has twice the square of its mean.
        short = 1 / burst_rate
        pause = ((1 + cv * cv) / 2 * mean * mean - short * short) / (mean - short) - short
        pauses = stream(seed, 1).random_sample(num_gaps) < (mean - short) / (pause - short)
        gaps = gaps.standard_exponential(num_gaps) * np.where(pauses, pause, short)
    if gaps.sum() > 9e9:
        raise ValueError(f"{num_requests:,} requests, {rate:g} a second: more nanoseconds than 64 bits count")
    return np.concatenate([[0], np.cumsum(np.rint(gaps * 1e9).astype(np.int64))])[:num_requests]


def stream(seed, number):
    """Random numbers for one use of a seed: gaps from the very numbers that lengths are drawn from would follow the lengths."""
    return np.random.RandomState([whole("seed", seed, 0, 2**32 - 1), number])
