"""What reserving memory for a request's whole length costs: the schemes of Fig. 2 of the PagedAttention paper."""

from collections import deque
from heapq import heappop, heappush

import numpy as np
import pandas as pd

from .blocks import BlockPool, BlockTable
from .buddy import BuddyAllocator
from .errors import OutOfBlocks, RequestTooLarge, whole
from .memory import checked_lengths
from .paper import MAX_SEQ_LEN, NUM_SLOTS, SHARES

POWERS = 2 ** np.arange(32)
# How many slots a request gets when it is admitted; prompts, outputs: int64 [num_requests].
SCHEMES = {
    "max": lambda prompts, outputs, longest: np.full(len(prompts), longest),
    "pow2": lambda prompts, outputs, longest: np.minimum(prompts + POWERS[np.searchsorted(POWERS, outputs)], longest),
    "oracle": lambda prompts, outputs, longest: prompts + outputs,
}
WARM_UP = 0.1  # the share of the requests that are admitted before anything is counted


def memory_shares(prompts, outputs, num_slots=NUM_SLOTS, max_seq_len=MAX_SEQ_LEN, block_size=16, schemes=SCHEMES):
    """What the slots of a server with a queue are used for, on average over time.

    prompts, outputs: [num_requests] tokens. The first in line is admitted, with its prompt, as soon as its memory is there;
    nobody passes it. A step gives each live request one output token; those that are complete leave. What is counted: the
    steps from the admission of a tenth of the requests to that of the last, so that there is always a queue.
    schemes: {name: how many slots to reserve}, taken from a buddy allocator; "paged" comes after them, blocks on demand.

    Returns a pandas frame, a row a scheme: the shares of num_slots that hold tokens (stored), that a live request has and
    will fill (reserved_later), that it has and will never fill (internal), and the rest: free slots, and what a piece of a
    power of two has beyond the reservation (external). Then batch, the live requests. Raises RequestTooLarge if a request
    can never be admitted, ValueError if there is no queue.
    """
    prompts, outputs = checked_lengths(prompts), checked_lengths(outputs)
    if not 0 < len(prompts) == len(outputs) or min(prompts.min(), outputs.min()) < 1:
        raise ValueError(f"{len(prompts)} prompts and {len(outputs)} outputs, of at least one token each")
    total = prompts + outputs
    pool = BlockPool(whole("num_slots", num_slots, 1) // whole("block_size", block_size, 1), block_size)
    if total.max() > min(max_seq_len, pool.num_blocks * block_size):
        raise RequestTooLarge(f"{total.max():,} tokens; {max_seq_len:,} are allowed, and {num_slots:,} slots are there, "
                              f"in blocks of {block_size}")
    reserved = {name: checked_lengths(slots(prompts, outputs, max_seq_len)) for name, slots in schemes.items()}
    for name, slots in reserved.items():
        if (slots < total).any():
            i = (slots < total).argmax()
            raise ValueError(f"{name} reserves {slots[i]:,} slots for request {i}, which has {total[i]:,} tokens")
    rows = {name: _reserving(prompts, outputs, slots, num_slots) for name, slots in reserved.items()}
    rows["paged"] = _paged(prompts, outputs, pool, num_slots)
    return pd.DataFrame(rows, index=[*SHARES, "batch"]).T


def _reserving(prompts, outputs, reserved, num_slots):
    """From one departure to the next; nothing else changes who is live."""
    memory, live, now, starts = BuddyAllocator(num_slots), [], 0, []
    for output, slots in zip(outputs.tolist(), reserved.tolist()):
        while not memory.fits(slots):
            now = live[0][0]
            while live and live[0][0] == now:
                memory.free(heappop(live)[1])
        heappush(live, (now + output, memory.allocate(slots)))
        starts.append(now)
    # A request's own steps are 1 to output; of these, first + 1 to last are counted.
    begin, end = starts[int(WARM_UP * len(starts))], now
    first, last = (np.clip(step - np.array(starts), 0, outputs) for step in (begin, end))
    steps = last - first
    stored = (steps * prompts + (last * (last + 1) - first * (first + 1)) // 2).sum()
    total, reserved = (steps * (prompts + outputs)).sum(), (steps * reserved).sum()
    return _shares([stored, total - stored, reserved - total, steps.sum()], end - begin, num_slots)


def _paged(prompts, outputs, pool, num_slots):
    """Step by step. When a block is missing the newest request gives back all that it has, and is first in line again; it
    comes back with the tokens it had, as if computing them again cost nothing."""
    total, tokens, size = (prompts + outputs).tolist(), prompts.tolist(), pool.block_size
    waiting, live, newest, steps, sums = deque(range(len(total))), [], -1, 0, np.zeros(4, np.int64)
    while True:
        while waiting and -(-(tokens[waiting[0]] + 1) // size) <= pool.num_free:
            live.append((waiting.popleft(), BlockTable(pool)))
            live[-1][1].append(tokens[live[-1][0]])
            newest = max(newest, live[-1][0])
        if newest == len(total) - 1:
            return _shares(sums, steps, num_slots)
        i = 0
        while i < len(live):
            try:
                live[i][1].append()
                i += 1
            except OutOfBlocks:
                request, table = live.pop()
                tokens[request] = table.num_tokens
                table.free()
                waiting.appendleft(request)
        if newest >= int(WARM_UP * len(total)):
            has = [(table.num_tokens, len(table.blocks) * size, total[request]) for request, table in live]
            later = sum(min(slots, end) - stored for stored, slots, end in has)
            internal = sum(max(slots - end, 0) for _, slots, end in has)
            sums += [sum(stored for stored, _, _ in has), later, internal, len(has)]
            steps += 1
        for request, table in live:
            if table.num_tokens == total[request]:
                table.free()
        live = [(request, table) for request, table in live if table.blocks]


def _shares(sums, steps, num_slots):
    if not steps:
        raise ValueError("too few requests: the last is admitted as soon as the first that are counted")
    stored, later, internal, batch = np.array(sums) / steps
    return [*np.array([stored, later, internal, num_slots - stored - later - internal]) / num_slots, batch]
