import numpy as np
import pytest
from published import published_jobs

from pagefault import BlockPool
from pagefault.errors import Deadlock, Livelock
from pagefault.jobs import published_requests, with_arrivals
from pagefault.jump import JumpingRun
from pagefault.policies import VICTIMS, decaying, optimistic, watermark
from pagefault.requests import Request
from pagefault.scheduler import Scheduler
from pagefault.simulator import simulate

SETTINGS = 220


def setting(i):
    """Requests and rules, drawn from a seed."""
    random = np.random.RandomState(i)

    def pick(*values):
        return values[random.randint(len(values))]

    jobs = published_jobs(pick(5, 15, 30), i)
    rules = dict(workers=pick(2, 8, 32), patience=pick(0, 0, 1, 8, 32, None), preemption=pick("restart", "keep"),
                 victim=VICTIMS[pick(*VICTIMS)], like_threads=pick(True, False),
                 admission=pick(optimistic, watermark(0.02), watermark(0.1), watermark(0.3), decaying(steps=50)),
                 reserve=pick(None, None, None, None, 2048))
    return [Request(prompt, total - prompt) for prompt, total in jobs], dict(num_blocks=pick(128, 200, 400), **rules)


def outcome(requests, jump, num_blocks, **rules):
    try:
        result = simulate(requests, num_blocks, jump=jump, **rules)
        return result.summary, result.requests.to_numpy().tolist()
    except (Deadlock, Livelock) as error:
        return type(error)


def test_jumping_equals_stepping_in_every_counter_and_every_requests_times():
    kinds, preempted = set(), 0
    for i in range(SETTINGS):
        requests, rules = setting(i)
        stepped = outcome(requests, False, **rules)
        assert outcome(requests, True, **rules) == stepped, (i, rules)
        kinds.add(stepped if isinstance(stepped, type) else "finished")
        preempted += not isinstance(stepped, type) and stepped[0]["preemptions"] > 0
    assert kinds == {"finished", Deadlock, Livelock} and preempted > SETTINGS // 4


@pytest.mark.parametrize("jump", [False, True])
def test_the_last_one_waits_for_blocks_that_are_free_after_the_step(jump):
    result = simulate([Request(3, 5), Request(4, 6)], 4, 4, jump=jump)
    assert (result.summary["preemptions"], result.summary["steps"]) == (0, 7)


@pytest.mark.parametrize("change", [dict(preemption="swap", swap_blocks=4), dict(token_budget=200), dict(prefix_caching=True)])
def test_what_a_jump_does_not_know_is_refused(change):
    with pytest.raises(ValueError, match="let it step"):
        simulate(published_requests(4), jump=True, **change)


def test_arrivals_and_samples_are_refused():
    for requests in (with_arrivals(published_requests(4), [0, 0, 0, 5]), [Request(4, 4, samples=2)]):
        with pytest.raises(ValueError, match="let it step"):
            JumpingRun(requests, Scheduler(BlockPool(256, 16)))


def watching(seen):
    """A victim rule that notes what it sees, and chooses by it."""

    def victim(needy, running):
        names = ("number", "num_tokens", "num_blocks", "generated", "remaining", "loss", "preemptions", "stalled")
        rows = [tuple(getattr(seq, name) for name in names) for seq in running]
        seen.append((needy.number, rows))
        return running[sum(map(sum, rows)) % len(running)]

    return victim


@pytest.mark.parametrize("patience", [0, 1, 8])
def test_a_rule_sees_the_same_of_every_sequence_whether_it_jumps_or_steps(patience):
    asked = waited = 0
    for i in range(6):
        stepped, jumped, rules = [], [], dict(num_blocks=160, workers=16, patience=patience, preemption=("restart", "keep")[i % 2])
        requests = [Request(prompt, total - prompt) for prompt, total in published_jobs(20, i)]
        ends = [outcome(requests, jump, like_threads=i < 3, victim=watching(seen), **rules)
                for jump, seen in ((False, stepped), (True, jumped))]
        assert ends[0] == ends[1] and stepped == jumped, i
        asked, waited = asked + len(stepped), waited + sum(row[-1] > 0 for _, rows in stepped for row in rows)
    assert asked > 50 and bool(waited) == bool(patience)


@pytest.mark.parametrize("wrong", ["nobody", "a name", "one that waits"])
@pytest.mark.parametrize("jump", [False, True])
def test_a_victim_that_does_not_run_is_named(jump, wrong):
    gone = []

    def mistaken(needy, running):
        if wrong == "one that waits":
            gone[:] = gone or [running[-1]]
            return gone[0]
        return None if wrong == "nobody" else "A"

    with pytest.raises(ValueError, match=r"the victim rule mistaken returned (None|'A'|Sequence\(.* tokens\)), which doesn't run"):
        simulate(published_requests(60), 200, jump=jump, victim=mistaken)


@pytest.mark.parametrize("jump", [False, True])
def test_a_rule_can_not_give_itself_blocks(jump):
    def cheating(seq, scheduler):
        scheduler.num_free = 4096

    with pytest.raises(AttributeError, match="num_free"):
        simulate(published_requests(60), 200, jump=jump, admission=cheating)
