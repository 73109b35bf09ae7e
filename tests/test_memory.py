import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefault import MIXES, ContiguousCache, Memory, RequestTooLarge, contiguous_memory, mixed_lengths
from pagefault.memory import block_sweep, capacity, paged_memory


def test_the_published_lengths_by_seed():
    assert mixed_lengths(6, 42).tolist() == [83, 1145, 118, 106, 1895, 386]
    assert mixed_lengths(4, 7).tolist() == [100, 323, 1943, 124]
    assert [int(mixed_lengths(32, seed).sum()) for seed in (42, 7)] == [20_500, 12_405]
    assert [int((mixed_lengths(32, seed) >= 1024).sum()) for seed in (42, 7)] == [11, 6]
    assert int(mixed_lengths(512, 42).sum()) == 262_257


def test_a_prefix_of_a_workload_is_a_smaller_workload():
    assert mixed_lengths(64, 3)[:10].tolist() == mixed_lengths(10, 3).tolist()


def test_lengths_do_not_depend_on_the_process():
    code = "from pagefault import mixed_lengths; print(mixed_lengths(100, 5).tolist())"
    runs = [subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": s, "PATH": ""}, capture_output=True, text=True)
            for s in ("1", "2")]
    assert {run.stdout for run in runs} == {str(mixed_lengths(100, 5).tolist()) + "\n"}


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 2**32 - 1))
def test_a_mix_stays_within_its_bounds(lo, more, seed):
    lengths = mixed_lengths(20, seed, ((0.25, lo, lo + more), (0.75, lo + more, lo + more)))
    assert lo <= lengths.min() and lengths.max() <= lo + more


def test_every_mix_is_drawn_evenly():
    for mix in MIXES.values():
        mean = sum(share * (lo + hi) / 2 for share, lo, hi in mix)
        assert abs(mixed_lengths(4000, 1, mix).mean() / mean - 1) < 0.08


def test_the_published_naive_table():
    for seed, stored, percent in ((42, 20_500, 31.3), (7, 12_405, 18.9)):
        memory = contiguous_memory(mixed_lengths(32, seed), 2048)
        assert memory == Memory(stored, 65_536)
        assert round(100 * memory.utilization, 1) == percent
        assert memory.wasted == 65_536 - stored


@given(st.lists(st.integers(0, 100)), st.integers(100, 200))
def test_stored_and_wasted_are_all_that_is_reserved(lengths, most):
    memory = contiguous_memory(lengths, most)
    assert memory.stored == sum(lengths) and memory.stored + memory.wasted == memory.reserved == most * len(lengths)
    assert 0 <= memory.utilization <= 1


def test_the_published_paged_table():
    table = ((42, 1298, 10.633, 3.156, 98.71, 8.375), (7, 790, 6.472, 5.185, 98.14, 7.344))
    for seed, blocks, mb, saving, percent, a_sequence in table:
        lengths = mixed_lengths(32, seed)
        memory = paged_memory(lengths, 16)
        assert memory == Memory(int(lengths.sum()), blocks * 16)
        assert round(memory.reserved * 512 / 1e6, 3) == mb
        assert round(contiguous_memory(lengths, 2048).reserved / memory.reserved, 3) == saving
        assert round(100 * memory.utilization, 2) == percent
        assert round(memory.wasted / 32, 3) == a_sequence


def test_the_published_sweep_of_block_sizes():
    sweep = block_sweep(mixed_lengths(32, 42), 2048)
    assert sweep.block_size.tolist() == [1, 16, 64, 256] and sweep.blocks.tolist() == [20_500, 1298, 336, 101]
    assert [round(n * 512 / 1e6, 2) for n in sweep.reserved] == [10.50, 10.63, 11.01, 13.24]
    assert [round(n * 512 / 1e6, 2) for n in sweep.wasted] == [0.00, 0.14, 0.51, 2.74]
    assert [round(100 * share, 1) for share in sweep.utilization] == [100.0, 98.7, 95.3, 79.3]
    assert sweep.table_entries.tolist() == [2048, 128, 32, 8]
    assert list(sweep) == ["block_size", "blocks", "reserved", "wasted", "utilization", "saving", "table_entries"]


