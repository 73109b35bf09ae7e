import numpy as np
import pytest
from published import play, published_jobs, run
from toy import Toy

from pagefault import BlockPool, OutOfBlocks, PrefixCache, RequestTooLarge
from pagefault.errors import Deadlock, Livelock
from pagefault.policies import decaying, least_lost, newest, oldest, requester, watermark
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


def test_of_the_victims_of_a_step_the_older_stands_first_and_newcomers_last():
    toy = Toy(9, 4, victim=newest)
    for prompt, output in [(8, 20), (4, 4), (8, 6), (4, 8), (4, 8), (4, 4), (4, 4), (12, 4)]:
        toy.scheduler.submit(Request(prompt, output))
    batch = toy.step()
    assert [seq.number for seq in batch.admitted] == [0, 1, 2, 3, 4, 5, 6]
    assert [seq.number for seq in batch.preempted] == [6, 5, 4, 3]
    assert [seq.number for seq in toy.scheduler.waiting] == [3, 4, 5, 6, 7]
    admitted = [seq.number for _ in range(30) for seq in toy.step().admitted if not seq.preemptions]
    assert len(toy.finish().finished) == 8 and admitted in ([], [7])


def test_the_first_victim_is_the_one_that_came_last():
    toy = Toy(6, 4, victim=newest)
    for _ in range(3):
        toy.scheduler.submit(Request(8, 8))
    assert [seq.number for seq in toy.step().preempted] == [2]
    toy.finish()


def test_what_never_fits_is_refused_at_once_with_the_numbers():
    toy = Toy(2, 16)
    with pytest.raises(RequestTooLarge, match="40 tokens need 3 blocks of 16, and the pool has 2"):
        toy.scheduler.submit(Request(30, 10))
    assert toy.scheduler.unfinished == toy.scheduler.submitted == 0
    toy.scheduler.submit(Request(5, 5))
    assert toy.finish().finished == [(0, 0)]
    with pytest.raises(RequestTooLarge, match="a request of 20 tokens, and 16 are reserved"):
        Scheduler(BlockPool(2, 16), reserve=16).submit(Request(10, 10))


@pytest.mark.parametrize("victim", [requester, newest, oldest])
def test_one_that_runs_alone_and_cannot_grow_is_an_error_not_its_own_victim(victim):
    pool = BlockPool(4, 4)
    scheduler = Scheduler(pool, victim=victim)
    scheduler.submit(Request(4, 8))
    others = pool.allocate(2)
    for _ in range(4):
        scheduler.step()
    with pytest.raises(OutOfBlocks, match="runs alone and can't grow: 2 blocks are not the scheduler's"):
        scheduler.step()
    pool.free(others)
    while scheduler.unfinished:
        scheduler.step()
    assert scheduler.preemptions == 0


def test_nothing_runs_since_others_have_the_pool():
    pool = BlockPool(4, 4)
    scheduler = Scheduler(pool)
    scheduler.submit(Request(8, 4))
    others = pool.allocate(3)
    with pytest.raises(OutOfBlocks, match="nothing runs, and 1 of 4 blocks are free"):
        scheduler.step()
    pool.free(others)
    assert len(scheduler.step().decode) == 1


def test_a_watermark_that_a_lone_request_cannot_meet_does_not_stop_it():
    toy = Toy(4, 4, admission=watermark(0.9))
    toy.scheduler.submit(Request(8, 8))
    assert toy.finish().finished == [(0, 0)]


def test_the_watermark_holds_back_newcomers_and_not_those_that_run():
    toy = Toy(10, 4, admission=watermark(0.2))
    for prompt, output in [(16, 24), (16, 4), (4, 4)]:
        toy.scheduler.submit(Request(prompt, output))
    assert [seq.number for seq in toy.step().admitted] == [0, 1]  # with the third, one block would be free
    while toy.pool.num_free:
        assert toy.scheduler.running[0].number == 0
        toy.step()
    toy.finish()


def test_a_swap_space_too_small_means_recompute():
    toy = Toy(4, 4, preemption="swap", swap_blocks=1)
    for _ in range(2):
        toy.scheduler.submit(Request(8, 4))
    toy.finish()
    assert toy.scheduler.swapped_blocks == 0 and toy.scheduler.preemptions > 0 and toy.scheduler.lost_tokens == 0


