"""Notebook 4's checks take right answers, in whatever words, and say what is wrong with the others."""

import numpy as np
import pytest
from graded import assert_right, assert_wrong, table

import pagefault as pf
from pagefault.checks import concurrent_serving as checks
from pagefault.checks.base import use_class_seed
from pagefault.checks.concurrent_serving import MISTAKES, right_start


def starts(total=False, floor=False, lone=True, of_free=False, strict=False, never="pool", error=pf.RequestTooLarge, rounded=float,
           parts=False, before=False, few=0):
    def may_start(request, num_running, num_free, num_blocks, block_size, share):
        def pages(tokens):
            return tokens // block_size if floor else (tokens + block_size - 1) // block_size
        if never and pages(request.total_tokens) > (num_blocks if never == "pool" else num_free):
            if error == "returned":
                return pf.RequestTooLarge
            if error:
                raise error("never")
            return False
        left = num_free - (request.prompt_tokens / block_size if parts else
                           pages(request.total_tokens if total else request.prompt_tokens))
        reserve = 0 if lone and num_running <= few else rounded(share * (num_free if of_free else num_blocks))
        if before:
            return num_free >= reserve and left >= 0
        return left > reserve if strict else left >= reserve
    return may_start


def meddles(needy, running):
    running[0].total_tokens = 1
    return running[0]


def returns_what_does_not_run(needy, running):
    return needy.number


RIGHT = {
    "may_start": [right_start, starts()],
    "victim": [lambda needy, running: running[-1],
               lambda needy, running: sorted(running, key=lambda seq: (seq.generated, -seq.number))[0]],
}
WRONG = {
    "may_start": [
        (starts(total=True), 1, "pages of its prompt"), (starts(floor=True), 1, "round up"),
        (starts(lone=False), 2, "wait for ever"), (starts(parts=True), 2, "pages are whole"),
        (starts(few=1), 2, "num_running is 0"), (starts(before=True), 2, "when the prompt has got its pages"),
        (starts(of_free=True), 2, "share of the pool"), (starts(strict=True), 0, "are enough: >="),
        (starts(rounded=int), 2, "isn't rounded down"), (starts(rounded=round), 2, "isn't rounded"),
        (starts(error="returned"), 2, "raise, not return"), (starts(never="free"), 0, "RequestTooLarge"),
        (starts(never=None), 2, "more pages than the pool"),
        (starts(error=None), 2, "more pages than the pool"), (starts(error=ValueError), 2, "got:      ValueError"),
        (lambda *case: int(right_start(*case)), 0, "an int|a bool"), (lambda *case: True, 0, "reserve"),
        (lambda request, num_running, *rest: num_running == 0 or right_start(request, num_running, *rest), 1, "pages for its pro"),
    ],
    "victim": [
        (lambda needy, running: running.pop(), 0, "isn't as it was"),
        (lambda needy, running: running.sort(key=lambda seq: seq.generated) or running[0], 0, "isn't as it was"),
        (lambda needy, running: running[0], 0, "not done"), (lambda needy, running: needy, 0, "not done"),
        (lambda needy, running: max(running, key=lambda seq: seq.num_blocks), 0, "not done"),
        (lambda needy, running: running[np.random.randint(len(running))], 0, "not done"),
        (meddles, 0, "only chooses"), (returns_what_does_not_run, 0, "one of running, and this is an int"),
        (lambda needy, running: min(running, key=lambda seq: seq.length), 0, "AttributeError"),
    ],
}


@pytest.mark.parametrize("check", RIGHT)
def test_right_answers_have_all_points(check):
    assert_right(getattr(checks, check), RIGHT[check])


@pytest.mark.parametrize("check, answer, points, hint", table(WRONG))
def test_wrong_answers_are_named(check, answer, points, hint):
    assert_wrong(getattr(checks, check), answer, points, hint)


def scheduled(requests, steps):
    """The trace that the module's scheduler gives."""
    scheduler = pf.Scheduler(pf.BlockPool(8, 4), victim=pf.requester, patience=2, like_threads=True)
    for request in requests:
        scheduler.submit(request)
    rows = []
    for _ in range(steps):
        if scheduler.unfinished:
            scheduler.step()
        tokens = {seq.number: seq.num_tokens for seq in scheduler.running}
        rows.append([tokens.get(i, 0) for i in range(len(requests))] + [scheduler.num_free])
    return rows


def test_traces_are_the_schedulers_and_mistakes_are_named(monkeypatch):
    monkeypatch.setattr("pagefault.checks.base._class_seed", [])
    known = [pf.Request(2, 12), pf.Request(8, 6), pf.Request(5, 8)]
    assert checks.play(known, 27) == scheduled(known, 27) and checks.play(known, 26)[25] == [0, 0, 0, 8]
    for seed in range(5):
        use_class_seed(seed)
        given = checks.a_trace()
        rows = scheduled(given.requests, given.first + 6)[given.first:]
        assert_right(checks.trace, [rows, np.array(rows, float)])
        for hint, mistake in MISTAKES.items():
            answer = checks.play(given.requests, given.first + 6, **mistake)[given.first:]
            score = checks.trace(answer)
            assert score < 3 and score.wrong.hint in MISTAKES, (hint, score)
        assert_wrong(checks.trace, rows[:5], 0, "6 rows")
        assert_wrong(checks.trace, [[str(n) for n in row] for row in rows], 0, "a str")


def test_the_rate_of_the_bus_is_checked():
    s = checks.a_swap()
    right = s.bytes_per_token * s.flops / s.parameters / 1e9
    assert_right(checks.swap_rate, [right, np.float32(right * 1.005)])
    for wrong, hint in [(right / 2, "out and back"), (right * 8, "bits"), (right * s.batch, "only the victim"),
                        (right * 2, "2 FLOP"), (right * 1.02, "more digits"), (right * 8.05, "bits"),
                        (right * s.tokens, "cancel"), (right * 1e9, "10.9"), (right * 1e9 / 2**30, "GiB"),
                        (1 / right, "inverse"), (5.0, "got:      5")]:
        assert_wrong(checks.swap_rate, wrong, 0, hint)


def test_a_setting_is_tried_on_other_draws():
    lab = checks.Lab()
    tried = {(share, workers): lab.run(share, workers) for workers in (24, 32, 48, 64) for share in (0.05, 0.1, 0.2)}
    assert {pair: checks.Lab().run(*pair) for pair in tried} == tried  # the cell runs again, and no run is lost or won
    with pytest.raises(RuntimeError, match="12 runs"):
        checks.Lab().run(0.05, 33)
    best = max(tried, key=tried.get)
    assert_right(checks.setting, [best, [np.float64(best[0]), np.int64(best[1])]])
    for wrong, points, hint in [
        ((0.3, 64), 0, "fewer workers"), ((0, 64), 0, "reserve helps"), ((0.05, 8), 0, "more workers"),
        ((0.1, 28), 1, "more workers"),
        ((0.8, 40), 0, "smaller reserve"), ((5, 32), 0, "percentage"), ((0.05, 0), 0, "1 to 512"), (best[0], 0, "share, workers"),
        ((0.05, 32.5), 0, "whole number"),
    ]:
        assert_wrong(checks.setting, wrong, points, hint)