@given(st.lists(st.integers(0, 500)), st.integers(1, 300), st.integers(500, 700))
def test_a_sweep_counts_blocks_as_filling_them_one_by_one_does(lengths, block_size, most):
    row = block_sweep(lengths, most, [block_size]).iloc[0]
    blocks = sum(len(range(0, n, block_size)) for n in lengths)
    assert (row.blocks, row.reserved, row.wasted) == (blocks, blocks * block_size, blocks * block_size - sum(lengths))
    assert row.table_entries == len(range(0, most, block_size))
    assert not blocks or row.saving * row.reserved == pytest.approx(most * len(lengths))


def test_sequences_of_every_remainder_waste_block_size_less_one_over_two():
    for block_size in (1, 16, 64, 256):
        lengths = np.arange(1, 8 * block_size + 1)
        assert paged_memory(lengths, block_size).wasted / len(lengths) == (block_size - 1) / 2


def test_lengths_near_the_limit_do_not_overflow():
    assert paged_memory([2**31 - 1] * 100, 2**31 - 1) == Memory(100 * (2**31 - 1), 100 * (2**31 - 1))
    assert paged_memory(np.array([255, 1], "u1"), 16) == Memory(256, 272)


def test_a_million_lengths_are_swept_in_two_seconds():
    lengths = np.random.RandomState(0).randint(1, 2049, 10**6)
    start = time.perf_counter()
    sweep = block_sweep(lengths, 2048, (1, 16, 64, 128, 256))
    assert time.perf_counter() - start < 2
    assert sweep.blocks[0] == sweep.reserved[0] == lengths.sum()


def test_a_pool_holds_so_many_sequences():
    assert capacity(15_728, 2048, 2048) == 7  # of 12 GiB for OPT-13B
    assert [capacity(160, n, 16) for n in (1, 16, 17, 80, 81, 160, 161)] == [10, 10, 5, 2, 1, 1, 0]
    assert capacity(159, 16, 16) == 9


@pytest.mark.parametrize("call, error, message", [
    (lambda: paged_memory([5, -9], 8), ValueError, r"seq_lens\[1\] = -9"),
    (lambda: paged_memory([5], 0), ValueError, "block_size = 0"),
    (lambda: paged_memory([5], 16.0), TypeError, "block_size = 16.0, a whole number"),
    (lambda: block_sweep([5, 9], 8), RequestTooLarge, "sequence 1 has 9 tokens, and 8 are reserved"),
    (lambda: block_sweep([5], 8, (16, -1)), ValueError, "block_size = -1"),
    (lambda: capacity(100, 0, 16), ValueError, "seq_len = 0"),
    (lambda: capacity(-1, 1, 16), ValueError, "num_slots = -1"),
    (lambda: capacity(1, 1, 0), ValueError, "block_size = 0"),
    (lambda: contiguous_memory([5, 9], 8), RequestTooLarge, "sequence 1 has 9 tokens, and 8 are reserved"),
    (lambda: contiguous_memory([5, -9], 8), ValueError, r"seq_lens\[1\] = -9"),
    (lambda: contiguous_memory(np.array([1, 2**63], "u8"), 2**64), ValueError, r"seq_lens\[1\] = 9,223,372,036,854,775,808"),
    (lambda: contiguous_memory([1], 1.5), TypeError, "max_seq_len = 1.5, a whole number"),
    (lambda: contiguous_memory([5.5], 8), ValueError, "whole numbers, not float64"),
    (lambda: contiguous_memory([[5]], 8), ValueError, r"whole numbers, not int64 \[1, 1\]"),
    (lambda: contiguous_memory([5], 0), ValueError, "max_seq_len = 0"),
    (lambda: mixed_lengths(-1, 42), ValueError, "num_seqs = -1"),
    (lambda: mixed_lengths(1, 42, ((0.5, 1, 2),)), ValueError, r"add up to 1, not \[0.5\]"),
    (lambda: mixed_lengths(1, 42, ((float("nan"), 1, 2),)), ValueError, r"not \[nan\]"),
    (lambda: mixed_lengths(1, None), TypeError, "seed = None, a whole number"),
    (lambda: mixed_lengths(1, 2**32), ValueError, "seed = 4,294,967,296, it is from 0"),
    (lambda: mixed_lengths(1, 42, ((1.0, 1, 2**40),)), ValueError, "the longest of part 0 = 1,099,511,627,776"),
    (lambda: mixed_lengths(1, 42, ((1.0, 1.5, 2),)), TypeError, "the shortest of part 0 = 1.5"),
    (lambda: mixed_lengths(1, 42, ((1.0, 9, 2),)), ValueError, "the longest of part 0 = 2, it is from 9"),
])
def test_what_cannot_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def tokens(n, heads=2, dim=4, seed=0):
    return np.random.default_rng(seed).standard_normal((2, n, heads, dim), np.float32)


