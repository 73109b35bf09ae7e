import numpy as np
import pytest
from test_cache import Table

from pagefault import BlockPool, BlockTable, Int8Cache
from pagefault.reference import dequantized, on_host

SHAPES = {"one head": (4, 16, 1, 64), "grouped heads": (3, 32, 3, 128), "odd": (3, 48, 2, 5)}


def tokens(shape, n, seed=0):
    random = np.random.RandomState(seed)
    return (random.standard_normal((2, n, *shape[2:])) * random.lognormal(0, 1, (2, n, 1, 1))).astype(np.float32)


def appended(block, scale, x, first):
    """What a block [block_size, head_dim] and its scale of one head become when tokens x come to slots first, first + 1, ..."""
    f = np.float32
    needed = max(abs(x).max() / f(127), f(4e-10))
    now = needed if first == 0 or scale < needed else scale
    if first and now != scale:
        block = np.rint(block * (scale / now)).astype(np.int8)
    block = block.copy() if first else np.zeros_like(block)
    block[first : first + len(x)] = np.rint(x / now)
    return block, now


@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_are_rounded_by_a_scale_that_grows_and_nothing_else_changes(xp, shape):
    shape = SHAPES[shape]
    cache, (num_blocks, size, heads, _) = Int8Cache(*shape, xp=xp), shape
    want = [np.zeros(shape, np.int8) for _ in "kv"], [np.full((num_blocks, heads), np.nan, "f") for _ in "kv"]
    start = (num_blocks - 1) * size  # of the last block; later the first one
    for step, (first, count) in enumerate([(0, 1), (1, 3), (4, size - 4), (0, size), (0, 2)]):
        kv, block = tokens(shape, count, step), start // size
        order = np.random.RandomState(step).permutation(count)
        cache.append(start + first + order, *(xp.asarray(x[order]) for x in kv))
        for values, scales, x in zip(*want, kv):
            for h in range(heads):
                values[block, :, h], scales[block, h] = appended(values[block, :, h], scales[block, h], x[:, h], first)
        start = 0 if step == 2 else start
        for got, right in zip((cache.k, cache.v, cache.k_scales, cache.v_scales), (*want[0], *want[1])):
            np.testing.assert_array_equal(on_host(got), right)


def test_one_launch_fills_many_blocks(xp):
    shape = SHAPES["one head"]
    together, one_by_one = Int8Cache(*shape, xp=xp), Int8Cache(*shape, xp=xp)
    k, v = tokens(shape, 50)
    together.append(np.arange(7, 57)[:50], k, v)
    for start, end in ((0, 9), (9, 25), (25, 41), (41, 50)):
        one_by_one.append(7 + np.arange(start, end), k[start:end], v[start:end])
    assert all((on_host(a) == on_host(b)).all() for a, b in ((together.k, one_by_one.k), (together.v, one_by_one.v)))
    assert np.isnan(on_host(together.k_scales)[0]).all()  # nobody wrote the first block's first slot


