"""An executor for tests: it computes nothing, but writes which token lies in each slot, and looks whether all are there."""

from collections import Counter

from pagefault import BlockPool, PrefixCache
from pagefault.scheduler import Scheduler


class Toy:
    """Runs a scheduler; a slot of the pool or of the host holds the name of a token, or nothing."""

    def __init__(self, num_blocks, block_size, prefix_caching=False, **rules):
        self.pool = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(self.pool, prefix_cache=PrefixCache(self.pool) if prefix_caching else None, **rules)
        self.slots = [[None] * block_size for _ in range(num_blocks)]
        self.host = [[None] * block_size for _ in range(rules.get("swap_blocks", 0))]
        self.produced, self.finished, self.seen = {}, [], Counter()

    def name(self, seq, i):
        if i >= seq.prompt_tokens:
            return seq.number, seq.sample, i
        return hash(seq.request.tokens[: i + 1]) if seq.request.tokens else (seq.number, i)

    def write(self, seq, i):
        size = self.pool.block_size
        block = seq.table.blocks[i // size]
        shared = self.pool.ref_count(block) - (block in self.pool._kept)
        assert shared == 1, f"{seq} writes token {i} to block {block}, which {shared} have"
        self.slots[block][i % size] = self.name(seq, i)

    def step(self, in_transit=()):
        scheduler, size = self.scheduler, self.pool.block_size
        batch = scheduler.step(in_transit)
        self.seen.update({name: len(getattr(batch, name)) for name in ("preempted", "stalled", "copies", "swap_in", "prefill")})
        for _, blocks, host in batch.swap_out:
            for block, there in zip(blocks, host, strict=True):
                self.host[there] = self.slots[block].copy()
        for _, host, blocks in batch.swap_in:
            for there, block in zip(host, blocks, strict=True):
                self.slots[block] = self.host[there].copy()
        targets = [target for _, target in batch.copies]  # in one launch, nothing is copied to where another copy reads
        assert len(set(targets)) == len(targets) and not {source for source, _ in batch.copies} & set(targets)
        for source, target in batch.copies:
            self.slots[target] = self.slots[source].copy()
        for seq, start, end in batch.prefill:
            for i in range(start, end):
                self.write(seq, i)
        for seq in batch.decode:
            self.write(seq, seq.num_tokens - 2)
        for seq in batch.decode:
            wrong = [i for i in range(seq.num_tokens - 1)
                     if self.slots[seq.table.blocks[i // size]][i % size] != self.name(seq, i)]
            assert not wrong, f"{seq} has lost its tokens {wrong}"
            self.produced.setdefault((seq.number, seq.sample), set()).add(seq.num_tokens - 1)
        for seq in batch.finished:
            key = seq.number, seq.sample
            assert key not in self.finished and self.produced[key] == set(range(seq.prompt_tokens, seq.total_tokens))
            self.finished.append(key)
        self.check(batch)
        return batch

    def check(self, batch):
        """Blocks are conserved, and everyone is in one place."""
        scheduler, pool = self.scheduler, self.pool
        everyone = [*scheduler.waiting, *scheduler.running]
        assert len({(seq.number, seq.sample) for seq in everyone}) == len(everyone)
        held = {block for seq in (*scheduler.running, *batch.finished) for block in seq.table.blocks} | set(scheduler.pins)
        assert len(held) == pool.num_used and not any(seq.table.blocks for seq in scheduler.waiting)
        assert len(scheduler.running) + scheduler.to_fork <= scheduler.workers
        line = [seq.number for seq in scheduler.waiting]
        assert line == sorted(line) or scheduler.like_threads
        fed = batch.prefill_tokens + len(batch.decode)
        assert scheduler.token_budget is None or fed <= scheduler.token_budget
        if scheduler.host:
            swapped = sum(len(seq.host_blocks) for seq in scheduler.waiting if seq.host_blocks)
            assert scheduler.host.num_used == swapped + len(scheduler.host_done)

    def finish(self, most=100_000):
        """Run to the end; all is free again."""
        while self.scheduler.unfinished:
            self.step()
            assert self.scheduler.steps < most
        self.scheduler.settle()
        assert self.pool.num_used == 0 and (self.scheduler.host is None or self.scheduler.host.num_used == 0)
        return self
