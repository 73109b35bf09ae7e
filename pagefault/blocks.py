"""Whose block is it: a pool that counts references, and a sequence's block table over it."""

import threading
from collections import Counter, OrderedDict

import numpy as np

from .errors import DoubleFree, OutOfBlocks, whole

NO_COPIES = ()


class BlockPool:
    """A fixed number of blocks of block_size token slots: which are free, and how many have each of the others.

    A block in use has a reference count. It is free again when the last one who has it gives it back, or goes to
    standby if someone asked to keep it (the prefix cache does): it can be had again as it is, and it counts as free,
    since it is evicted when its room is needed, the one longest on standby first. Any number of threads may use a pool.

    >>> pool = BlockPool(4, 16)
    >>> pool.allocate(3), pool.num_free
    ([0, 1, 2], 1)
    """

    def __init__(self, num_blocks, block_size):
        self.num_blocks = whole("num_blocks", num_blocks, 1, 2**31 - 1)
        self.block_size = whole("block_size", block_size, 1, 2**31 - 1)
        self.peak = 0  # the most blocks ever in use at once
        self.lock = threading.RLock()
        self._free = list(range(self.num_blocks))[::-1]  # a stack: its end is handed out next
        self._counts = [0] * self.num_blocks
        self._kept = {}  # block: what to call when it is evicted
        self._standby = OrderedDict()  # kept blocks that nobody else has, in the order they came

    @property
    def num_free(self):
        """How many blocks `allocate` can hand out, those on standby included."""
        return len(self._free) + len(self._standby)

    @property
    def num_standby(self):
        """How many blocks hold something that may be wanted again, and nobody has them."""
        return len(self._standby)

    @property
    def num_used(self):
        """How many blocks somebody has."""
        return self.num_blocks - self.num_free

    def ref_count(self, block):
        """How many have the block, the one who keeps it counted; 0 if it is free."""
        return self._counts[whole("block", block, 0, self.num_blocks - 1)]

    def allocate(self, n=1):
        """Hand out n blocks, each with a reference count of 1, as a list; or none: raises OutOfBlocks if fewer are free."""
        if n.__class__ is not int or n < 0:
            n = whole("n", n)
        with self.lock:
            free, counts = self._free, self._counts
            if len(free) < n <= self.num_free:
                self.evict(n - len(free))
            if n > len(free):
                raise OutOfBlocks(f"{n:,} blocks are asked for, and {self.num_free:,} of {self.num_blocks:,} are free")
            blocks = free[: -n - 1 : -1]
            del free[len(free) - n :]
            for block in blocks:
                counts[block] = 1
            used = self.num_blocks - len(free) - len(self._standby)
            if used > self.peak:
                self.peak = used
        return blocks

    def share(self, blocks):
        """Count one more reference to each of the blocks. Raises ValueError, and counts none, if one of them is free."""
        with self.lock:
            blocks = self._checked(blocks)
            for block in blocks:
                if not self._counts[block]:
                    raise ValueError(f"block {block} is free, and only a block that somebody has can be shared")
            for block in blocks:
                self._counts[block] += 1
                self._standby.pop(block, None)
            self.peak = max(self.peak, self.num_used)

    def free(self, blocks):
        """Give back one reference to each of the blocks, the last block first. Raises DoubleFree, and takes none, if there
        is a block among them that nobody has, or that is named more often than it was taken."""
        with self.lock:
            self._release(self._checked(blocks))

    def _release(self, blocks):
        counts, kept, rest = self._counts, self._kept, iter(blocks)
        if not kept:
            for block in rest:  # the quick way, for blocks that nobody else has
                if counts[block] != 1:
                    break
                counts[block] = 0
            else:
                self._free.extend(reversed(blocks))
                return
            for block in blocks[: -1 - len(list(rest))]:
                counts[block] = 1
        for block, times in Counter(blocks).items():  # before one changes: other threads read counts without the lock
            if times > counts[block] - (block in kept):
                why = "more often than it was taken" if counts[block] > (block in kept) else "but nobody has it"
                raise DoubleFree(f"block {block} is given back {why}")
        for block in blocks:
            counts[block] -= 1
        for block in dict.fromkeys(reversed(blocks)):
            if not counts[block]:
                self._free.append(block)
            elif counts[block] == 1 and block in kept:
                self._standby[block] = None

    def keep(self, block, forget):
        """Let a block that somebody has go to standby instead of being free; forget(block) is called once it was evicted."""
        if not callable(forget):
            raise TypeError(f"forget = {forget!r}, a function is needed")
        with self.lock:
            if block in self._kept:
                raise ValueError(f"block {block} is kept already")
            self.share([block])
            self._kept[block] = forget

    def evict(self, n):
        """Free up to n of the blocks on standby, the one longest there first; returns how many."""
        with self.lock:
            n, freed = whole("n", n), 0
            while freed < n and self._standby:
                block, _ = self._standby.popitem(last=False)
                forget = self._kept.pop(block)
                self._counts[block] = 0
                self._free.append(block)
                freed += 1
                forget(block)
        return freed

    def _checked(self, blocks):
        blocks = list(blocks)
        if not set(map(type, blocks)) <= {int} or (blocks and not 0 <= min(blocks) <= max(blocks) < self.num_blocks):
            blocks = [whole(f"blocks[{i}]", block, 0, self.num_blocks - 1) for i, block in enumerate(blocks)]
        return blocks


