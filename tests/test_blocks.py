import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefault import BlockPool, BlockTable, DoubleFree, OutOfBlocks, block_tables


def state(pool):
    return list(pool._free), list(pool._counts), list(pool._standby), pool.peak


def table(pool, n):
    t = BlockTable(pool)
    t.append(n)
    return t


def test_a_slot_is_the_block_times_its_size_and_the_offset():
    t = table(BlockPool(20, 4), 10)
    t.blocks = [7, 2, 19]
    assert t.slots().tolist() == [28, 29, 30, 31, 8, 9, 10, 11, 76, 77]
    assert t.slots(3, 9).tolist() == [31, 8, 9, 10, 11, 76] and t.slots(10).tolist() == []


def test_allocation_is_all_or_nothing():
    pool = BlockPool(4, 16)
    assert pool.allocate(3) == [0, 1, 2]
    before = state(pool)
    with pytest.raises(OutOfBlocks, match="2 blocks are asked for, and 1 of 4 are free"):
        pool.allocate(2)
    assert state(pool) == before and (pool.num_free, pool.num_used, pool.peak) == (1, 3, 3)
    pool.free([1])
    assert pool.allocate(2) == [1, 3] and pool.allocate(0) == []


def test_counts_return_to_zero():
    pool = BlockPool(4, 16)
    blocks = pool.allocate(3)
    pool.share(blocks)
    pool.free(blocks)
    assert [pool.ref_count(b) for b in range(4)] == [1, 1, 1, 0]
    pool.free(blocks)
    assert [pool.ref_count(b) for b in range(4)] == [0] * 4 and pool.num_free == 4 and pool.peak == 3


@pytest.mark.parametrize("call, error, message", [
    (lambda p: p.free([3]), DoubleFree, "block 3 is given back but nobody has it"),
    (lambda p: p.free([0, 1, 3]), DoubleFree, "block 3 is given back but"),
    (lambda p: p.free([1, 2, 1]), DoubleFree, "block 1 is given back more often than it was taken"),
    (lambda p: p.free([0, 0, 0]), DoubleFree, "block 0 is given back more often"),
    (lambda p: p.free([1, 8]), ValueError, r"blocks\[1\] = 8, it is from 0 to 3"),
    (lambda p: p.free([-1]), ValueError, r"blocks\[0\] = -1"),
    (lambda p: p.free([1.0]), TypeError, r"blocks\[0\] = 1.0, a whole number"),
    (lambda p: p.free([True]), TypeError, r"blocks\[0\] = True, a whole number"),
    (lambda p: p.share([0, 3]), ValueError, "block 3 is free, and only"),
    (lambda p: p.keep(3, print), ValueError, "block 3 is free"),
    (lambda p: p.keep(0, None), TypeError, "forget = None, a function is needed"),
    (lambda p: p.allocate(-1), ValueError, "n = -1"),
    (lambda p: p.allocate(1.5), TypeError, "n = 1.5"),
    (lambda p: p.allocate(True), TypeError, "n = True"),
    (lambda p: p.ref_count(4), ValueError, "block = 4"),
    (lambda p: p.evict(-1), ValueError, "n = -1"),
])
def test_a_refused_call_changes_nothing(call, error, message):
    pool = BlockPool(4, 16)
    pool.share([pool.allocate(3)[0]])
    before = state(pool)
    with pytest.raises(error, match=message):
        call(pool)
    assert state(pool) == before


@pytest.mark.parametrize("num_blocks, block_size", [(0, 16), (4, 0), (-1, 1), (2**31, 1)])
def test_a_pool_of_nothing_is_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match="num_blocks|block_size"):
        BlockPool(num_blocks, block_size)


def test_ids_of_numpy_are_taken_as_they_are():
    pool = BlockPool(4, 16)
    pool.free(np.array(pool.allocate(np.int64(3))))
    assert sorted(map(type, pool._free), key=str) == [int] * 4


def test_a_block_is_taken_only_at_the_boundary():
    pool = BlockPool(2, 4)
    t, other = table(pool, 3), table(pool, 1)
    assert pool.num_free == 0 and t.blocks_needed(1) == 0 and t.blocks_needed(2) == 1
    assert t.append() == () and t.num_tokens == 4
    before = state(pool), t.blocks[:]
    with pytest.raises(OutOfBlocks, match="1 blocks are asked for, and 0 of 2"):
        t.append()
    assert (state(pool), t.blocks, t.num_tokens) == (*before, 4)
    other.free()
    t.append()
    assert t.num_tokens == 5 and len(t.blocks) == 2


def test_growing_takes_the_difference():
    pool = BlockPool(20, 16)
    t = table(pool, 100)
    assert len(t.blocks) == 7 and t.blocks_needed(100) == 6
    t.append(100)
    assert len(t.blocks) == 13 and pool.num_used == 13


