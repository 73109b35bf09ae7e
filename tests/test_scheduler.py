from functools import partial

import pytest
from published import play, published_jobs, run

from pagefault import BlockPool, OutOfBlocks, PrefixCache, RequestTooLarge
from pagefault.errors import Deadlock, Livelock
from pagefault.policies import (
    VICTIMS,
    decaying,
    least_lost,
    most_remaining,
    newest,
    oldest,
    optimistic,
    random_victim,
    requester,
    watermark,
)
from pagefault.requests import Request
from pagefault.scheduler import Scheduler

# Watermark, workers: preemptions, mean decoding, throughput over naive, of the published rule (512 jobs, seed 42).
PUBLISHED = {(0, 128): (388, 39.4, 0.70), (0.02, 128): (41, 56.4, 1.79), (0.05, 128): (24, 57.4, 1.93),
             (0.1, 128): (11, 60.4, 2.10), (0.3, 128): (0, 59.8, 2.15), (0.5, 128): (0, 43.4, 1.56),
             (0.05, 256): (78, 60.8, 1.96), (0, 256): (428, 39.5, 0.69)}
# The same in the scheduler's own rules: back in order of arrival, blocks free after the step.
OWN = {(0, 128): (397, 39.0, 0.72), (0.02, 128): (55, 55.7, 1.79), (0.05, 128): (27, 58.6, 2.00), (0.1, 128): (11, 60.4, 2.10),
       (0.3, 128): (0, 59.8, 2.15), (0.5, 128): (0, 43.4, 1.56)}
NAIVE_STEPS = 7418
JOBS = published_jobs(512, 42)
PUBLISHED_RULE = dict(victim=requester, patience=32, like_threads=True)


def figures(steps, preemptions, decoded, lost):
    return preemptions, round(decoded / steps, 1), round(NAIVE_STEPS / steps, 2)


def test_the_naive_server():
    assert sum(total for _, total in JOBS) == 262_257
    assert play(JOBS, reserve=2048) == run(JOBS, reserve=2048) == (NAIVE_STEPS, 0, 206_529, 0)
    assert round(206_529 / NAIVE_STEPS, 1) == 27.8


@pytest.mark.parametrize("share, workers", PUBLISHED)
def test_the_published_rule_to_every_digit(share, workers):
    loop = play(JOBS, watermark=share, workers=workers)
    assert figures(*loop) == PUBLISHED[share, workers]
    assert run(JOBS, admission=watermark(share), workers=workers, **PUBLISHED_RULE) == loop


@pytest.mark.parametrize("share, workers", OWN)
def test_what_the_schedulers_own_two_rules_change(share, workers):
    loop = play(JOBS, watermark=share, workers=workers, as_scheduler=True)
    assert figures(*loop) == OWN[share, workers]
    assert run(JOBS, admission=watermark(share), victim=requester, patience=32) == loop


HAND = [(2, 14), (8, 14), (5, 13)]


def timeline(jobs, num_blocks=8, block_size=4, **rules):
    """What each request does in each step: + a token, F its last one, s stalled, X preempted, . not running."""
    scheduler, rows = Scheduler(BlockPool(num_blocks, block_size), **rules), []
    for prompt, total in jobs:
        scheduler.submit(Request(prompt, total - prompt))
    while scheduler.unfinished:
        batch, row = scheduler.step(), ["."] * len(jobs)
        for mark, part in ("+", batch.decode), ("s", batch.stalled), ("X", batch.preempted), ("F", batch.finished):
            for seq in part:
                row[seq.number] = mark
        rows.append("".join(row))
    return " ".join(rows), scheduler


@pytest.mark.parametrize("like_threads", [True, False])
@pytest.mark.parametrize("rules, steps, preemptions, lost, expected", [
    (dict(reserve=16), 14, 0, 0, "++. ++. ++. ++. ++. +F. +.+ +.+ +.+ +.+ +.+ F.+ ..+ ..F"),
    (dict(victim=requester, patience=2), 26, 3, 21,
     "+++ +++ +++ +++ +s+ +s+ sX+ +ss +ss ++X +++ s++ s++ X++ +F+ +.+ +.+ +.F" + 7 * " +.." + " F.."),
    (dict(victim=newest), 13, 1, 4, "+++ +++ +++ +++ ++X +F+ +.+ +.+ +.+ +.+ +.+ F.+ ..F"),
    (dict(victim=requester, patience=2, admission=watermark(2 / 8)), 14, 1, 4, None),
])
def test_the_trace_by_hand(rules, steps, preemptions, lost, expected, like_threads):
    rows, scheduler = timeline(HAND, like_threads=like_threads, **rules)
    assert (scheduler.steps, scheduler.preemptions, scheduler.lost_tokens) == (steps, preemptions, lost)
    if expected:
        assert rows.split() == expected.split()


def test_endless_patience_is_a_deadlock_at_step_8():
    with pytest.raises(Deadlock, match="step 8: each of 3 running sequences waits for a block"):
        timeline(HAND, victim=requester, patience=None)