def test_swapped_blocks_come_back_as_they_were():
    toy = Toy(6, 4, preemption="swap", swap_blocks=6)
    for _ in range(3):
        toy.scheduler.submit(Request(6, 12))
    toy.finish()
    assert toy.scheduler.swapped_blocks > 0 and toy.scheduler.redone_tokens == toy.scheduler.lost_tokens == 0


def test_the_line_is_first_come_first_served_and_nobody_passes():
    toy = Toy(10, 4)
    toy.scheduler.submit(Request(24, 1))
    toy.step()
    toy.scheduler.submit(Request(21, 8))
    toy.scheduler.submit(Request(29, 3))
    for _ in range(20):
        toy.scheduler.submit(Request(1, 1))
    order = [seq.number for _ in range(30) for seq in toy.step().admitted]
    assert order == list(range(1, 23))


def test_tokens_kept_are_computed_anew_and_none_is_lost():
    toys = {how: Toy(24, 4, preemption=how, victim=newest) for how in ("restart", "keep")}
    for toy in toys.values():
        for i in range(12):
            toy.scheduler.submit(Request(3 + i, 20))
        toy.finish()
    kept, restarted = toys["keep"].scheduler, toys["restart"].scheduler
    assert kept.preemptions and kept.lost_tokens == 0 and kept.redone_tokens > 0
    assert restarted.lost_tokens > 0 and kept.steps < restarted.steps


def test_a_long_prompt_is_fed_in_chunks_beside_the_others():
    toy = Toy(64, 4, workers=4, token_budget=10)
    for prompt, output in [(5, 12), (57, 3), (20, 2)]:
        toy.scheduler.submit(Request(prompt, output))
    fed, steps = {0: 0, 1: 0, 2: 0}, []
    while toy.scheduler.unfinished:
        batch = toy.step()
        for seq, start, end in batch.prefill:
            assert start == fed[seq.number]
            fed[seq.number] = end
        steps.append(batch.prefill_tokens + len(batch.decode))
    assert fed == {0: 4, 1: 56, 2: 19} and max(steps) == 10 and sum(steps) == 16 + 59 + 21
    assert steps[:6] == [10] * 6


def test_samples_share_the_prompt_and_each_has_its_own_tail():
    toy = Toy(40, 4)
    toy.scheduler.submit(Request(18, 10, samples=4))
    toy.step()
    assert toy.pool.num_used == 5
    batch = toy.step()
    assert len(batch.decode) == 4 and len(batch.copies) == 3 and toy.pool.num_used == 4 + 4
    assert sorted(toy.finish().finished) == [(0, i) for i in range(4)]
    assert toy.scheduler.shared_tokens == 0 and toy.pool.peak < 4 * 7


def test_a_prompt_of_samples_that_is_swapped_out_half_fed_goes_on_where_it_was():
    toy = Toy(12, 4, workers=4, victim=least_lost, preemption="swap", swap_blocks=6, token_budget=7)
    for prompt, samples in [(1, 1), (1, 1), (1, 1), (24, 2), (14, 2)]:
        toy.scheduler.submit(Request(prompt, 1, samples=samples))
    toy.finish()
    assert toy.scheduler.swapped_blocks > 0 and len(toy.finished) == 7


def test_a_prompt_thrown_out_as_it_is_stored_does_not_part():
    toy = Toy(4, 4, victim=oldest)
    toy.scheduler.submit(Request(8, 4, samples=2))
    toy.scheduler.submit(Request(8, 4))
    assert [seq.number for seq in toy.step().preempted] == [0]
    assert len(toy.finish().finished) == 3


def test_a_copy_for_a_sample_that_is_thrown_out_is_not_made():
    toy = Toy(4, 4, victim=oldest)
    toy.scheduler.submit(Request(6, 2, samples=2))
    toy.scheduler.submit(Request(3, 10))
    toy.step()
    batch = toy.step()
    assert [(seq.number, seq.sample) for seq in batch.preempted] == [(0, 0)] and batch.copies == []


def test_a_block_that_is_still_to_be_copied_is_not_given_away():
    def second_sample_first(needy, running):
        return max((seq for seq in running if seq.number == 0), key=lambda seq: seq.sample, default=needy)

    toy = Toy(5, 4, victim=second_sample_first)
    for _ in range(2):
        toy.scheduler.submit(Request(6, 2, samples=2))
    toy.step()
    batch = toy.step()
    assert [(seq.number, seq.sample) for seq in batch.preempted] == [(0, 1), (0, 0)] and len(batch.copies) == 1
    assert len(toy.finish().finished) == 4


