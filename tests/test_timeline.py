import numpy as np
import pytest

from pagefault.errors import RequestTooLarge
from pagefault.policies import newest, requester, watermark
from pagefault.requests import Request
from pagefault.timeline import IN_LINE, REDOES, RUNS, STALLS, seats, timeline

THREE = [Request(2, 12), Request(8, 6), Request(5, 8)]
BY_HAND = {  # rules: steps, preempted, tokens done again
    "reserved": (dict(reserve=16), 14, 0, 0),
    "requester, patience 2": (dict(victim=requester, patience=2), 26, 3, 21),
    "newest": (dict(victim=newest), 13, 1, 4),
    "two in reserve": (dict(victim=requester, patience=2, admission=watermark(2 / 8)), 14, 1, 4),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_eight_pages_by_hand(name):
    rules, *expected = BY_HAND[name]
    found = timeline(THREE, 8, 4, like_threads=True, **rules)
    assert [found.states.shape[1], len(found.preempted), found.redone] == expected and found.deadlock is None
    assert found.tokens.max(1).tolist() == [14, 14, 13] and (found.states == RUNS).sum() == 12 + 6 + 8
    assert ((found.tokens > 0) == (found.states != IN_LINE)).all() and found.free[-1] == 8


def test_a_deadlock_ends_the_picture_where_all_wait():
    found = timeline(THREE, 8, 4, victim=requester, patience=None, like_threads=True)
    assert found.deadlock.startswith("step 8: each of 3 running sequences waits") and found.states.shape == (3, 7)
    assert found.states[1].tolist() == [RUNS] * 4 + [STALLS] * 3 and found.free[-1] == 0


def test_tokens_that_are_kept_are_not_done_again():
    kept = timeline(THREE, 8, 4, victim=newest, preemption="keep")
    assert kept.preempted and kept.redone == 0 and (kept.states == RUNS).sum() == 26


def test_what_cannot_fit_is_refused():
    with pytest.raises(RequestTooLarge, match="40 tokens need 10 blocks"):
        timeline([Request(20, 20)], 8, 4)


def test_a_seat_has_one_request_at_a_time_and_every_token_is_in_one():
    found = timeline(THREE, 8, 4, victim=requester, patience=2, like_threads=True)
    by_seat = seats(found.states)
    assert len(by_seat) == 3
    for state in (RUNS, STALLS, REDOES):
        assert ((by_seat == state).sum(0) == (found.states == state).sum(0)).all()
    gone = seats(np.array([[1, 0, 1], [1, 1, 1]], np.int8))  # out, and back in the same seat
    assert gone.tolist() == [[1, 0, 1], [1, 1, 1]]
