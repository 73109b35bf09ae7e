"""Prefix caching: full blocks of tokens that were computed before, found again by a hash of all that lies before them."""

from dataclasses import dataclass, field

from .blocks import BlockTable
from .errors import whole


def chained_hash(parent, tokens):
    """A block's key: of the key of the block before it (0 for the first), and of its own token ids, a tuple of ints."""
    return hash((parent, tokens))  # of whole numbers, which Python hashes alike in every process


@dataclass(frozen=True, eq=False)
class Entry:
    """What is known of a cached block: its own token ids, and the Entry of the block before it (None for the first)."""

    block: int
    tokens: tuple
    parent: object = field(repr=False)


class PrefixCache:
    """Which blocks of a pool hold which tokens, for sequences that begin like an earlier one.

    The K and V of a token depend on all tokens before it, and so does a block's key. A found key is only a hint: the
    tokens are compared, and the block before must be the one just found, so that a collision of two keys is a miss.
    Only full blocks are cached. A cached block that no sequence has waits on the pool's standby until its room is
    needed. Whoever has a block has those before it, and gives them back after it: what is evicted has nothing behind it.
    """

    def __init__(self, pool, key=chained_hash):
        self.pool, self.key = pool, key
        self._entries = {}  # key: Entry
        self.tokens_asked = self.tokens_found = 0

    def __len__(self):
        return len(self._entries)

    @property
    def entries(self):
        """The Entry of each cached block, oldest first."""
        return list(self._entries.values())

    def match(self, tokens):
        """A BlockTable that begins with the cached blocks of these tokens, of as many as are found in a row.

        tokens: whole numbers. The last one is never among the found, since it must be computed for its output: of 32
        cached tokens in blocks of 16, 16 are found. The caller appends and computes tokens[table.num_tokens:].
        """
        tokens, size, table = token_ids(tokens), self.pool.block_size, BlockTable(self.pool)
        with self.pool.lock:
            found, _ = self._find(self._split(tokens[:-1]))
            table.blocks = [entry.block for entry in found]
            self.pool.share(table.blocks)
            table.num_tokens = table.num_slots = len(found) * size
            self.tokens_asked += len(tokens)
            self.tokens_found += table.num_tokens
        return table

    def insert(self, table, tokens):
        """Cache the full blocks of a table that holds these tokens first, K and V included; returns how many are new.

        Where the same tokens are cached in another block, the table takes that one and gives back its own. Nothing is
        cached behind a block whose key another block has, or that is a copy and in a second table too. Every call looks at
        all tokens: make one when a block is full, not one a token.
        """
        tokens, pool = token_ids(tokens), self.pool
        if table.pool is not pool:
            raise ValueError("the table is of another pool")
        if len(tokens) > table.num_tokens:
            raise ValueError(f"{len(tokens)} tokens, and the table has {table.num_tokens}")
        with pool.lock:
            parts = self._split(tokens)
            found, key = self._find(parts)
            for block in table.blocks[len(found) : len(parts)]:
                if block in pool._kept:
                    raise ValueError(f"block {block} is cached with other tokens")
            for i, entry in enumerate(found):
                if entry.block != table.blocks[i]:
                    if pool.ref_count(table.blocks[i]) > 1:
                        return 0
                    pool.share([entry.block])
                    pool.free([table.blocks[i]])
                    table.blocks[i] = entry.block
            parent, new = (found[-1] if found else None), 0
            for block, part in list(zip(table.blocks, parts))[len(found) :]:
                key = self.key(key, part)
                if key in self._entries:
                    break
                pool.keep(block, lambda _, key=key: self._entries.pop(key, None))
                parent = self._entries[key] = Entry(block, part, parent)
                new += 1
        return new

    def _find(self, parts):
        """The Entries of as many blocks as are cached in a row, and the last one's key."""
        found, last, parent = [], 0, None
        for part in parts:
            key = self.key(last, part)
            entry = self._entries.get(key)
            if entry is None or entry.tokens != part or entry.parent is not parent:
                break
            found.append(entry)
            last, parent = key, entry
        return found, last

    def _split(self, tokens):
        size = self.pool.block_size
        return [tokens[i : i + size] for i in range(0, len(tokens) - size + 1, size)]


def token_ids(tokens):
    """Token ids as a tuple of ints; raises TypeError or ValueError for what can't be one."""
    tokens = tuple(tokens)
    if not set(map(type, tokens)) <= {int} or min(tokens, default=0) < 0:
        tokens = tuple(whole(f"tokens[{i}]", t, 0) for i, t in enumerate(tokens))
    return tokens
