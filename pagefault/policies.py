"""Who may start, and who gives way: plain functions, so that a notebook cell can bring its own.

An admission rule is asked may(seq, scheduler): may the first in line start? It can look at scheduler.num_free, num_blocks,
blocks_to_start(seq), running, steps, last_preemption. A victim rule is asked victim(needy, running): which sequence of
running, those that can be preempted in the order they started, gives its blocks to the needy one, itself among them?
"""

import numpy as np


def watermark(share):
    """Start a sequence if `share` of the pool stays free: room in which the running ones grow.

    A rule that, like this one, says yes to more free blocks whenever it says yes to fewer, and looks at nothing else,
    may say so (`of_free_blocks`): a jumping run then asks it only when blocks were given back.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share = {share} of the pool, it is from 0 to below 1")

    def may(seq, scheduler):
        return scheduler.num_free - scheduler.blocks_to_start(seq) >= share * scheduler.num_blocks

    may.of_free_blocks, may.__name__ = True, f"watermark({share:g})"
    return may


def optimistic(seq, scheduler):
    """Start a sequence if there are blocks for what it has to begin with."""
    return scheduler.blocks_to_start(seq) <= scheduler.num_free


optimistic.of_free_blocks = True


def decaying(start=0.7, floor=0.1, steps=1000):
    """Start a sequence if the blocks suffice for a part of what it and the running ones may still produce.

    The part is `start` after a preemption and at first, and falls to `floor` in so many steps without one. An oracle: it
    takes a part of what they really will produce, where SGLang's scheduler, whose idea it is, knows but a maximum.
    """
    if not 0 <= floor <= start or steps < 1:
        raise ValueError(f"start = {start}, floor = {floor}, steps = {steps}: 0 <= floor <= start and 1 <= steps are needed")

    def may(seq, scheduler):
        quiet = min(1, (scheduler.steps - scheduler.last_preemption) / steps)
        part = start - (start - floor) * quiet
        expected = sum(s.remaining for s in scheduler.running) + seq.total_tokens - seq.start_tokens
        return scheduler.blocks_to_start(seq) + part * expected / scheduler.block_size <= scheduler.num_free

    may.__name__ = f"decaying({start:g}, {floor:g}, {steps})"
    return may


def requester(needy, running):
    """The one that needs a block gives up its own."""
    return needy


def newest(needy, running):
    """The one that started last."""
    return running[-1]


def oldest(needy, running):
    """The one that started first."""
    return running[0]


def least_lost(needy, running):
    """The one with the fewest tokens to do again; of equals the newest."""
    return min(reversed(running), key=lambda s: s.loss)


def most_remaining(needy, running):
    """The one with the most tokens still to produce; of equals the newest."""
    return max(reversed(running), key=lambda s: s.remaining)


def most_blocks(needy, running):
    """The one with the most blocks; of equals the newest."""
    return max(reversed(running), key=lambda s: s.num_blocks)


def random_victim(seed=0):
    """A rule that picks anyone; what it picks depends on the seed and on what was done before, and on nothing else."""

    def victim(needy, running):
        numbers = [seed, needy.number, needy.num_tokens, sum(s.preemptions for s in running), len(running)]
        return running[np.random.RandomState(numbers).randint(len(running))]

    victim.__name__ = f"random_victim({seed})"
    return victim


VICTIMS = {"requester": requester, "newest": newest, "oldest": oldest, "least-lost": least_lost,
           "most-remaining": most_remaining, "most-blocks": most_blocks, "random": random_victim(0)}
