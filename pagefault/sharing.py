"""Blocks that the sequences of one request share: Fig. 15 of the PagedAttention paper, on real block tables."""

import numpy as np

from .blocks import BlockPool, BlockTable
from .errors import whole
from .memory import checked_lengths
from .paper import ALPACA, FIGURE_15, SHAREGPT, paper_lengths

SWAP = 0.22  # fitted to one bar of Fig. 15: beam search of width 4 on Alpaca


def parallel_sampling(prompts, outputs, n, block_size=16):
    """The share of their blocks that n samples of each prompt save by sharing, from 0 to (n - 1) / n.

    prompts, outputs: [num_requests] tokens; all samples of a request are equally long. They share the prompt's blocks; the
    last one, if it has room, is copied when a sample first writes. Saved are the blocks that the pool needn't hand out /
    the blocks that n sequences on their own have, both summed over all steps of all requests: what a server sees on
    average over time, where a request counts for as long as it stays and for what it takes.

    >>> parallel_sampling([32], [16], 4)  # two blocks shared by four, and one more for each: 6 for 12
    0.5
    """
    return _saved(prompts, outputs, whole("n", n, 1), 0.0, block_size, 0)


def beam_search(prompts, outputs, width, swap=SWAP, block_size=16, seed=0):
    """The share of their blocks that the beams of each prompt save by sharing, counted as parallel_sampling does.

    All that isn't known from the lengths is which beams go on. Here, in a share `swap` of the steps, drawn at random, the
    best beam's second best token beats the last beam, which is dropped: the best beam is forked, and its copy comes
    second. In all other steps each beam goes on by one token. Raises ValueError if swap isn't from 0 to 1.
    """
    if not 0 <= swap <= 1:
        raise ValueError(f"swap = {swap}, it is a share of the steps")
    return _saved(prompts, outputs, whole("width", width, 2), swap, block_size, seed)


def _saved(prompts, outputs, n, swap, block_size, seed):
    random, used, alone = np.random.RandomState(whole("seed", seed, 0, 2**32 - 1)), 0, 0
    prompts, outputs = checked_lengths(prompts).tolist(), checked_lengths(outputs).tolist()
    if not 0 < len(prompts) == len(outputs) or min(*prompts, *outputs) < 1:
        raise ValueError(f"{len(prompts)} prompts and {len(outputs)} outputs, of at least one token each")
    block_size = whole("block_size", block_size, 1)
    pool = BlockPool(n * -(-(max(prompts) + max(outputs)) // block_size), block_size)
    for prompt, left in zip(prompts, outputs):
        best = BlockTable(pool)
        best.append(prompt)
        beams = [best] + [best.fork() for _ in range(n - 1)]
        until_swap = random.geometric(swap) if swap else left
        while left:
            steps = min(left, until_swap, block_size - best.num_tokens % block_size)  # the same blocks for so many steps
            for beam in beams:
                beam.append(steps)
            used, alone = used + steps * pool.num_used, alone + steps * n * len(best.blocks)
            left, until_swap = left - steps, until_swap - steps
            if left and not until_swap:
                beams.pop().free()
                beams.insert(1, best.fork())
                until_swap = random.geometric(swap)
        for beam in beams:
            beam.free()
    return 1 - used / alone


def figure_15(num_requests=300, seed=0, swap=SWAP):
    """Fig. 15 beside ours: a pandas frame with the columns method, data, n, paper, ours, off (ours - paper) and how.

    how: "fitted" is the one bar that SWAP comes from; all others are predicted, parallel sampling from the lengths alone.
    The paper gives a range for ShareGPT; its ends are taken as n = 2 and n = 6. Beam search on ShareGPT is the one that
    comes out wrong, by 4 and 12 points: its beams would have to swap in one step of 42, not of 5. With swap = 0.024, fitted
    to the first of the two bars, the second is 3 points off.
    """
    lengths = {name: paper_lengths(num_requests, seed, means) for name, means in (("Alpaca", ALPACA), ("ShareGPT", SHAREGPT))}
    ours = [beam_search(*lengths[row.data], row.n, swap, seed=seed) if row.method == "beam search" else
            parallel_sampling(*lengths[row.data], row.n) for row in FIGURE_15.itertuples()]
    fitted = FIGURE_15.eval("method == 'beam search' and data == 'Alpaca' and n == 4")
    return FIGURE_15.assign(ours=ours, off=ours - FIGURE_15.paper, how=np.where(fitted, "fitted", "predicted"))
