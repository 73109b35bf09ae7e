"""A cost of steps, fitted to measured ones."""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from .costs import fed

KNEES = np.geomspace(8, 4096, 91)


@dataclass(frozen=True)
class FittedCost:
    """fixed + weights * hypot(1, tokens / knee) + context tokens * each + prompt pairs * each: RooflineCost's form.

    All in nanoseconds. Moving n blocks takes moving_ns + n * block_ns. fixed and weights can only be told apart where many
    steps have more tokens than knee.
    """

    fixed_ns: float
    weights_ns: float
    knee_tokens: float
    context_ns: float
    pair_ns: float
    moving_ns: float = 0.0
    block_ns: float = 0.0

    def compute_ns(self, batch):
        """Nanoseconds of a batch, without its swaps."""
        if not batch.decode and not batch.prefill:
            return 0
        tokens, context, pairs = fed(batch)
        x = tokens / self.knee_tokens
        return round(self.fixed_ns + self.weights_ns * sqrt(1 + x * x) + self.context_ns * context + self.pair_ns * pairs)

    def transfer_ns(self, num_blocks, block_size):
        """Nanoseconds to move so many blocks between the pool and the host."""
        return round(self.moving_ns + self.block_ns * num_blocks) if num_blocks else 0


def fit_cost(log, swaps=()):
    """The FittedCost with the least squared error on an Engine's log; swaps: (blocks, nanoseconds) that moves took.

    The terms are the least squares of each of some knees; one that would be negative is left out. Raises ValueError for a log
    of fewer than 10 steps.
    """
    steps = np.array([row[:4] for row in log if row[0]], np.float64)
    if len(steps) < 10:
        raise ValueError(f"{len(steps)} steps, and 10 are needed at least")
    tokens, context, pairs, ns = steps.T
    fits = []
    for knee in KNEES:
        columns = np.stack([np.ones(len(ns)), np.sqrt(1 + (tokens / knee) ** 2), context, pairs], axis=1)
        terms = _not_negative(columns, ns)
        fits.append((float(((columns @ terms - ns) ** 2).sum()), float(knee), terms.tolist()))
    _, knee, (fixed, weights, each, pair) = min(fits)
    moving, block = 0.0, 0.0
    if len(swaps):
        blocks, took = np.array(swaps, np.float64).T
        moving, block = _not_negative(np.stack([np.ones(len(took)), blocks], axis=1), took).tolist()
    return FittedCost(fixed, weights, knee, each, pair, moving, block)


def _not_negative(columns, values):
    """Least squares, without the columns that would get a negative factor."""
    kept = list(range(columns.shape[1]))
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0] = 1
    while True:
        factors = np.linalg.lstsq(columns[:, kept] / scale[kept], values, rcond=None)[0] / scale[kept]
        if factors.min() >= 0:
            terms = np.zeros(columns.shape[1])
            terms[kept] = factors
            return terms
        kept.pop(int(np.argmin(factors * scale[kept])))
