import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pagefault import BlockPool, BlockTable, OutOfBlocks, PrefixCache, load_trace

X, Y = list(range(100, 132)), list(range(200, 232))


def computed(cache, tokens):
    """A table whose tokens were computed, and cached."""
    table = cache.match(tokens)
    table.append(len(tokens) - table.num_tokens)
    cache.insert(table, tokens)
    return table


def found(cache, tokens):
    table = cache.match(tokens)
    n = table.num_tokens
    table.free()
    return n


def test_a_prompt_found_whole_still_computes_its_last_token():
    cache = PrefixCache(BlockPool(8, 16))
    computed(cache, X)
    assert [found(cache, X[:n]) for n in (0, 1, 15, 16, 17, 31, 32)] == [0, 0, 0, 0, 16, 16, 16]
    assert found(cache, [*X, 1]) == 32


def test_blocks_are_shared_and_counted_with_the_sequences_that_have_them():
    pool = BlockPool(8, 16)
    cache = PrefixCache(pool)
    first = computed(cache, X)
    second = cache.match([*X, 5])
    assert second.blocks == first.blocks and [pool.ref_count(b) for b in first.blocks] == [3, 3]  # two sequences, the cache
    first.free()
    assert [pool.ref_count(b) for b in second.blocks] == [2, 2] and pool.num_standby == 0
    second.free()
    assert pool.num_standby == 2 and pool.num_free == 8 and len(cache) == 2


def test_equal_tokens_after_different_ones_are_another_block():
    cache = PrefixCache(BlockPool(8, 4))
    a, b = [1, 2, 3, 4, 9, 9, 9, 9], [5, 6, 7, 8, 9, 9, 9, 9]
    computed(cache, a)
    assert found(cache, [*b, 0]) == 0
    computed(cache, b)
    assert found(cache, [*a, 0]) == found(cache, [*b, 0]) == 8 and len(cache) == 4


@pytest.mark.parametrize("a, b", [([65] * 16, [321] * 16), ([1, 23], [12, 3]), ([0], [2**61 - 1]), ([1, 2], [2, 1])])
def test_different_tokens_are_different(a, b):
    cache = PrefixCache(BlockPool(8, len(a)))
    computed(cache, a)
    assert found(cache, [*b, 7]) == 0 and found(cache, [*a, 7]) == len(a)


def test_a_collision_of_keys_is_a_miss():
    cache = PrefixCache(BlockPool(8, 16), key=lambda parent, tokens: 0)
    x, y = computed(cache, X), computed(cache, Y)
    assert found(cache, [*Y, 1]) == 0 and found(cache, [*X, 1]) == 16 and len(cache) == 1
    assert not set(x.blocks) & set(y.blocks)


def test_a_collision_behind_another_prefix_is_a_miss():
    tail = [7] * 4
    cache = PrefixCache(BlockPool(8, 4), key=lambda parent, tokens: tokens == tuple(tail))  # the parent is ignored
    computed(cache, [1, 2, 3, 4, *tail])
    cache.pool.evict(8)
    computed(cache, [1, 2, 3, 4, *tail]).free()
    assert found(cache, [5, 6, 7, 8, *tail, 0]) == 0
    assert found(cache, [1, 2, 3, 4, *tail, 0]) == 8


def test_what_was_evicted_is_a_miss_though_its_block_has_other_tokens_now():
    pool = BlockPool(2, 16)
    cache = PrefixCache(pool)
    computed(cache, X).free()
    y = computed(cache, Y)
    assert found(cache, [*X, 1]) == 0 and sorted(y.blocks) == [0, 1] and len(cache) == 2


def test_the_least_recently_used_is_evicted_and_never_one_in_use():
    pool = BlockPool(6, 16)
    cache = PrefixCache(pool)
    live = computed(cache, X)
    a, b = [1] * 16, [2] * 16
    computed(cache, a).free()
    computed(cache, b).free()
    assert found(cache, [*a, 0]) == 16  # used again: b is the older one now
    pool.allocate(3)
    assert (found(cache, [*a, 0]), found(cache, [*b, 0]), found(cache, [*X, 0])) == (16, 0, 32)
    with pytest.raises(OutOfBlocks, match="2 blocks are asked for, and 1 of 6"):
        pool.allocate(2)
    assert found(cache, [*a, 0]) == 16 and live.num_tokens == 32


def test_leaves_are_evicted_before_what_they_follow():
    pool = BlockPool(8, 4)
    cache = PrefixCache(pool)
    chain = list(range(16))
    computed(cache, chain).free()
    found(cache, chain[:9])  # the first two blocks are used again
    kept = []
    for _ in range(4):
        pool.evict(1)
        kept.append(found(cache, [*chain, 0]))
    assert kept == [12, 8, 4, 0]


