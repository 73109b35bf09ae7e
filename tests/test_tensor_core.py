"""The rungs on tensor cores, over float16 and int8, contiguous and paged: against float64, and against each other."""

import re
import shutil
from contextlib import suppress

import numpy as np
import pytest
from cases import compile_side_by_side, contiguous_case, worst_error

from pagefault import Kernel, KernelError, RequestTooLarge, on_cpu, reference_attention, tensor_core
from pagefault.attention import attention_launch, split_kv_launch
from pagefault.reference import dequantized, gathered, on_host
from pagefault.tensor_core import int8_launch, tensor_core_launch
from pagefault.translate import KERNELS
from pagefault.works import in_int8, pool_of

RUNGS = {"float16": tensor_core_launch, "int8": int8_launch}
LENGTHS = [1, 15, 16, 17, 31, 33, 64, 65, 700]
SHORT = [1, 15, 17, 40, 130]
BOUND = 4e-4
SHAPES = [("float16", 4, 4, 64, 5), ("float16", 13, 1, 64, 16), ("float16", 28, 4, 64, 48), ("int8", 16, 1, 128, 32)]

each_rung = pytest.mark.parametrize("stored", RUNGS)


def case(stored, lengths, heads=8, kv_heads=2, head_dim=128, xp=np):
    """q, a contiguous cache as a rung takes it, and k and v that it stands for."""
    q, cache = contiguous_case(lengths, heads, kv_heads, head_dim, "float16", xp)
    if stored == "float16":
        return q, (cache.k, cache.v), (cache.k, cache.v)
    int8 = in_int8(cache.k, cache.v, lengths)
    return q, int8, (dequantized(int8[0], int8[2]), dequantized(int8[1], int8[3]))


def in_pool(cache, lengths, block_size=16, order="shuffled"):
    """A contiguous cache's arrays in a pool, and its tables."""
    *pool, tables = pool_of(cache, lengths, block_size, order, 1)
    return pool, tables


def same(a, b):
    return on_host(a).tobytes() == on_host(b).tobytes()


@pytest.fixture(scope="module", autouse=True)
def compiled():
    def kernel(stored, heads, kv_heads, head_dim, block_size=None):
        lengths = [20]
        q, cache, _ = case(stored, lengths, heads, kv_heads, head_dim)
        if block_size:
            pool = [x[:, :1].repeat(block_size, 1) if x.ndim == 4 else x[:, 0] for x in cache]
            return RUNGS[stored](q, *pool, lengths, [[0] * 20]).kernel
        return RUNGS[stored](q, *cache, lengths).kernel

    with suppress(KernelError):
        compile_side_by_side([kernel(stored, 8, 2, 128, size) for stored in RUNGS for size in (16, None)])


@each_rung
def test_contiguous_gathered_and_paged_give_the_same_bytes_and_float64s_result(xp, stored):
    q, cache, (k, v) = case(stored, LENGTHS, xp=xp)
    contiguous = RUNGS[stored](q, *cache, LENGTHS)()
    assert worst_error(contiguous, reference_attention(q, k, v, LENGTHS)) <= BOUND
    for order in ("shuffled", "ordered"):
        pool, tables = in_pool(cache, LENGTHS, order=order)
        assert same(RUNGS[stored](q, *pool, LENGTHS, tables)(), contiguous)
        again = [gathered(x, tables, LENGTHS) for x in pool[:2]]
        for mine, theirs in zip(again, cache):
            assert all(same(mine[i, :n], theirs[i, :n]) for i, n in enumerate(LENGTHS))


@pytest.mark.parametrize("stored, heads, kv_heads, head_dim, block_size", SHAPES)
def test_groups_of_1_to_16_heads_of_64_and_128_dims_in_blocks_of_any_size(xp, stored, heads, kv_heads, head_dim, block_size):
    q, cache, (k, v) = case(stored, SHORT, heads, kv_heads, head_dim, xp)
    if stored == "int8":  # two blocks of 16 in one of 32, which has one scale for both
        pool_k, pool_v, tables = pool_of((k, v), SHORT, block_size, "shuffled", 1)
        pool = in_int8_blocks(pool_k, pool_v, xp)
        k, v = (gathered(dequantized(x, s), tables, SHORT) for x, s in zip(pool[:2], pool[2:]))
    else:
        pool, tables = in_pool(cache, SHORT, block_size)
    out = RUNGS[stored](q, *pool, SHORT, tables)()
    assert worst_error(out, reference_attention(q, k, v, SHORT)) <= BOUND


