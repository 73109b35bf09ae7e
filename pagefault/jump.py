"""A scheduler's run without its steps: from one event to the next, with the same counters, several times as quick."""

from collections import deque
from heapq import heappop, heappush

from .errors import Deadlock
from .preemption import deadline, deadlock_text, rule_name, stand_in_line

NEVER = 1 << 62


class Jumper:
    """A sequence that has `tokens` after step `since`, and one more after each further step, unless it is stalled."""

    __slots__ = ("number", "sample", "prompt_tokens", "total_tokens", "tokens", "since", "start_tokens", "num_blocks", "order",
                 "version", "expires", "preemptions", "restarts", "entered", "admitted", "first", "finished", "run")

    def __init__(self, number, request, restarts, run):
        self.number, self.prompt_tokens, self.total_tokens = number, request.prompt_tokens, request.total_tokens
        self.tokens = self.start_tokens = request.prompt_tokens
        self.sample = self.num_blocks = self.order = self.version = self.preemptions = self.since = self.entered = 0
        self.restarts, self.run = restarts, run
        self.expires = self.admitted = self.first = self.finished = None

    def __repr__(self):
        return f"Sequence({self.number}.{self.sample}, {self.num_tokens} of {self.total_tokens} tokens)"

    @property
    def num_tokens(self):
        """As the scheduler has it when it is at sequence run.at of the pass: those behind it have not had their token."""
        run = self.run
        return self.tokens if self.expires else self.tokens + run.steps - 1 - self.since + (self.order <= run.at)

    @property
    def stalled(self):
        """Failed steps in a row: the one that needs a block now isn't counted as failed yet."""
        run = self.run
        return run.patience - self.expires + run.steps + (self.order < run.at) if self.expires else 0

    @property
    def generated(self):
        return self.num_tokens - self.prompt_tokens

    @property
    def remaining(self):
        return self.total_tokens - self.num_tokens

    @property
    def loss(self):
        return self.generated if self.restarts else self.num_tokens


