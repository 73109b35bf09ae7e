"""Pool, tables, prefix cache and paged cache used in any order: no sequence ever reads another's token.

A step is an operation, after which all is checked. Some 20,000 steps are hypothesis', which shortens what it finds; random
walks, three times as quick, take the others of the STATE_MACHINE_STEPS (100,000 unless set).
"""

import inspect
import os
import sys
import textwrap
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from world import OPERATIONS, World

from pagefault import BlockPool, BlockTable, PagedCache, PrefixCache

SHAPES = (24, 4), (30, 3), (60, 1), (9, 16), (40, 2)  # num_blocks, block_size
EXAMPLES, LENGTH = 220, 100  # hypothesis' runs, and the most steps of each: some end early
WALKS = 20  # of each shape
BY_HYPOTHESIS = 15_000  # steps at least
STEPS = int(os.environ.get("STATE_MACHINE_STEPS", 100_000))


class Machine(RuleBasedStateMachine):
    steps = 0

    @initialize(shape=st.sampled_from(SHAPES))
    def begin(self, shape):
        self.world = World(*shape)


def operation(name):
    def run(self, a, b, c):
        Machine.steps += 1
        self.world.step(name, (a, b, c))

    run.__name__ = name
    number = st.integers(0, 2**16 - 1)
    return rule(a=number, b=number, c=number)(run)


for name in OPERATIONS:
    setattr(Machine, name, operation(name))


def test_no_token_is_anothers_whatever_hypothesis_does():
    Machine.steps = 0
    run_state_machine_as_test(Machine, settings=settings(
        max_examples=EXAMPLES, stateful_step_count=LENGTH, derandomize=True, deadline=None, database=None))
    assert Machine.steps >= BY_HYPOTHESIS


def walk(shape, seed, steps):
    """A random walk; returns how often it met what."""
    random, world = np.random.RandomState(seed), World(*shape)
    names, weights = list(OPERATIONS), np.array(list(OPERATIONS.values()))
    operations = random.choice(names, steps, p=weights / weights.sum())
    for step, (name, numbers) in enumerate(zip(operations.tolist(), random.randint(0, 2**16, (steps, 3)).tolist())):
        try:
            world.step(name, numbers)
        except Exception as e:
            e.add_note(f"step {step} of walk({shape}, {seed}, {steps}): {name}{tuple(numbers)}")
            raise
    return world.seen


@pytest.mark.parametrize("shape", SHAPES)
def test_no_token_is_anothers_on_random_walks(shape):
    seen = Counter()
    for seed in range(WALKS):
        seen += walk(shape, seed, max(1, (STEPS - BY_HYPOTHESIS) // WALKS // len(SHAPES)))
    assert seen["hit"] and seen["OutOfBlocks"] and (seen["copies"] or shape[1] == 1)


MUTANTS = {
    "a shared tail is not copied": (BlockTable.append, "copies = ((blocks[-1], new[0]),)", "pass"),
    "only K is copied": (PagedCache.copy_blocks, "(self.k, self.v)", "(self.k, self.k)"),
    "a shared tail is written into": (BlockTable.append, "and self._counts[self.blocks[-1]] == 1:", ":"),
    "a count is not lowered": (BlockTable.append, "pool.free([blocks.pop()])", "blocks.pop()"),
    "a fork is not counted": (BlockTable.fork, "self.pool.share(self.blocks)", "pass"),
    "a freed block is written into": (BlockTable.truncate, "del self.blocks[keep:]", "pass"),
    "a refusal loses the free blocks": (BlockPool.allocate, "if n > len(free):", "if n > len(free) and not free.clear():"),
    "a hit is not counted": (PrefixCache.match, "self.pool.share(table.blocks)", "pass"),
    "a collision of two keys is trusted": (PrefixCache._find, " or entry.tokens != part", ""),
    "the block before is not looked at": (PrefixCache._find, " or entry.parent is not parent", ""),
    "the last token is among the found": (PrefixCache.match, "tokens[:-1]", "tokens"),
    "a block in use is evicted": (BlockPool.evict, "block, _ = self._standby.popitem(last=False)",
                                  "block = next(iter(self._kept)); self._standby.pop(block, None)"),
    "an evicted block is still found": (BlockPool.evict, "forget(block)", "pass"),
    "the newest is evicted": (BlockPool.evict, "popitem(last=False)", "popitem()"),
    "blocks come back in another order": (PagedCache.scatter_blocks, 'move_launch(self.xp, "gather_blocks", blocks',
                                          'move_launch(self.xp, "gather_blocks", np.sort(blocks)'),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_walk_finds(mutant, monkeypatch):
    method, old, new = MUTANTS[mutant]
    source, module = textwrap.dedent(inspect.getsource(method)), sys.modules[method.__module__]
    assert source.count(old) == 1
    scope = {}
    exec(source.replace(old, new), vars(module), scope)
    monkeypatch.setattr(getattr(module, method.__qualname__.split(".")[0]), method.__name__, scope[method.__name__])
    with pytest.raises((AssertionError, RuntimeError, LookupError, ValueError)):
        for seed in range(20):
            walk(SHAPES[seed % 2], seed, 500)
