"""A server's pool, tables, prefix cache and paged cache, and beside them what they must hold: for test_state_machine.py.

OPERATIONS: the names of World's methods that change something, and how often a random walk takes each.
"""

from collections import Counter

import numpy as np

from pagefault import BlockPool, BlockTable, HostBlocks, OutOfBlocks, PagedCache, PrefixCache

LONGEST, MOST = 40, 6  # tokens of a sequence; live sequences
OPERATIONS = dict(start=4, append=6, decode=6, fork=5, truncate=4, free=3, insert=5, evict=1, swap_out=2, swap_in=3, read=1)


def weak_hash(parent, tokens):
    """A key of the prefix cache, of few values: many collide."""
    return hash((parent, tokens)) % 11


class Sequence:
    """The tokens that a table should hold, and their K and V, [2, LONGEST, 1, 4]: these tell all tokens up to there."""

    def __init__(self, table):
        self.table, self.tokens, self.want = table, [], np.zeros((2, LONGEST, 1, 4), np.float32)

    def extend(self, tokens):
        n = len(self.tokens)
        history = int(self.want[0, n - 1, 0, 2]) if n else 0
        for i, token in enumerate(tokens, n):
            history = (history * 1_000_003 + token + 1) % 8_388_593
            self.want[0, i, 0] = token, i, history, 1
        self.want[1, n : n + len(tokens)] = -self.want[0, n : n + len(tokens)]
        self.tokens += tokens