def test_a_prompt_found_whole_still_computes_its_last_token():
    toy, tokens = Toy(20, 16, prefix_caching=True), tuple(range(32))
    for _ in range(2):
        toy.scheduler.submit(Request(32, 4, tokens=tokens))
        toy.finish()
    assert toy.scheduler.shared_tokens == 16
    toy.scheduler.submit(Request(40, 4, tokens=tokens + tuple(range(100, 108))))
    assert toy.step().prefill[0][1:] == (32, 39)


@pytest.mark.parametrize("preemption", ["restart", "keep", "swap"])
def test_whatever_is_aborted_gives_all_blocks_back(preemption):
    toy = Toy(40, 4, preemption=preemption, swap_blocks=30, workers=12)
    random, aborted = np.random.RandomState(5), set()
    for i in range(500):
        toy.scheduler.submit(Request(*random.randint(1, 30, 2).tolist(), samples=1 + i % 3))
        if random.randint(2):
            toy.step()
        if random.randint(3) == 0:
            number = int(random.randint(i + 1))
            if toy.scheduler.abort(number):
                aborted.add(number)
    toy.finish()
    finished = {number for number, _ in toy.finished}
    assert finished | aborted == set(range(500)) and len(aborted) > 50
    assert {n for n in finished - aborted for s in range(1 + n % 3) if (n, s) not in toy.finished} == set()


def test_a_rule_of_ones_own():
    def shortest(needy, running):
        return min(running, key=lambda seq: seq.total_tokens)

    def few(seq, scheduler):
        return len(scheduler.running) < 3

    toy = Toy(8, 4, victim=shortest, admission=few)
    for total in (12, 20, 9, 16):
        toy.scheduler.submit(Request(4, total - 4))
    assert len(toy.step().admitted) == 3
    assert len(toy.finish().finished) == 4


def test_a_rule_that_names_nobody_who_runs_is_named():
    def nobody(needy, running):
        return None

    toy = Toy(4, 4, victim=nobody)
    for _ in range(2):
        toy.scheduler.submit(Request(8, 4))
    with pytest.raises(ValueError, match="the victim rule nobody returned None"):
        toy.step()


def test_a_livelock_names_the_policy():
    jobs = published_jobs(512, 42)
    scheduler = Scheduler(BlockPool(256, 16), victim=oldest)
    for prompt, total in jobs:
        scheduler.submit(Request(prompt, total - prompt))
    with pytest.raises(Livelock, match="victim oldest, patience 0, restart, admission optimistic"):
        while scheduler.unfinished:
            scheduler.step()
    before = scheduler.steps, len(scheduler.running), scheduler.pool.num_free
    with pytest.raises(Livelock):
        scheduler.step()
    assert before == (scheduler.steps, len(scheduler.running), scheduler.pool.num_free)


@pytest.mark.parametrize("rules, error", [
    (dict(preemption="drop"), "preemption = 'drop', there are restart, keep, swap"),
    (dict(workers=0), "workers = 0"), (dict(patience=-1), "patience = -1"), (dict(reserve=0), "reserve = 0"),
    (dict(workers=8, token_budget=8), "token_budget = 8, it is at least 9"),
    (dict(prefix_cache=PrefixCache(BlockPool(2, 2))), "the prefix cache is of another pool"),
])
def test_rules_that_cannot_be(rules, error):
    with pytest.raises(ValueError, match=error):
        Scheduler(BlockPool(4, 4), **rules)


@pytest.mark.parametrize("call, error", [
    (lambda: Request(0, 1), "prompt_tokens = 0"), (lambda: Request(1, 0), "output_tokens = 0"),
    (lambda: Request(1, 1, samples=0), "samples = 0"), (lambda: Request(2, 1, tokens=(1,)), "1 token ids, and a prompt of 2"),
    (lambda: watermark(1), "share = 1"), (lambda: decaying(0.1, 0.2), "floor = 0.2"),
    (lambda: Scheduler(BlockPool(4, 4), reserve=8).submit(Request(1, 1, samples=2)), "samples share the blocks"),
])
def test_requests_that_cannot_be(call, error):
    with pytest.raises(ValueError, match=error):
        call()
