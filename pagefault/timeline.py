"""Who does what in each step of a scheduler: in line, running, stalled, or doing again what was lost."""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from .blocks import BlockPool
from .errors import Deadlock
from .scheduler import Scheduler

IN_LINE, RUNS, STALLS, REDOES = range(4)


@dataclass(frozen=True, eq=False)
class Timeline:
    """states: int8 [requests, steps]; tokens: int32 [requests, steps] after the step; free: blocks, int32 [steps];
    preempted: (request, step) pairs; deadlock: the error's text, or None."""

    states: np.ndarray
    tokens: np.ndarray
    free: np.ndarray
    preempted: tuple
    deadlock: str | None

    @property
    def redone(self):
        """Tokens that were decoded again."""
        return int((self.states == REDOES).sum())


def timeline(requests, num_blocks=4096, block_size=16, **rules):
    """Play requests, which are all there at the start, through a Scheduler with these rules; returns a Timeline.

    It ends with the last request, or where all wait for each other.

    >>> from pagefault.requests import Request
    >>> timeline([Request(4, 3), Request(4, 2)], num_blocks=4, block_size=4).states.tolist()
    [[1, 1, 1], [1, 1, 0]]
    """
    scheduler = Scheduler(BlockPool(num_blocks, block_size), **rules)
    for request in requests:
        scheduler.submit(request)
    most, columns, preempted, deadlock = [request.prompt_tokens for request in requests], [], [], None
    while scheduler.unfinished:
        try:
            batch = scheduler.step()
        except Deadlock as error:
            deadlock = str(error)
            break
        states, tokens = np.zeros(len(requests), np.int8), np.zeros(len(requests), np.int32)
        for seq in batch.decode:
            tokens[seq.number] = seq.num_tokens or seq.total_tokens  # of one that ended, the blocks are given back
            states[seq.number] = RUNS if tokens[seq.number] > most[seq.number] else REDOES
            most[seq.number] = max(most[seq.number], int(tokens[seq.number]))
        for seq in batch.stalled:
            if seq.active:
                states[seq.number], tokens[seq.number] = STALLS, seq.num_tokens
        preempted += [(seq.number, batch.step) for seq in batch.preempted]
        columns.append((states, tokens, scheduler.num_free))
    states, tokens, free = zip(*columns)
    return Timeline(np.array(states).T, np.array(tokens).T, np.array(free, np.int32), tuple(preempted), deadlock)


def seats(states):
    """The same states by seat instead of by request: who starts takes the lowest free one, until it ends or is thrown out.

    >>> seats(np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 2]], np.int8)).tolist()
    [[1, 1, 0, 0], [1, 1, 1, 2]]
    """
    here = states != IN_LINE
    found = np.zeros((int(here.sum(0).max(initial=0)), states.shape[1]), states.dtype)
    edges = np.argwhere(np.diff(here, prepend=False, append=False)).tolist()  # of each request a start, its end, a start ...
    empty, taken = list(range(len(found))), []
    for start, request, end in sorted((a[1], a[0], b[1]) for a, b in zip(edges[::2], edges[1::2])):
        while taken and taken[0][0] <= start:
            heappush(empty, heappop(taken)[1])
        seat = heappop(empty)
        heappush(taken, (end, seat))
        found[seat, start:end] = states[request, start:end]
    return found