def test_a_cache_gives_back_what_was_appended():
    cache = ContiguousCache(3, 10, 2, 4)
    k, v = tokens(10)
    cache.append(1, k[:7], v[:7])
    for i in range(7, 10):
        cache.append(1, k[i], v[i])
    assert cache.seq_lens.tolist() == [0, 10, 0]
    np.testing.assert_array_equal(cache.read(1), (k, v))
    assert np.isnan(cache.k[[0, 2]]).all() and np.isnan(cache.v[[0, 2]]).all()
    assert cache.nbytes == 3 * 10 * 2 * 4 * 4 * 2
    cache.free(1)
    assert cache.seq_lens.tolist() == [0, 0, 0] and np.isnan(cache.k).all() and np.isnan(cache.v).all()


@pytest.mark.parametrize("call, error, message", [
    (lambda c: c.append(0, *tokens(8)), RequestTooLarge, "sequence 0 would have 11 tokens, and 10 are reserved"),
    (lambda c: c.append(3, *tokens(1)), IndexError, "sequence 3 of 3"),
    (lambda c: c.append(-1, *tokens(1)), IndexError, "sequence -1 of 3"),
    (lambda c: c.append(0, *tokens(1, dim=5)), ValueError, r"k \[1, 2, 5\] and v \[1, 2, 5\] are both \[tokens, 2, 4\]"),
    (lambda c: c.append(0, tokens(1)[0], tokens(2)[0]), ValueError, "are both"),
    (lambda c: c.append(0, np.float32(1), np.float32(1)), ValueError, "are both"),
    (lambda c: c.free(7), IndexError, "sequence 7 of 3"),
    (lambda c: c.free(True), TypeError, "seq = True, a whole number"),
    (lambda c: c.read(1.0), TypeError, "seq = 1.0, a whole number"),
    (lambda c: c.append(0, np.ones((1, 2, 4)), [[["a"] * 4] * 2]), TypeError, "real numbers, not <U1"),
    (lambda c: c.append(0, np.ones((1, 2, 4)), np.full((1, 2, 4), 1e300)), ValueError, r"up to 1e\+300 is beyond float32"),
    (lambda c: c.append(0, np.ones((1, 2, 4)) * 1j, np.ones((1, 2, 4))), TypeError, "real numbers, not complex128"),
])
def test_a_refused_append_changes_nothing(call, error, message):
    cache = ContiguousCache(3, 10, 2, 4)
    cache.append(0, *tokens(3))
    before = cache.k.tobytes(), cache.v.tobytes(), cache.seq_lens.tolist()
    with pytest.raises(error, match=message):
        call(cache)
    assert before == (cache.k.tobytes(), cache.v.tobytes(), cache.seq_lens.tolist())


def test_a_cache_of_nothing_is_refused():
    with pytest.raises(ValueError, match="head_dim = 0"):
        ContiguousCache(1, 1, 1, 0)
    with pytest.raises(TypeError, match="dtype = int32"):
        ContiguousCache(1, 1, 1, 1, np.int32)