class BlockTable:
    """One sequence's blocks, in order: token i lies at offset i % block_size of blocks[i // block_size].

    num_tokens counts every token that has its slot, the newest included; num_slots is how many the blocks have.
    A table is one thread's at a time; its pool may be many threads'.

    >>> table = BlockTable(BlockPool(8, 16))
    >>> table.append(20), table.blocks, table.slots(15, 18).tolist()
    ((), [0, 1], [15, 16, 17])
    """

    __slots__ = ("pool", "blocks", "num_tokens", "num_slots", "_counts")

    def __init__(self, pool):
        self.pool, self.blocks, self.num_tokens = pool, [], 0
        self.num_slots, self._counts = 0, pool._counts

    @property
    def last_block_tokens(self):
        """How many tokens the last block holds: from 1 to block_size, 0 if there is no block."""
        return self.num_tokens - max(0, len(self.blocks) - 1) * self.pool.block_size

    def blocks_needed(self, n=1):
        """How many blocks append(n) takes from the pool: none while the last one has room and is this table's own."""
        end = self.num_tokens + whole("n", n)
        copy = self.num_tokens < self.num_slots and self._counts[self.blocks[-1]] > 1 and n > 0
        return -(-end // self.pool.block_size) - len(self.blocks) + copy

    def append(self, n=1):
        """Give n more tokens their slots; returns the block copies to make first, as a sequence of (source, target).

        A last block that has room, and that others have too, isn't written into: it is replaced by one of the table's
        own (copy on write). Copy what it holds before anybody writes. Raises OutOfBlocks, and changes nothing, if
        the pool has too few blocks.
        """
        if n.__class__ is int and 0 < n <= self.num_slots - self.num_tokens and self._counts[self.blocks[-1]] == 1:
            self.num_tokens += n  # the quick way: the last block has room and is ours
            return NO_COPIES
        if n.__class__ is not int or n < 0:
            n = whole("n", n)
        pool, blocks, copies = self.pool, self.blocks, NO_COPIES
        with pool.lock:
            copy = self.num_tokens < self.num_slots and self._counts[blocks[-1]] > 1 and n > 0
            new = pool.allocate(-(-(self.num_tokens + n) // pool.block_size) - len(blocks) + copy)
            if copy:
                copies = ((blocks[-1], new[0]),)
                pool.free([blocks.pop()])
            blocks += new
            self.num_tokens += n
            self.num_slots = len(blocks) * pool.block_size
        return copies

    def slots(self, start=0, end=None):
        """The slots of tokens start to end - 1, block * block_size + offset each; int64 [end - start]."""
        end = whole("end", self.num_tokens if end is None else end, 0, self.num_tokens)
        i = np.arange(whole("start", start, 0, end), end)
        size = self.pool.block_size
        first = start // size
        return np.array(self.blocks[first : -(-end // size)], np.int64)[i // size - first] * size + i % size

    def fork(self):
        """A second table of the same tokens; both have all the blocks, until one of them writes."""
        other = BlockTable(self.pool)
        self.pool.share(self.blocks)
        other.blocks, other.num_tokens, other.num_slots = self.blocks.copy(), self.num_tokens, self.num_slots
        return other

    def truncate(self, num_tokens):
        """Drop all tokens from num_tokens on, and give back the blocks that then hold none."""
        num_tokens = whole("num_tokens", num_tokens, 0, self.num_tokens)
        pool, keep = self.pool, -(-num_tokens // self.pool.block_size)
        with pool.lock:
            pool._release(self.blocks[keep:])
        del self.blocks[keep:]
        self.num_tokens, self.num_slots = num_tokens, keep * pool.block_size

    def free(self):
        """Drop all tokens and give back all blocks."""
        with self.pool.lock:
            self.pool._release(self.blocks)
        self.blocks, self.num_tokens, self.num_slots = [], 0, 0


def block_tables(tables, width=None):
    """The blocks of several tables as a kernel reads them: int32 [num_seqs, width], -1 behind a sequence's last block.

    width: the most blocks of a table unless given. Raises ValueError if a table has more.
    """
    longest = max((len(table.blocks) for table in tables), default=0)
    width = longest if width is None else whole("width", width, longest)
    rows = np.full((len(tables), width), -1, np.int32)
    for row, table in zip(rows, tables):
        row[: len(table.blocks)] = table.blocks
    return rows