class JumpingRun:
    """What a Scheduler of these settings does with requests that are all there at the start, as counters.

    No swap, no token budget, no prefixes or samples: there a step depends on more than the next block boundary. steps is
    how many are done. After run(), its counters are named as the Scheduler's; decoded counts tokens over all steps,
    running_steps and peak_running the sequences that run.
    """

    def __init__(self, requests, scheduler):
        s = self.rules = scheduler
        if s.preemption == "swap" or s.token_budget or s.prefix_cache is not None \
                or any(r.samples > 1 or r.arrival_ns for r in requests):
            raise ValueError("a jumping run knows no swap, token budget, prefix cache, samples or arrivals: let it step")
        self.num_blocks = self._free = s.num_blocks
        self.patience = NEVER if s.patience is None else s.patience
        self.block_size, self.workers = s.block_size, s.workers
        for request in requests:
            s.submit(request)
        self.sequences = [Jumper(i, r, s.preemption == "restart", self) for i, r in enumerate(requests)]
        self.waiting, self.live, self._events = deque(self.sequences), {}, []
        self.steps = self.last_preemption = self.preemptions = self.lost_tokens = self.redone_tokens = self.decoded = 0
        self.running_steps = self.peak_running = self._late = self._order = self._last_finish = self._deadline = 0
        self.at, self._stalled = NEVER, {}

    @property
    def num_free(self):
        """Blocks that can be handed out."""
        return self._free

    @property
    def running(self):
        """Sequences that run, in the order they started."""
        return list(self.live.values())

    def blocks_to_start(self, seq):
        """Blocks that a waiting sequence takes when it starts."""
        return -(-(self.rules.reserve or seq.start_tokens) // self.block_size)

    def run(self):
        """Play it to the end; returns itself. Raises Deadlock or Livelock as the Scheduler does."""
        always_ask = not getattr(self.rules.admission, "of_free_blocks", False)
        stalled, events, changed = self._stalled, self._events, True
        while self.waiting or self.live:
            if self.steps >= self._deadline:
                self._check_progress()
            if changed or always_ask:
                self._admit()
            step = events[0][0] if events else NEVER
            if stalled and self._free or always_ask and self.waiting:
                step = self.steps + 1
            elif stalled:
                step = min(step, min(seq.expires for seq in stalled.values()))
            if self.patience >= NEVER and len(stalled) == len(self.live) and not self._free:
                raise Deadlock(deadlock_text(self.steps, len(self.live)))
            self.steps, before = step, (len(self.live), self.preemptions)
            acting = []
            while events and events[0][0] == step:
                _, order, version, seq = heappop(events)
                if version == seq.version:
                    acting.append((order, seq))
            if stalled:
                acting = sorted(acting + list(stalled.items()))
            for order, seq in acting:
                if self.live.get(order) is seq:
                    self.at = order
                    self._act(seq)
            self.at = NEVER
            self._free += self._late
            self._late = 0
            changed = before != (len(self.live), self.preemptions)
        return self

    def _admit(self):
        rules, line, live = self.rules, self.waiting, self.live
        while line and len(live) < self.workers:
            seq = line[0]
            need = self.blocks_to_start(seq)
            if need > self._free or (live and not rules.admission(seq, self)):
                break
            line.popleft()
            self._free -= need
            seq.num_blocks, seq.tokens, seq.since, seq.order = need, seq.start_tokens, self.steps, self._order
            seq.entered = self.steps + 1
            if seq.admitted is None:
                seq.admitted = seq.entered
            if seq.first is None and seq.tokens < need * self.block_size:
                seq.first = seq.entered
            live[self._order] = seq
            self._order += 1
            self._next_event(seq)
        self.peak_running = max(self.peak_running, len(live))

    def _next_event(self, seq):
        """It ends in one step, or needs a block in the step after its last one is full."""
        slots = seq.num_blocks * self.block_size
        left = seq.total_tokens - seq.tokens if slots >= seq.total_tokens else slots - seq.tokens + 1
        heappush(self._events, (seq.since + left, seq.order, seq.version, seq))

    def _act(self, seq):
        if not seq.expires and seq.num_blocks * self.block_size >= seq.total_tokens:
            return self._finish(seq)
        if not seq.expires:
            seq.tokens = seq.num_blocks * self.block_size
        while not self._free:
            seq.expires = seq.expires or self.steps + self.patience
            if self.steps < seq.expires or (self._late and len(self.live) == 1):
                self._stalled[seq.order] = seq
                return None
            victim = self.rules.victim(seq, self.running)
            if victim is None or self.live.get(getattr(victim, "order", None)) is not victim:
                raise ValueError(f"the victim rule {rule_name(self.rules.victim)} returned {victim!r}, which doesn't run")
            self._preempt(victim)
            if victim is seq:
                return None
        self._free -= 1
        if seq.expires:
            self._stalled.pop(seq.order, None)
            seq.expires = None
        seq.num_blocks, seq.tokens, seq.since = seq.num_blocks + 1, seq.tokens + 1, self.steps
        if seq.first is None:
            seq.first = self.steps
        return self._finish(seq) if seq.tokens == seq.total_tokens else self._next_event(seq)

    def _finish(self, seq):
        self.decoded += seq.total_tokens - seq.start_tokens
        seq.finished = self._last_finish = self.steps
        self._leave(seq)

    def _leave(self, seq):
        del self.live[seq.order]
        self.running_steps += self.steps + 1 - seq.entered
        if seq.finished and not self.rules.like_threads:
            self._late += seq.num_blocks
        else:
            self._free += seq.num_blocks

    def _preempt(self, seq):
        tokens = seq.tokens if seq.expires else seq.tokens + self.steps - 1 - seq.since  # without this step's
        self.decoded += tokens - seq.start_tokens
        self.lost_tokens += tokens - seq.prompt_tokens if seq.restarts else 0
        self.redone_tokens += tokens - 1 if seq.entered < self.steps else 0
        self._leave(seq)
        self._stalled.pop(seq.order, None)
        if seq.first == self.steps:
            seq.first = None
        seq.start_tokens = seq.prompt_tokens if seq.restarts else tokens
        seq.version, seq.preemptions, seq.expires = seq.version + 1, seq.preemptions + 1, None
        self.preemptions, self.last_preemption = self.preemptions + 1, self.steps - 1
        stand_in_line(self.waiting, seq, self.rules.like_threads)

    def _check_progress(self):
        begun = [*self.live.values(), *(seq for seq in self.waiting if seq.preemptions)]
        tokens = sum(seq.total_tokens for seq in self.sequences)
        self._deadline = deadline(self.rules, self.steps, self._last_finish, begun, tokens)