def in_int8_blocks(k, v, xp):
    """A pool's k and v as int8, a scale a block and head."""
    k, v = (xp.nan_to_num(x) for x in (k, v))
    scales = [abs(x).max((1, 3)) / np.float32(127) for x in (k, v)]
    values = [xp.rint(x / s[:, None, :, None]).astype(np.int8) for x, s in zip((k, v), scales)]
    return *values, *(s.astype(np.float32) for s in scales)


@each_rung
def test_slots_and_blocks_that_are_not_ours_may_hold_anything(xp, stored):
    q, cache, (k, v) = case(stored, SHORT, xp=xp)
    exact = reference_attention(q, k, v, SHORT)
    for nobodys in ((np.nan, 1e4) if stored == "float16" else (127, -128)):
        pool, tables = in_pool(cache, SHORT)
        tables = on_host(tables)
        last = [tables[i, (n - 1) // 16] for i, n in enumerate(SHORT)]
        for x in pool[:2]:
            for block, n in zip(last, SHORT):
                x[block, (n - 1) % 16 + 1 :] = nobodys
        assert worst_error(RUNGS[stored](q, *pool, SHORT, tables)(), exact) <= BOUND


@each_rung
def test_no_tokens_give_zeros_and_one_gives_its_v(xp, stored):
    lengths = [0, 1, 0, 40]
    q, cache, (k, v) = case(stored, lengths, xp=xp)
    pool, tables = in_pool(cache, lengths)
    out = on_host(RUNGS[stored](q, *pool, lengths, tables)())
    assert (out[[0, 2]] == 0).all() and worst_error(out[3:], reference_attention(q, k, v, lengths)[3:]) <= BOUND
    np.testing.assert_allclose(out[1], np.repeat(on_host(v)[1, 0], 4, axis=0), rtol=1e-3)
    assert RUNGS[stored](q[:0], *pool, [], tables[:0])().shape == (0, *q.shape[1:])


@each_rung
def test_launch_after_launch_gives_the_same_bytes_however_contexts_are_split(xp, stored):
    lengths = [1, 33, 0, 300]
    q, cache, (k, v) = case(stored, lengths, xp=xp)
    pool, tables = in_pool(cache, lengths)
    for split_tokens in (1, 40, 5000):
        launch = RUNGS[stored](q, *pool, lengths, tables, split_tokens=split_tokens)
        first = on_host(launch()).copy()
        assert worst_error(first, reference_attention(q, k, v, lengths)) <= BOUND
        for _ in range(200 if xp is not np else 1):
            launch.out[:] = np.nan
            assert same(launch(), first)


@each_rung
def test_scores_of_thousands_do_not_overflow(xp, stored):
    q, cache, (k, v) = case(stored, [100, 300], xp=xp)
    out = RUNGS[stored](q * 100, *cache, [100, 300], scale=-1.0)()
    assert worst_error(out, reference_attention(q * 100, k, v, [100, 300], scale=-1.0)) <= 2e-3  # scores are rounded to 2^-11


def test_values_of_any_size_keep_their_precision_in_int8(xp):
    q, cache = contiguous_case([100], 8, 2, 128, "float16", xp)
    cache.v[0, :50] *= np.float16(2**-14)
    cache.v[0, 50:] *= np.float16(2**10)
    cache.v[0, 16:32] = 0
    int8 = in_int8(cache.k, cache.v, [100])
    exact = reference_attention(q, dequantized(int8[0], int8[2]), dequantized(int8[1], int8[3]), [100])
    assert worst_error(int8_launch(q, *int8, [100])(), exact) <= BOUND


def test_a_block_whose_values_are_all_0_may_have_the_scale_0(xp):
    q, int8, _ = case("int8", [40], xp=xp)
    k, v, k_scales, v_scales = int8
    v[0, 16:32], v_scales[0, 1], k[0, 32:], k_scales[0, 2] = 0, 0, 0, 0
    exact = reference_attention(q, dequantized(k, k_scales), dequantized(v, v_scales), [40])
    assert worst_error(int8_launch(q, k, v, k_scales, v_scales, [40])(), exact) <= BOUND


@pytest.mark.parametrize("gap", [10, 16, 20])
def test_many_small_weights_beside_a_large_one_are_not_lost(xp, gap):
    k, v = np.zeros((1, 1024, 1, 64), np.float16), np.full((1, 1024, 1, 64), 1000, np.float16)
    k[0, 0], v[0, 0], q = gap / 8, 0, np.ones((1, 1, 64), np.float16)  # a score of gap, and a value of 0
    out = tensor_core_launch(*(xp.asarray(x) for x in (q, k, v)), [1024])()
    assert worst_error(out, reference_attention(q, k, v, [1024])) <= 2**-11  # all of them are rounded alike


def test_the_largest_halves_stay_finite(xp):
    random = np.random.RandomState(0)
    k, v = random.standard_normal((1, 64, 1, 64)).astype(np.float16), np.full((1, 64, 1, 64), 65504, np.float16)
    q = random.standard_normal((1, 1, 64)).astype(np.float16)
    out = on_host(tensor_core_launch(*(xp.asarray(x) for x in (q, k, v)), [64])())
    assert (out == 65504).all()


@pytest.mark.parametrize("rung", [tensor_core_launch, split_kv_launch])
@pytest.mark.parametrize("tokens", [1, 5, 16])
def test_infinities_of_our_own_show(xp, rung, tokens):
    k = xp.full((1, 16, 1, 64), -np.inf, np.float16)
    out = on_host(rung(xp.ones((1, 1, 64), np.float16), k, xp.ones_like(k), [tokens])())
    assert not np.isfinite(out).any()


@pytest.mark.parametrize("rung", [tensor_core_launch, split_kv_launch])
def test_a_launch_that_was_ended_leaves_nothing_behind(rung):
    q, (k, v), _ = case("float16", [600], 4, 2, 64)
    launch = rung(q, k, v, [600], split_tokens=64)
    right = launch().copy()
    for milliseconds in (1, 2, 3, 5):
        with suppress(KernelError), on_cpu(time_limit=milliseconds / 1000, checked=False):
            launch()
        assert not launch.counts.any() and same(launch(), right)


@pytest.mark.parametrize("xp", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True)
def test_many_thread_blocks_take_two_stages_and_few_three(xp):
    lengths = [5] * 800
    q, cache, (k, v) = case("float16", lengths, 2, 2, 64, xp)
    launch = tensor_core_launch(q, *cache, lengths)
    stages = 2 if tensor_core.processors(xp) <= 133 else 3
    assert f", {stages}, Contiguous>" in launch.kernel.name
    assert ", 3, Contiguous>" in tensor_core_launch(q[:8], *(x[:8] for x in cache), lengths[:8]).kernel.name
    assert worst_error(launch(), reference_attention(q, k, v, lengths)) <= BOUND


def test_a_batch_is_split_so_that_it_fills_an_h200_once():
    def grid(lengths, heads, kv_heads, **options):
        q, k = np.zeros((len(lengths), heads, 128), np.float16), np.zeros((1, 16, kv_heads, 128), np.float16)
        return tensor_core_launch(q, k, k, lengths, np.zeros((len(lengths), -(-max(lengths) // 16)), int), **options).grid[0]

    assert grid([131072], 32, 8) == 264  # two thread blocks on each of 132 processors
    assert grid([2048] * 64, 32, 8) == 512  # enough without splitting
    assert grid([131072], 32, 1) == 264  # 32 query heads in two groups of 16
    assert grid([100], 32, 8) == 8


# ---- who takes what --------------------------------------------------------------------------------------------------


def test_attention_takes_the_best_rung_that_can(monkeypatch):
    def chosen(dtype, head_dim, offset=0):
        q, cache = contiguous_case([5, 9], 4, 2, head_dim, dtype)
        k = np.empty(cache.k.nbytes + 16, np.uint8)[offset : offset + cache.k.nbytes].view(dtype).reshape(cache.k.shape)
        return attention_launch(q, k, cache.v, [5, 9]).kernel.name.split("<")[0]

    assert chosen("float16", 64) == chosen("float16", 128) == "tensor_core"
    assert chosen("float32", 64) == chosen("float16", 96) == "split_kv"
    q = np.empty(4 * 64 + 1, np.float16)[1:].reshape(1, 4, 64)
    assert attention_launch(q, *np.zeros((2, 1, 3, 2, 64), np.float16), [3]).kernel.name.startswith("split_kv")
    assert chosen("float16", 12) == chosen("float16", 264) == chosen("float16", 64, offset=2) == "naive_attention"
    monkeypatch.setattr("pagefault.attention.tensor_cores", lambda xp: False)
    assert chosen("float16", 64) == "split_kv"


def refused(error, match, stored="float16", head_dim=64, cast=None, **changes):
    lengths = [5, 20]
    q, cache, _ = case(stored, lengths, 4, 2, head_dim)
    names = ["k", "v", "k_scales", "v_scales"][: len(cache)]
    arguments = dict(q=q, **dict(zip(names, cache)), seq_lens=lengths) | {n: f(cache) for n, f in changes.items()}
    if cast:
        arguments |= {n: arguments[n].astype(cast) for n in "qkv"}
    with pytest.raises(error, match=match):
        RUNGS[stored](**arguments)


def test_what_a_rung_does_not_take_is_named():
    refused(TypeError, "q, k, v hold float32; this kernel takes float16", cast="float32")
    refused(ValueError, "head_dim = 96; this kernel takes 64 and 128", head_dim=96)
    refused(TypeError, "q, k, v hold float16, float16, int8; q is float16, k and v are int8", "int8",
            k=lambda c: c[0].astype(np.float16))
    refused(ValueError, "max_seq_len = 31; of int8 it is a multiple of 16", "int8", k=lambda c: c[0][:, 1:].copy(),
            v=lambda c: c[1][:, 1:].copy())
    refused(ValueError, r"k_scales is a ndarray of float64 \[2, 2, 2\], and k's scales are a ndarray of float32 \[2, 2, 2\]",
            "int8", k_scales=lambda c: c[2].astype(float))
    refused(ValueError, r"v_scales is a ndarray of float32 \[2, 2\], and k's scales", "int8", v_scales=lambda c: c[3][0].copy())
    refused(ValueError, r"k_scales is a NoneType of \? \[\], and k's scales", "int8", k_scales=lambda c: None)


def test_what_no_rung_takes_is_named():
    q, k = np.zeros((1, 2, 64), np.float16), np.zeros((1, 16, 2, 64), np.float16)
    for error, match, arguments in (
            (TypeError, "scale = '1' is not a number", dict(scale="1")), (TypeError, "scale = True is not", dict(scale=True)),
            (ValueError, "out lies in the memory of q", dict(out=q)),
            (ValueError, "split_tokens", dict(split_tokens=2**63)),
            (RequestTooLarge, "2,147,483,647 tokens, and kernels count to", dict(seq_lens=[2**31 - 1]))):
        with pytest.raises(error, match=match):
            tensor_core_launch(**dict(q=q, k=k, v=k, seq_lens=[5]) | arguments)
    odd = np.zeros(2 * 64 + 1, np.float16)[1:].reshape(1, 2, 64)
    with pytest.raises(ValueError, match="q begins 2 bytes behind a multiple of 4"):
        tensor_core_launch(odd, k, k, [5])


def test_an_older_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(tensor_core, "tensor_cores", lambda xp: False)
    refused(KernelError, "needs a GPU of compute capability 8.0 or more")


# ---- races -----------------------------------------------------------------------------------------------------------


@each_rung
def test_a_check_finds_no_race_and_where_contexts_are_split_only_that_atomics_order_the_parts(stored):
    q, cache, _ = case(stored, [0, 33, 80], 4, 2, 64)
    pool, tables = in_pool(cache, [0, 33, 80])
    assert RUNGS[stored](q, *pool, [0, 33, 80], tables).check() == []
    found = RUNGS[stored](q, *pool, [0, 33, 80], tables, split_tokens=40).check()
    assert found and all(re.fullmatch(r"race on parts\[\d+\]: .* partial.cuh .*; thread blocks run in no order", f) for f in found)


def test_a_check_finds_a_copy_into_a_tile_that_other_lanes_still_use(tmp_path):
    folder = shutil.copytree(KERNELS, tmp_path / "kernels")
    text = (folder / "tensor_core.cu").read_text(encoding="utf-8")
    assert text.count("    __syncwarp();  // and all are done with it\n") == 1
    (folder / "tensor_core.cu").write_text(text.replace("    __syncwarp();  // and all are done with it\n", ""), encoding="utf-8")
    q, cache, _ = case("float16", [300], 1, 1, 64)
    one = tensor_core_launch(q, *cache, [300], split_tokens=300)
    for kernel, wrong in ((one.kernel, False), (Kernel(folder / "tensor_core.cu", one.kernel.name), True)):
        found = kernel.check(one.grid, one.block, one.args, shared_mem=one.shared_mem, strict=True)
        assert bool(found) == wrong and all("of the dynamic shared memory" in f and "no barrier" in f for f in found)