class World:
    """What a server does with its cache, and beside it what must come out. Operations take numbers, and pick by them."""

    def __init__(self, num_blocks, block_size):
        self.pool = BlockPool(num_blocks, block_size)
        self.prefix = PrefixCache(self.pool, weak_hash)
        self.cache = PagedCache(num_blocks, block_size, 1, 4)
        self.host, self.host_free = HostBlocks(self.cache, MOST * num_blocks), list(range(MOST * num_blocks))
        self.live, self.swapped, self.free_before = [], [], set(range(num_blocks))
        self.cached = np.zeros((2, *self.cache.k.shape), np.float32)  # what cached blocks should hold
        self.seen = Counter()

    def step(self, name, numbers):
        """One operation, then the check; a sequence is started if the operation needs one and there is none."""
        name = name if self.live or name in ("evict", "swap_in") else "start"
        self.seen[name] += 1
        getattr(self, name)(*numbers)
        self.check()

    # ---- operations -----------------------------------------------------------------------------
    def start(self, a, b, c):
        """A new sequence, whose prompt begins as others do; what the prefix cache has of it isn't computed again."""
        if len(self.live) == MOST:
            return
        n = 1 + a % 20
        prompt = [(i + b % 3) // (2 + b % 3) % 3 for i in range(n - a % 5)] + [c >> i & 1 for i in range(a % 5)]
        expected = self.found(prompt) if c % 4 else []
        seq = Sequence(self.prefix.match(prompt) if c % 4 else BlockTable(self.pool))
        assert seq.table.blocks == expected
        self.seen["hit"] += len(expected) > 0
        start = seq.table.num_tokens
        seq.extend(prompt[:start])
        if self.grow([(seq, prompt[start:])]):
            self.live.append(seq)
        else:
            seq.table.free()

    def append(self, a, b, c):
        """More tokens for one sequence."""
        seq = self.live[a % len(self.live)]
        self.grow([(seq, [c >> i & 1 for i in range(min(1 + b % 6, LONGEST - len(seq.tokens)))])])

    def decode(self, a, b, c):
        """A token for every sequence: all copies are made together, then all tokens are written."""
        self.grow([(seq, [(c >> i) % 3]) for i, seq in enumerate(self.live) if len(seq.tokens) < LONGEST])

    def fork(self, a, b, c):
        if len(self.live) < MOST:
            seq = self.live[a % len(self.live)]
            other = Sequence(seq.table.fork())
            other.tokens, other.want = seq.tokens.copy(), seq.want.copy()
            self.live.append(other)

    def truncate(self, a, b, c):
        seq = self.live[a % len(self.live)]
        n = b % (len(seq.tokens) + 1)
        seq.table.truncate(n)
        del seq.tokens[n:]

    def free(self, a, b, c):
        self.live.pop(a % len(self.live)).table.free()

    def insert(self, a, b, c):
        """Cache a sequence's full blocks."""
        seq, size = self.live[a % len(self.live)], self.pool.block_size
        before = {entry.block for entry in self.prefix.entries}
        new = self.prefix.insert(seq.table, seq.tokens[: len(seq.tokens) - b % 2])
        added = [entry.block for entry in self.prefix.entries if entry.block not in before]
        assert len(added) == new
        for block in added:
            i = seq.table.blocks.index(block)
            self.cached[:, block] = seq.want[:, i * size : (i + 1) * size]

    def evict(self, a, b, c):
        n, idle = a % 4, self.pool.num_standby
        assert self.pool.evict(n) == min(n, idle) == idle - self.pool.num_standby

    def swap_out(self, a, b, c):
        if len(self.swapped) < MOST:
            seq = self.live.pop(a % len(self.live))
            there = self.host_free[: len(seq.table.blocks)]
            del self.host_free[: len(there)]
            self.host.swap_out(seq.table.blocks, there)
            self.swapped.append((seq, there))
            seq.table.free()

    def swap_in(self, a, b, c):
        if self.swapped and len(self.live) < MOST:
            i = a % len(self.swapped)
            seq, host = self.swapped[i]
            if self.grant(seq.table, len(seq.tokens)) is not None:
                self.host.swap_in(host, seq.table.blocks)
                self.host_free += host
                del self.swapped[i]
                self.live.append(seq)

    def read(self, a, b, c):
        seq = self.live[a % len(self.live)]
        assert np.array_equal(self.cache.read(seq.table), seq.want[:, : len(seq.tokens)])

    # ---- what they share ------------------------------------------------------------------------
    def grant(self, table, n):
        """table.append(n), or None if there are too few blocks: then nothing has changed."""

        def state():
            return (self.pool._free.copy(), self.pool._counts.copy(), list(self.pool._standby), self.pool.peak,
                    table.blocks.copy(), table.num_tokens, table.num_slots, len(self.prefix))

        before, fits = state(), table.blocks_needed(n) <= self.pool.num_free
        try:
            copies = table.append(n)
        except OutOfBlocks:
            assert not fits and state() == before
            self.seen["OutOfBlocks"] += 1
            return None
        assert fits
        return copies

    def grow(self, growth):
        """Give sequences tokens as far as there are blocks: [(sequence, tokens)]; returns how many got theirs."""
        copies, slots, rows, grown = [], [], [], 0
        for seq, tokens in growth:
            start = len(seq.tokens)
            more = self.grant(seq.table, len(tokens))
            if more is not None:
                copies += more
                slots.append(seq.table.slots(start))
                seq.extend(tokens)
                rows.append(seq.want[:, start : len(seq.tokens)])
                grown += 1
        self.seen["copies"] += len(copies)
        self.cache.copy_blocks(copies)
        if grown:
            self.cache.append(np.concatenate(slots), *np.concatenate(rows, axis=1))
        return grown

    def found(self, prompt):
        """The cached blocks that a prompt should be found to begin with."""

        def tokens(entry):
            return (tokens(entry.parent) if entry.parent else ()) + entry.tokens

        known, size, blocks = {tokens(entry): entry.block for entry in self.prefix.entries}, self.pool.block_size, []
        while (len(blocks) + 1) * size < len(prompt) and tuple(prompt[: (len(blocks) + 1) * size]) in known:
            blocks.append(known[tuple(prompt[: (len(blocks) + 1) * size])])
        return blocks

    def check(self):
        """Every block is free, idle or in use, and counted right; every live sequence and cached block holds its own tokens."""
        pool, entries, size = self.pool, self.prefix.entries, self.pool.block_size
        tables, kept = [seq.table for seq in self.live], [entry.block for entry in entries]
        counts = Counter(block for table in tables for block in table.blocks)
        used, free = set(counts), set(pool._free)
        counts.update(kept)
        assert pool._counts == [counts[block] for block in range(pool.num_blocks)]
        assert len(free) == len(pool._free) and free == set(range(pool.num_blocks)) - set(counts)
        assert set(pool._standby) == set(kept) - used and set(kept) == set(pool._kept) and len(set(kept)) == len(kept)
        assert len(free) + pool.num_standby + len(used) == pool.num_blocks and pool.num_used == len(used)
        assert {entry.parent for entry in entries} <= {None, *entries}
        self.cache.poison(list(free - self.free_before))
        self.free_before = free
        blocks = [block for table in tables for block in table.blocks]
        staging = np.stack([x[blocks + kept] for x in (self.cache.k, self.cache.v)])  # (a launch would take longer than all else)
        assert np.array_equal(staging[:, len(blocks) :], self.cached[:, kept])
        slots, start = staging.reshape(2, -1, 1, 4), 0
        for seq in self.live:
            n, table = len(seq.tokens), seq.table
            assert table.num_tokens == n and len(table.blocks) == -(-n // size) and table.num_slots == len(table.blocks) * size
            assert np.array_equal(slots[:, start : start + n], seq.want[:, :n])
            start += table.num_slots