@pytest.mark.parametrize("by", [1, 16])
def test_what_is_read_differs_by_half_a_step_and_what_growing_scales_add(xp, by):
    random, pool = np.random.RandomState(0), BlockPool(4, 16)
    cache, table, kv = Int8Cache(4, 16, 2, 64, xp=xp), BlockTable(pool), random.standard_normal((2, 40, 2, 64)).astype("f")
    for start in range(0, 40, by):
        end = min(40, start + by)
        table.append(end - start)
        cache.append(table.slots(start), *(xp.asarray(x[start:end]) for x in kv))
    for got, right, scales in zip(cache.read(table), kv, (cache.k_scales, cache.v_scales)):
        step = on_host(scales)[np.array(table.blocks)[np.arange(40) // 16]][..., None]
        error = abs(on_host(got) - right) / step
        assert error.max() <= (0.51 if by == 16 else 2.0)
        assert 0.2 < error.mean() < (0.26 if by == 16 else 0.4)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_number_that_is_not_finite_makes_its_head_of_its_block_so_and_no_other(xp):
    for wrong in (np.nan, np.inf):
        cache, kv = Int8Cache(2, 16, 2, 8, xp=xp), tokens((2, 16, 2, 8), 20)
        kv[0, 3, 1, 5] = wrong
        cache.append(np.arange(20), *(xp.asarray(x) for x in kv))
        k, v = (on_host(x) for x in cache.read(Table([0, 1], 20)))
        assert not np.isfinite(k[:16, 1]).any() and np.isfinite(k[:16, 0]).all() and np.isfinite(k[16:]).all()
        assert np.isfinite(v).all()


def test_a_block_that_begins_anew_holds_nothing_of_what_it_held(xp):
    cache, kv = Int8Cache(1, 16, 1, 8, xp=xp), tokens((1, 16, 1, 8), 16)
    cache.append(np.arange(16), *(xp.asarray(x) for x in kv))
    cache.append([0], *(xp.asarray(1000 * x[:1]) for x in kv))
    assert all((on_host(x)[1:] == 0).all() for x in cache.read(Table([0], 16)))


def test_zeros_stay_zeros(xp):
    cache = Int8Cache(1, 16, 1, 8, xp=xp)
    cache.append([0, 1], *(xp.zeros((2, 1, 8), np.float32) for _ in "kv"))
    assert all((on_host(x) == 0).all() for x in cache.read(Table([0], 2)))


def test_a_copied_block_takes_its_scales_along_and_goes_its_own_way(xp):
    shape = SHAPES["grouped heads"]
    cache, kv = Int8Cache(*shape, xp=xp), tokens(shape, 20)
    cache.append(np.arange(20), *(xp.asarray(x) for x in kv))
    before = [on_host(x).copy() for x in cache.read(Table([0], 20))]
    cache.copy_blocks([(0, 2)])
    assert all((on_host(a) == b).all() for a, b in zip(cache.read(Table([2], 20)), before))
    cache.append([2 * 32 + 20], *(100 * xp.asarray(x[:1]) for x in kv))
    assert all((on_host(a) == b).all() for a, b in zip(cache.read(Table([0], 20)), before))


def test_a_cache_is_half_of_float16s_and_its_scales():
    cache = Int8Cache(10, 16, 8, 128)
    assert cache.nbytes == 10 * 16 * 2 * 8 * 128 + 10 * 2 * 8 * 4


def test_an_append_is_free_of_races():
    cache = Int8Cache(3, 16, 2, 40)
    for slots in (np.arange(20), np.arange(20, 33)):
        assert cache.append_launch(slots, *tokens((3, 16, 2, 40), len(slots))).check() == []


def test_int8_of_a_contiguous_cache_stands_for_a_scale_each_16_tokens():
    x, scales = np.ones((2, 32, 1, 4), np.int8), np.arange(4, dtype=np.float32).reshape(2, 2, 1)
    assert (dequantized(x, scales)[:, [0, 15, 16, 31], 0, 0] == [[0, 0, 1, 1], [2, 2, 3, 3]]).all()


@pytest.mark.parametrize("call, error, match", [
    (lambda c: Int8Cache(4, 8, 1, 64), ValueError, "block_size = 8; blocks of int8 hold multiples of 16 tokens"),
    (lambda c: Int8Cache(0, 16, 1, 64), ValueError, "num_blocks"),
    (lambda c: c.append([0], np.zeros((1, 2, 64), "f"), np.zeros((1, 2, 64), "f")), ValueError, "k .* are both"),
    (lambda c: c.append([0, 0], *np.zeros((2, 2, 1, 64), "f")), ValueError, "slot 0 is there more than once"),
    (lambda c: c.append([64], *np.zeros((2, 1, 1, 64), "f")), IndexError, "slot 64 of 64"),
    (lambda c: c.append([1, 2], *np.zeros((2, 1, 1, 64), "f")), ValueError, "2 slots for 1 tokens"),
    (lambda c: c.append([1.5], *np.zeros((2, 1, 1, 64), "f")), TypeError, "slots are whole numbers"),
    (lambda c: c.append([1], *np.zeros((2, 1, 1, 64), complex)), TypeError, "real numbers"),
    (lambda c: c.copy_blocks([(0, 4)]), IndexError, "block 4 of 4"),
    (lambda c: c.read(Table([0], 17)), ValueError, "17 tokens take 2 blocks of 16, and the table has 1"),
    (lambda c: c.read(Table([4], 16)), IndexError, "block 4 of 4"),
])
def test_bad_input_is_named_and_changes_nothing(call, error, match):
    cache = Int8Cache(4, 16, 1, 64)
    cache.append(np.arange(64), *tokens((4, 16, 1, 64), 64))
    before = [x.copy() for x in (cache.k, cache.v, cache.k_scales, cache.v_scales)]
    with pytest.raises(error, match=match):
        call(cache)
    assert all((a == b).all() for a, b in zip(before, (cache.k, cache.v, cache.k_scales, cache.v_scales)))


def test_no_tokens_are_no_launch():
    cache = Int8Cache(1, 16, 1, 8)
    cache.append([], *np.zeros((2, 0, 1, 8), "f"))
    assert np.isnan(cache.k_scales).all() and cache.read(Table([], 0))[0].shape == (0, 1, 8)