def test_growth_that_fails_keeps_the_table():
    pool = BlockPool(4, 16)
    t = table(pool, 48)
    before = state(pool)
    with pytest.raises(OutOfBlocks):
        t.append(32)
    assert state(pool) == before and t.num_tokens == 48 and pool.num_free == 1


@pytest.mark.parametrize("n, last", [(0, 0), (1, 1), (15, 15), (16, 16), (17, 1), (32, 16)])
def test_a_full_last_block_holds_block_size_tokens(n, last):
    assert table(BlockPool(4, 16), n).last_block_tokens == last


@pytest.mark.parametrize("first, second", [(0, 1), (1, 0)])
def test_a_shared_tail_is_copied_by_the_first_who_writes(first, second):
    pool = BlockPool(4, 16)
    tables = [table(pool, 20)]
    tables.append(tables[0].fork())
    tail = tables[0].blocks[1]
    assert [t.blocks_needed() for t in tables] == [1, 1] and pool.num_used == 2
    assert list(tables[first].append()) == [(tail, tables[first].blocks[1])] and tables[first].blocks[1] != tail
    assert tables[second].blocks_needed() == 0 and tables[second].append() == ()
    assert [pool.ref_count(b) for b in (tables[0].blocks[0], tables[0].blocks[1], tables[1].blocks[1])] == [2, 1, 1]
    for t in tables:
        t.free()
    assert pool.num_free == 4


def test_a_shared_tail_needs_a_free_block_though_it_has_room():
    pool = BlockPool(2, 16)
    t = table(pool, 20)
    fork = t.fork()
    before = state(pool)
    with pytest.raises(OutOfBlocks):
        fork.append()
    assert state(pool) == before and fork.blocks == t.blocks and fork.num_tokens == 20


def test_a_full_shared_tail_is_not_copied():
    pool = BlockPool(4, 16)
    t = table(pool, 32)
    fork = t.fork()
    assert fork.append() == () and fork.blocks[:2] == t.blocks and len(fork.blocks) == 3


def test_a_copy_and_growth_beyond_it_are_one_step():
    pool = BlockPool(4, 16)
    t = table(pool, 20)
    fork = t.fork()
    assert fork.blocks_needed(20) == 2
    assert list(fork.append(20)) == [(t.blocks[1], fork.blocks[1])] and len(fork.blocks) == 3
    assert fork.append(0) == () == t.append(0)


def test_a_table_cut_back_into_a_shared_block_copies_it_before_it_writes():
    pool = BlockPool(4, 4)
    t = table(pool, 8)
    fork = t.fork()
    fork.truncate(6)
    assert fork.blocks == t.blocks and list(fork.append()) == [(t.blocks[1], fork.blocks[1])]
    fork.truncate(0)
    assert fork.blocks == [] and pool.num_used == 2 and fork.last_block_tokens == 0


def test_a_table_whose_blocks_were_given_back_behind_its_back_says_so():
    pool = BlockPool(4, 4)
    t = table(pool, 8)
    pool.free(t.blocks)
    with pytest.raises(DoubleFree):
        t.free()
    assert t.num_tokens == 8 and pool.num_free == 4


@pytest.mark.parametrize("call, error, message", [
    (lambda t: t.append(-1), ValueError, "n = -1"),
    (lambda t: t.append(0.5), TypeError, "n = 0.5"),
    (lambda t: t.append(True), TypeError, "n = True"),
    (lambda t: t.append("a"), TypeError, "n = 'a', a whole number"),
    (lambda t: t.append(None), TypeError, "n = None, a whole number"),
    (lambda t: t.append(10**12), OutOfBlocks, "are free"),
    (lambda t: t.truncate(6), ValueError, "num_tokens = 6, it is from 0 to 5"),
    (lambda t: t.slots(3, 6), ValueError, "end = 6, it is from 0 to 5"),
    (lambda t: t.slots(4, 3), ValueError, "start = 4, it is from 0 to 3"),
    (lambda t: t.blocks_needed(-1), ValueError, "n = -1"),
    (lambda t: block_tables([t], 1), ValueError, "width = 1, it is at least 2"),
])
def test_a_table_refuses_what_cannot_be(call, error, message):
    t = table(BlockPool(3, 4), 5)
    before = state(t.pool), t.blocks[:], t.num_tokens
    with pytest.raises(error, match=message):
        call(t)
    assert (state(t.pool), t.blocks, t.num_tokens) == before


