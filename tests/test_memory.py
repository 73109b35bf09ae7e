import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefault import MIXES, ContiguousCache, Memory, RequestTooLarge, contiguous_memory, mixed_lengths


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


@pytest.mark.parametrize("call, error, message", [
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
