"""The published serving experiment, as short as it can be said: a plain loop that the scheduler is held against."""

from collections import deque

from pagefault import BlockPool, mixed_lengths
from pagefault.requests import Request
from pagefault.scheduler import Scheduler


def published_jobs(num_jobs, seed):
    """(prompt, total) tokens of each job."""
    return [(max(1, min(total // 4, 320)), total) for total in mixed_lengths(num_jobs, seed).tolist()]


def play(jobs, workers=128, num_blocks=4096, block_size=16, reserve=None, watermark=0.0, patience=32, as_scheduler=False):
    """Steps, preemptions, tokens decoded in all steps (those lost later too), tokens lost.

    A step gives a token to each live job in the order they started. A job whose last page is full, with no page free,
    stalls, and at its failed step number patience + 1 gives up its pages and goes back to the front of the line, to start
    over. The pages of a job that ends serve those behind it in the same step. as_scheduler: its two rules instead, back in
    order of arrival, and pages that are free only after the step.
    """
    free, line, live = num_blocks, deque(range(len(jobs))), []
    steps = preemptions = decoded = lost = 0
    while line or live:
        while line and len(live) < workers:
            pages = -(-(reserve or jobs[line[0]][0]) // block_size)
            if pages > free or (live and not reserve and free - pages < watermark * num_blocks):
                break
            free -= pages
            live.append([line[0], jobs[line[0]][0], pages, 0])  # job, tokens, pages, failed steps
            line.popleft()
        steps, still, later = steps + 1, [], 0
        for state in live:
            job, tokens, pages, failed = state
            if tokens == pages * block_size:
                if not free and failed < patience:
                    state[3] += 1
                    still.append(state)
                    continue
                if not free:
                    free, preemptions, lost = free + pages, preemptions + 1, lost + tokens - jobs[job][0]
                    line.appendleft(job)
                    if as_scheduler:
                        line = deque(sorted(line))
                    continue
                free, state[2], state[3] = free - 1, pages + 1, 0
            state[1], decoded = tokens + 1, decoded + 1
            if tokens + 1 < jobs[job][1]:
                still.append(state)
            elif as_scheduler:
                later += state[2]
            else:
                free += state[2]
        live, free = still, free + later
    return steps, preemptions, decoded, lost


def run(jobs, num_blocks=4096, block_size=16, **rules):
    """The same figures of the scheduler."""
    scheduler = Scheduler(BlockPool(num_blocks, block_size), **rules)
    for prompt, total in jobs:
        scheduler.submit(Request(prompt, total - prompt))
    decoded = 0
    while scheduler.unfinished:
        decoded += len(scheduler.step().decode)
    scheduler.settle()
    assert scheduler.pool.num_used == 0
    return scheduler.steps, scheduler.preemptions, decoded, scheduler.lost_tokens