def test_tables_as_a_kernel_reads_them():
    pool = BlockPool(9, 4)
    rows = block_tables([table(pool, 9), table(pool, 0), table(pool, 4)])
    assert rows.tolist() == [[0, 1, 2], [-1, -1, -1], [3, -1, -1]] and rows.dtype == np.int32
    assert block_tables([], 5).shape == (0, 5) and block_tables([table(pool, 1)], 3).tolist() == [[4, -1, -1]]


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 9), st.randoms())
def test_no_two_tokens_share_a_slot(lengths, block_size, random):
    pool = BlockPool(400, block_size)
    tables = [BlockTable(pool) for _ in lengths]
    steps = [t for t, n in zip(tables, lengths) for _ in range(n)]
    random.shuffle(steps)
    for t in steps:
        t.append()
    slots = np.concatenate([t.slots() for t in tables] or [[]])
    assert len(set(slots.tolist())) == sum(lengths) and pool.num_used == sum(-(-n // block_size) for n in lengths)
    assert pool.peak == pool.num_used


def test_kept_blocks_wait_on_standby_and_are_evicted_the_longest_there_first():
    pool, gone = BlockPool(4, 4), []
    a, b = table(pool, 8), table(pool, 4)
    for block in (*a.blocks, *b.blocks):
        pool.keep(block, gone.append)
    assert pool.ref_count(a.blocks[0]) == 2 and pool.num_standby == 0
    a.free()
    assert pool.num_standby == 2 and pool.num_free == 3 and pool.num_used == 1
    with pytest.raises(DoubleFree):
        pool.free([0])
    pool.share([0])  # found again
    pool.free([0])
    assert pool.allocate(2) == [1, 3]
    assert gone == [1]
    pool.allocate(1)
    assert gone == [1, 0] and pool.num_free == 0
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    assert gone == [1, 0] and pool.ref_count(2) == 2


def test_a_kept_block_is_copied_before_it_is_written():
    pool = BlockPool(4, 4)
    t = table(pool, 4)
    pool.keep(0, print)
    t.truncate(3)
    assert list(t.append()) == [(0, 1)] and pool.num_standby == 1


def test_a_function_called_on_eviction_finds_its_block_free_and_may_raise():
    pool, seen = BlockPool(4, 4), []

    def forget(block):
        seen.append((block, block in pool._free, pool.num_standby))
        raise KeyError(block)

    for block in pool.allocate(2):
        pool.keep(block, forget)
    pool.free([0, 1])
    for _ in range(2):
        with pytest.raises(KeyError):
            pool.allocate(4)
    assert seen == [(1, True, 1), (0, True, 0)]
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3] and pool.num_free == 0


def test_a_function_called_on_eviction_may_evict():
    pool = BlockPool(4, 4)
    for block in pool.allocate(3):
        pool.keep(block, lambda _: pool.evict(1))
    pool.free([0, 1, 2])
    assert sorted(pool.allocate(3)) == [0, 1, 2]
    assert pool.num_standby == 0 and pool.num_free == 1


def test_a_refused_free_is_never_seen_by_a_thread_without_the_lock():
    class Watched(list):
        def __setitem__(self, block, count):
            seen.append((block, count))
            super().__setitem__(block, count)

    pool, seen = BlockPool(4, 4), []
    t = table(pool, 6)
    fork = t.fork()
    pool._counts = Watched(pool._counts)
    with pytest.raises(DoubleFree):
        pool.free([*t.blocks, 3])
    assert seen == [] and fork.blocks == t.blocks


def test_eight_threads_at_once_lose_nothing():
    pool, mistakes, owners = BlockPool(200, 4), [], [None] * 200
    interval = sys.getswitchinterval()

    def work(me):
        random = np.random.RandomState(me)
        try:
            mine = []
            for _ in range(400):
                if mine and random.randint(2):
                    t = mine.pop(random.randint(len(mine)))
                    mistakes.extend(b for b in t.blocks if owners[b] != me)
                    for block in t.blocks:
                        owners[block] = None
                    t.free()
                    continue
                t = BlockTable(pool)
                try:
                    t.append(int(random.randint(1, 60)))
                except OutOfBlocks:
                    continue
                mistakes.extend(b for b in t.blocks if owners[b] is not None)
                for block in t.blocks:
                    owners[block] = me
                mine.append(t)
            for t in mine:
                for block in t.blocks:
                    owners[block] = None
                t.free()
        except BaseException as error:
            mistakes.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert mistakes == [] and pool.num_free == 200 and sorted(pool._free) == list(range(200)) and pool.peak <= 200


def test_forks_in_eight_threads_end_with_every_block_free():
    pool = BlockPool(500, 4)
    shared, mistakes = table(pool, 30), []
    forks = [[shared.fork() for _ in range(20)] for _ in range(8)]

    def work(mine):
        try:
            for t in mine:
                for _ in range(20):
                    t.append()
            for t in mine:
                t.free()
        except BaseException as error:
            mistakes.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in forks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mistakes and pool.num_used == 8 and [pool.ref_count(b) for b in shared.blocks] == [1] * 8