def test_sequences_that_computed_the_same_end_with_one_copy():
    pool = BlockPool(8, 16)
    cache = PrefixCache(pool)
    tables = [BlockTable(pool) for _ in "ab"]
    for table in tables:
        table.append(32)
    assert [cache.insert(t, X) for t in tables] == [2, 0]
    assert tables[0].blocks == tables[1].blocks and pool.num_used == 2
    for table in tables:
        table.free()
    assert pool.num_free == 8 and pool.num_standby == 2


def test_a_copy_that_a_fork_has_too_stays_and_nothing_is_cached_behind_it():
    pool = BlockPool(12, 16)
    cache = PrefixCache(pool)
    computed(cache, X)
    table = BlockTable(pool)
    table.append(48)
    fork = table.fork()
    assert cache.insert(table, [*X, *range(16)]) == 0 and table.blocks == fork.blocks and len(cache) == 2
    fork.free()
    assert cache.insert(table, [*X, *range(16)]) == 1 and found(cache, [*X, *range(17)]) == 48


def test_only_full_blocks_are_cached():
    cache = PrefixCache(BlockPool(8, 16))
    table = computed(cache, X[:31])
    assert len(cache) == 1
    table.append()
    assert cache.insert(table, X) == 1 and cache.insert(table, X) == 0


def test_a_cached_block_is_never_written():
    pool = BlockPool(8, 16)
    cache = PrefixCache(pool)
    table = computed(cache, X)
    table.truncate(20)
    assert list(table.append()) and table.blocks[1] != 1 and found(cache, [*X, 0]) == 32


def test_the_share_of_tokens_found():
    cache = PrefixCache(BlockPool(8, 16))
    for _ in range(4):
        computed(cache, X).free()
    assert (cache.tokens_asked, cache.tokens_found) == (128, 48)


@pytest.mark.parametrize("call, error, message", [
    (lambda c, t: c.insert(t, [*X, 1]), ValueError, "33 tokens, and the table has 32"),
    (lambda c, t: c.insert(BlockTable(BlockPool(1, 16)), []), ValueError, "of another pool"),
    (lambda c, t: c.insert(t, Y), ValueError, "block 0 is cached with other tokens"),
    (lambda c, t: c.match([1.5]), TypeError, r"tokens\[0\] = 1.5"),
    (lambda c, t: c.match([3, -1]), ValueError, r"tokens\[1\] = -1"),
    (lambda c, t: c.match("text"), TypeError, r"tokens\[0\] = 't'"),
])
def test_what_cannot_be_is_refused(call, error, message):
    cache = PrefixCache(BlockPool(4, 16))
    table = computed(cache, X)
    before = list(cache.pool._counts), len(cache), table.blocks[:]
    with pytest.raises(error, match=message):
        call(cache, table)
    assert (list(cache.pool._counts), len(cache), table.blocks) == before


def test_a_refused_insert_leaves_nothing_to_be_found():
    pool = BlockPool(4, 4)
    cache, table = PrefixCache(pool), BlockTable(pool)
    table.append(4)
    pool.free(table.blocks)
    with pytest.raises(ValueError, match="block 0 is free"):
        cache.insert(table, [1, 2, 3, 4])
    assert len(cache) == 0 and found(cache, [1, 2, 3, 4, 5]) == 0


def test_a_long_chain_has_a_short_text():
    cache = PrefixCache(BlockPool(5000, 1))
    computed(cache, range(5000))
    assert len(repr(cache.entries[-1])) < 100


def test_keys_do_not_depend_on_the_process_and_tokens_may_be_numpys():
    code = "from pagefault.prefix import chained_hash as h; print(h(h(0, (1, 2)), (3, 4)))"
    runs = {subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": s}, capture_output=True, text=True).stdout
            for s in ("1", "2")}
    assert len(runs) == 1
    cache = PrefixCache(BlockPool(4, 16))
    computed(cache, np.array(X))
    assert found(cache, [*X, 0]) == 32


@pytest.mark.skipif("PAGEFAULT_TRACES" not in os.environ, reason="PAGEFAULT_TRACES names no folder with the real traces")
@pytest.mark.parametrize("num_blocks, percent", [(300_000, 37.4), (10**6 // 512, 5.4)])  # a million tokens, in blocks of 512
def test_how_much_of_real_prompts_is_found_again(num_blocks, percent):
    trace = load_trace(Path(os.environ["PAGEFAULT_TRACES"]) / "mooncake_conversation_trace.jsonl")
    cache, hits = PrefixCache(BlockPool(num_blocks, 1)), 0
    for ids, tokens in zip(trace.hash_ids, trace.prompt_tokens):  # a block of the trace is a token here
        table = cache.match([*ids, 2**40])
        hits += min(512 * table.num_tokens, tokens)
        table.append(len(ids) - table.num_tokens)
        cache.insert(table, ids)
        table.free()
    assert round(100 * hits / trace.prompt_tokens.sum(), 1) == percent
