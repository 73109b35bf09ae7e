"""Continuous batching over a pool of blocks: who starts, who grows, who waits, who is preempted."""

from collections import deque

from .admission import admit, check, fork
from .blocks import BlockPool
from .errors import Deadlock, OutOfBlocks, whole
from .policies import newest, optimistic
from .preemption import deadline, deadlock_text, preempt, rule_name
from .requests import Batch, Sequence

PREEMPTIONS = ("restart", "keep", "swap")


class Scheduler:
    """Decides, step by step, which sequences an executor computes; it knows no arrays and no clock.

    A line in order of arrival: the first that isn't admitted holds back all behind it, so that nobody starves, and whoever
    was preempted stands before all newcomers. admission is asked about the first in line (a lone one starts regardless);
    workers is the most sequences that run, or are on their way to the host, at once. Each running one gets one token a
    step, in the order they started, and a block where it needs one. Without a free one it stalls, for up to `patience`
    steps in a row (None: for ever); then victim says who gives its blocks. The victim starts over from its prompt
    ("restart"), or computes its tokens anew ("keep"), or its blocks go to swap_blocks blocks of host memory ("swap"; as
    "keep" once they are full).
    overlap_swap: the executor moves blocks beside its steps, and says which sequences' are still on their way.

    reserve: tokens of room that each sequence gets at the start, as without paging. token_budget: the most tokens a step
    feeds, so that long prompts are fed in chunks. prefix_cache: a PrefixCache of the pool, for requests with token ids.
    like_threads: play threads that share a pool, where the blocks of a sequence that ends serve those behind it in the
    same step, and a preempted one goes to the very front; not for an executor, which still writes to those blocks.
    max_steps: after so many it is a Livelock; unless given, after as many as all requests have tokens, since one after
    another they would take no more. A rule that raises an error leaves a step half done: begin with a new scheduler.

    >>> from pagefault.requests import Request
    >>> scheduler = Scheduler(BlockPool(8, 4))
    >>> number = scheduler.submit(Request(prompt_tokens=6, output_tokens=3))
    >>> batch = scheduler.step()
    >>> batch.prefill, batch.decode
    ([(Sequence(0.0, 7 of 9 tokens), 0, 5)], [Sequence(0.0, 7 of 9 tokens)])
    """

    def __init__(self, pool, admission=optimistic, victim=newest, patience=0, preemption="restart", workers=128, reserve=None,
                 swap_blocks=0, token_budget=None, overlap_swap=False, prefix_cache=None, like_threads=False, max_steps=None):
        if preemption not in PREEMPTIONS:
            raise ValueError(f"preemption = {preemption!r}, there are {', '.join(PREEMPTIONS)}")
        if prefix_cache is not None and prefix_cache.pool is not pool:
            raise ValueError("the prefix cache is of another pool")
        self.pool, self.admission, self.victim, self.preemption = pool, admission, victim, preemption
        self.num_blocks, self.block_size = pool.num_blocks, pool.block_size
        self.patience = None if patience is None else whole("patience", patience)
        self.workers = whole("workers", workers, 1)
        self.reserve = None if reserve is None else whole("reserve", reserve, 1)
        self.token_budget = None if token_budget is None else whole("token_budget", token_budget, self.workers + 1)
        self.host = BlockPool(swap_blocks, pool.block_size) if whole("swap_blocks", swap_blocks) else None
        self.prefix_cache, self.overlap_swap, self.like_threads = prefix_cache, overlap_swap, like_threads
        self.max_steps = None if max_steps is None else whole("max_steps", max_steps, 1)
        self.waiting, self.running = deque(), []
        self.submitted = self.steps = self.last_preemption = 0
        self.preemptions = self.lost_tokens = self.redone_tokens = self.swapped_blocks = self.shared_tokens = 0
        self.done, self.prefilled, self.forking, self.pins, self.host_done = [], [], [], [], []  # for settle
        self.to_fork = self._last_finish = self._deadline = self._tokens = 0

    @property
    def num_free(self):
        """Blocks that can be handed out."""
        return self.pool.num_free

    @property
    def unfinished(self):
        """How many sequences wait or run."""
        return len(self.waiting) + len(self.running)

    def blocks_to_start(self, seq):
        """Blocks that a waiting sequence takes when it starts, beside those it shares."""
        return -(-(self.reserve or seq.start_tokens) // self.block_size) - len(seq.table.blocks)

    def check(self, request):
        """Raise RequestTooLarge for a request that could never be finished, however long it waits."""
        check(self, request)

    def submit(self, request):
        """Put a request at the end of the line; returns its number. Raises as check() does."""
        check(self, request)
        restarts = self.preemption == "restart"
        self.waiting.append(Sequence(self.submitted, request, self.pool, restarts, to_fork=request.samples - 1))
        self.submitted += 1
        self._tokens += request.total_tokens * request.samples
        return self.submitted - 1

    def abort(self, number):
        """Forget all that waits or runs of a request, between two steps; returns how many sequences that were."""
        self.settle()
        gone = [seq for seq in (*self.waiting, *self.running) if seq.number == number]
        for seq in gone:
            seq.table.free()
            self.to_fork -= seq.to_fork if seq.active else 0
            seq.active = seq.plain = False
            if seq.host_blocks:
                self.host.free(seq.host_blocks)
        self.waiting = deque(seq for seq in self.waiting if seq.number != number)
        self.running = [seq for seq in self.running if seq.number != number]
        return len(gone)

    def settle(self):
        """The executor has done the last batch: give back what only that batch still needed. step() does it too."""
        for seq in self.prefilled:
            prompt = seq.request.tokens[: seq.num_tokens - 1]
            self.prefix_cache.insert(seq.table, prompt)
        for seq in self.done:
            seq.table.free()
        for seq in self.forking:
            fork(self, seq)
        if self.pins:
            self.pool.free(self.pins)
        if self.host_done:
            self.host.free(self.host_done)
        self.done, self.prefilled, self.forking, self.pins, self.host_done = [], [], [], [], []

    def step(self, in_transit=()):
        """Plan one step; returns its Batch, which the executor does before it calls again.

        in_transit: sequences whose blocks are still on their way (overlap_swap); they stay where they are. Raises
        Deadlock, Livelock or OutOfBlocks, and changes nothing, when no further step would help.
        """
        self.settle()
        self._check_progress()
        batch = Batch(self.steps)
        admit(self, batch, in_transit)
        if not self.running and self.waiting and not in_transit:
            raise OutOfBlocks(f"nothing runs, and {self.num_free:,} of {self.num_blocks:,} blocks are free: others have the rest")
        left = self.token_budget - sum(not seq.to_prefill for seq in self.running) if self.token_budget else float("inf")
        produced, none_free = batch.decode.append, False
        for seq in self.running:
            table = seq.table
            n = table.num_tokens + 1
            if seq.plain and n <= table.num_slots:
                table.num_tokens = n  # as table.append() does, for a last block that has room and is its own
            elif none_free and seq.plain and seq.stalled != self.patience:
                seq.stalled += 1  # as _grow does
                batch.stalled.append(seq)
                continue
            else:
                if not seq.plain:
                    left -= self._prefill(seq, batch, left, in_transit)
                    if not seq.plain:
                        continue
                if not self._grow(seq, batch, in_transit):
                    none_free = not self.num_free
                    continue
                n, none_free = table.num_tokens, False
            produced(seq)
            if n == seq.total_tokens:
                self._finish(seq, batch)
                none_free = False
        if self.patience is None and len(batch.stalled) == len(self.running) > 0 and not (batch.prefill or in_transit):
            raise Deadlock(deadlock_text(self.steps + 1, len(self.running)))
        if batch.preempted or batch.finished:
            self.running = [seq for seq in self.running if seq.active]
        self.steps += 1
        if batch.finished:
            self._last_finish = self.steps
        return batch

    def _prefill(self, seq, batch, left, in_transit):
        """Feed what fits of a prompt; returns how many tokens count against the budget, and says if a token may follow."""
        if seq.plain or not seq.active or seq in in_transit or (self.overlap_swap and any(seq is s for s, _, _ in batch.swap_in)):
            return 0
        counted, tokens = not seq.to_prefill, min(seq.to_prefill, left)
        if tokens:
            start = max(seq.start_tokens, seq.prompt_tokens) - 1 - seq.to_prefill
            batch.prefill.append((seq, start, start + tokens))
            seq.to_prefill -= tokens
        if not seq.to_prefill:
            if tokens and self.prefix_cache is not None and seq.request.tokens:
                self.prefilled.append(seq)
            if seq.to_fork:
                self.forking.append(seq)
            else:
                seq.plain = counted or tokens < left  # else its next token comes with the next step
        return tokens + (seq.plain and not counted)

    def _grow(self, seq, batch, in_transit):
        """Give a sequence the slot of its next token; says whether it has it."""
        table = seq.table
        if table.num_tokens == table.num_slots and table.num_tokens >= seq.prompt_tokens:
            want = need = 1
        else:
            want = max(1, seq.prompt_tokens + 1 - table.num_tokens)  # 2 for a new sample
            need = table.blocks_needed(want)
        while need > self.pool.num_free:
            if seq.stalled != self.patience:
                seq.stalled += 1
            elif victim := self._victim(seq, in_transit):
                preempt(self, victim, batch)
                if victim is seq:
                    return False
                need = table.blocks_needed(want)
                continue
            seq.plain = table.num_tokens == table.num_slots  # or its last block has room, and must first be copied
            batch.stalled.append(seq)
            return False
        batch.copies += table.append(want)
        seq.stalled = 0
        return True

    def _victim(self, seq, in_transit):
        """Who gives its blocks: what the rule says; nobody if the only one that runs has but to wait for the next step."""
        can_go = [s for s in self.running if s.active and s not in in_transit]
        if len(can_go) > 1:
            victim = self.victim(seq, can_go)
            if victim not in can_go:
                raise ValueError(f"the victim rule {rule_name(self.victim)} returned {victim!r}, which doesn't run")
            return victim
        if not (in_transit or self.pins or self.done):
            others = self.pool.num_used - seq.num_blocks
            raise OutOfBlocks(f"{seq} runs alone and can't grow: {others:,} blocks are not the scheduler's to give")
        return None

    def _finish(self, seq, batch):
        seq.active = seq.plain = False
        batch.finished.append(seq)
        if self.like_threads:
            seq.table.free()
        else:
            self.done.append(seq)

    def _check_progress(self):
        if self.steps >= self._deadline:
            begun = [seq for seq in (*self.running, *self.waiting) if seq.active or seq.preemptions]
            self._deadline = deadline(self, self.steps, self._last_finish, begun, self._tokens)
