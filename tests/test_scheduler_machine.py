"""Requests come, run and are aborted in any order under any rules: none is lost or doubled, and no token is another's."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from toy import Toy

from pagefault import RequestTooLarge
from pagefault.errors import Livelock
from pagefault.policies import VICTIMS, decaying, optimistic, watermark
from pagefault.requests import Request

STEADY = {"newest", "least-lost"}  # rules under which no livelock may come, without patience
SEEN = Counter()


class Machine(RuleBasedStateMachine):
    @initialize(shape=st.sampled_from([(13, 4), (26, 2), (5, 16), (50, 1)]), workers=st.integers(3, 12),
                victim=st.sampled_from(sorted(VICTIMS)), patience=st.sampled_from([0, 0, 1, 5]),
                preemption=st.sampled_from(["restart", "keep", "swap"]), prefixes=st.booleans(), chunks=st.booleans(),
                admission=st.sampled_from([optimistic, watermark(0.1), watermark(0.5), decaying(steps=20)]), overlap=st.booleans())
    def begin(self, shape, workers, victim, patience, preemption, prefixes, chunks, admission, overlap):
        self.toy = Toy(*shape, prefixes, workers=workers, victim=VICTIMS[victim], patience=patience, preemption=preemption,
                       admission=admission, token_budget=workers + 3 if chunks else None, swap_blocks=shape[0] // 2,
                       overlap_swap=overlap)
        self.room, self.steady = shape[0] * shape[1], victim in STEADY and not patience
        self.submitted, self.aborted, self.moving = {}, set(), set()

    @rule(prompt=st.integers(1, 30), output=st.integers(1, 20), samples=st.integers(1, 3), kind=st.integers(0, 2),
          count=st.integers(1, 5))
    def submit(self, prompt, output, samples, kind, count):
        for i in range(count):
            self.submit_one(prompt, output + i, samples, kind)

    def submit_one(self, prompt, output, samples, kind):
        tokens = tuple(kind * (i // 10) for i in range(prompt))
        try:
            number = self.toy.scheduler.submit(Request(prompt, output, samples=samples, tokens=tokens))
            assert prompt + output <= self.room and samples <= self.toy.scheduler.workers
            self.submitted[number] = samples
        except RequestTooLarge:
            assert -(-(prompt + output) // self.toy.pool.block_size) > self.toy.pool.num_blocks \
                or samples > self.toy.scheduler.workers

    @precondition(lambda self: self.toy.scheduler.unfinished)
    @rule(steps=st.integers(1, 8))
    def step(self, steps):
        for _ in range(steps):
            if not self.toy.scheduler.unfinished or self.moving == self.unfinished():
                break
            batch = self.toy.step(self.moving)
            if self.toy.scheduler.overlap_swap:
                self.moving = {seq for seq, _, _ in batch.swap_out + batch.swap_in}
                assert not self.moving & set(batch.decode)
        self.moving = set()

    def unfinished(self):
        return {*self.toy.scheduler.waiting, *self.toy.scheduler.running}

    @precondition(lambda self: self.submitted)
    @rule(which=st.integers(0, 10**6))
    def abort(self, which):
        number = which % len(self.submitted)
        before = [key for key in self.toy.finished if key[0] == number]
        gone = self.toy.scheduler.abort(number)
        if gone:
            self.aborted.add(number)
        assert self.toy.scheduler.abort(number) == 0 and (gone or number in self.aborted or before)

    def teardown(self):
        if hasattr(self, "toy"):
            try:
                self.toy.finish()
            except Livelock as error:
                assert not self.steady and "victim" in str(error)
                return
            finally:
                SEEN.update(self.toy.seen)
            finished = sorted(key for key in self.toy.finished if key[0] not in self.aborted)
            assert finished == [(n, i) for n, k in self.submitted.items() if n not in self.aborted for i in range(k)]


def test_all_complete_and_blocks_are_conserved_under_every_rule():
    SEEN.clear()
    run_state_machine_as_test(Machine, settings=settings(
        max_examples=250, stateful_step_count=20, derandomize=True, deadline=None, database=None))
    assert len(SEEN) == 5 and min(SEEN.values()) > 100
