"""Every rung of the ladder, over contiguous caches and over pools: against float64, and against each other."""

from contextlib import suppress

import numpy as np
import pytest
from cases import BOUND, compile_side_by_side, contiguous_case, pool_of, worst_error

from pagefault import BlockPool, BlockTable, KernelError, PagedCache, block_tables, reference_attention
from pagefault.attention import naive_launch, online_softmax_launch, split_kv_launch
from pagefault.chunks import chunk_list
from pagefault.reference import gathered, on_host

RUNGS = {"naive": naive_launch, "online_softmax": online_softmax_launch, "split_kv": split_kv_launch}
LENGTHS = [1, 15, 16, 17, 31, 32, 33, 1000, 2048]
SHORT = [1, 15, 16, 17, 31, 32, 33, 300]
HEADS = {"float32": (4, 2, 64), "float16": (8, 2, 128)}  # query heads, KV heads, head_dim
LONG = 1e-5  # a mean of random values shrinks as a context grows, and the rounding of its sum doesn't
NAN, STALE, ZERO = np.nan, 1e3, 0.0
# what is tried on a CPU, where each is a kernel to be compiled; a GPU tries all
HEAD_DIMS = [("split_kv", "float16", 80), ("split_kv", "float16", 96), ("split_kv", "float32", 128), ("split_kv", "float32", 256),
             ("online_softmax", "float32", 80), ("online_softmax", "float32", 96), ("online_softmax", "float16", 64),
             ("online_softmax", "float16", 256), *(("naive", dtype, d) for dtype in HEADS for d in (64, 80, 96, 128, 256))]
BLOCK_SIZES = [("naive", 1), ("naive", 7), ("online_softmax", 5), ("split_kv", 1), ("split_kv", 256)]
GROUPS = [(4, 2), (28, 4), (8, 1), (4, 4), (13, 1)]

each_rung = pytest.mark.parametrize("rung", RUNGS)


def ways(names, cpu, gpu):
    """Parametrize a test that compiles many kernels: (way, *values) on a CPU, each of gpu's values on a GPU."""
    cases = [*cpu, *(pytest.param("gpu", *values, marks=pytest.mark.gpu) for values in gpu)]
    return pytest.mark.parametrize(f"xp, {names}" if names else "xp", cases, indirect=["xp"])


one_way = ways("", ["cpu"], [()])


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The kernels that are tried on a CPU; what isn't compiled here is when its test comes."""
    def kernel(rung, dtype, heads, kv_heads, head_dim, block_size=None):
        q, k = np.zeros((1, heads, head_dim), dtype), np.zeros((1, block_size or 1, kv_heads, head_dim), dtype)
        return RUNGS[rung](q, k, k, [1], [[0]] if block_size else None).kernel

    cases = [(rung, dtype, *HEADS[dtype], size) for rung in RUNGS for dtype in HEADS for size in (16, None)]
    cases += [(rung, dtype, 4, 1, head_dim, 16) for rung, dtype, head_dim in HEAD_DIMS]
    cases += [(rung, "float32", *HEADS["float32"], size) for rung, size in BLOCK_SIZES]
    cases += [("split_kv", "float32", *heads, 64, 16) for heads in GROUPS]
    with suppress(KernelError):
        compile_side_by_side({kernel(*case) for case in cases})


def exact(q, cache, **options):
    return reference_attention(q, cache.k, cache.v, cache.seq_lens, **options)


def same(a, b):
    return on_host(a).tobytes() == on_host(b).tobytes()


@each_rung
@ways("dtype", [("cpu", "float32"), ("cpu, last thread first", "float32"), ("cpu", "float16")], [("float32",), ("float16",)])
def test_contiguous_gathered_and_paged_give_the_same_bytes_and_float64s_result(xp, dtype, rung):
    q, cache = contiguous_case(LENGTHS, *HEADS[dtype], dtype, xp)
    lens, run = cache.seq_lens, RUNGS[rung]
    contiguous = run(q, cache.k, cache.v, lens)()
    assert worst_error(contiguous, exact(q, cache)) <= BOUND[dtype]
    for shuffled in (True, False):
        k, v, tables = pool_of(cache, 16, shuffled)
        assert same(run(q, k, v, lens, tables)(), contiguous)
        assert same(run(q, gathered(k, tables, lens), gathered(v, tables, lens), lens)(), contiguous)


@each_rung
def test_slots_that_are_not_ours_may_hold_anything(xp, rung):
    q, cache = contiguous_case(SHORT, *HEADS["float32"], "float32", xp)
    clean = exact(q, cache)
    for unused in ((NAN, ZERO), (ZERO, NAN), (NAN, NAN), (STALE, ZERO), (ZERO, STALE), (STALE, STALE)):
        k, v, tables = pool_of(cache, 16, unused=unused)
        out = RUNGS[rung](q, k, v, cache.seq_lens, tables)()
        assert worst_error(out, clean) <= BOUND["float32"], unused


@ways("rung, dtype, head_dim", [("cpu", *case) for case in HEAD_DIMS],
      [(rung, dtype, d) for rung in RUNGS for dtype in HEADS for d in (8, 64, 80, 96, 128, 144, 256)])
def test_any_head_dim(xp, rung, dtype, head_dim):
    q, cache = contiguous_case(SHORT, 4, 1, head_dim, dtype, xp)
    k, v, tables = pool_of(cache, 16)
    assert worst_error(RUNGS[rung](q, k, v, cache.seq_lens, tables)(), exact(q, cache)) <= BOUND[dtype]


@ways("rung, block_size", [("cpu", *case) for case in BLOCK_SIZES],
      [(rung, size) for rung in RUNGS for size in (1, 2, 3, 8, 32, 64, 100, 128, 255, 256)])
def test_any_block_size(xp, rung, block_size):
    q, cache = contiguous_case([1, 255, 256, 257, 600], *HEADS["float32"], "float32", xp)
    k, v, tables = pool_of(cache, block_size)
    out = RUNGS[rung](q, k, v, cache.seq_lens, tables)()
    assert same(out, RUNGS[rung](q, cache.k, cache.v, cache.seq_lens)())
    assert worst_error(out, exact(q, cache)) <= BOUND["float32"]


@one_way
@each_rung
@pytest.mark.parametrize("heads, kv_heads", GROUPS)
def test_query_heads_share_kv_heads_in_groups(xp, rung, heads, kv_heads):
    q, cache = contiguous_case([9, 40], heads, kv_heads, 64, "float32", xp)
    k, v, tables = pool_of(cache, 16)
    assert worst_error(RUNGS[rung](q, k, v, cache.seq_lens, tables)(), exact(q, cache)) <= BOUND["float32"]
    v[:] = 10 * (1 + xp.arange(kv_heads))[:, None]
    want = np.repeat(10 * (1 + np.arange(kv_heads)), heads // kv_heads)
    np.testing.assert_allclose(on_host(RUNGS[rung](q, k, v, cache.seq_lens, tables)())[1, :, 0], want, rtol=1e-6)


# ---- lengths --------------------------------------------------------------------------------------------------------


@each_rung
def test_no_tokens_give_zeros_one_gives_its_v_and_others_are_right(xp, rung):
    q, cache = contiguous_case([0, 1, 5, 0], *HEADS["float32"], "float32", xp)
    k, v, tables = pool_of(cache, 16)
    out = RUNGS[rung](q, k, v, cache.seq_lens, tables)()
    assert (on_host(out)[[0, 3]] == 0).all() and (on_host(out)[1] == np.repeat(on_host(cache.v)[1, 0], 2, axis=0)).all()
    assert worst_error(out[2:3], exact(q, cache)[2:3]) <= BOUND["float32"]
    assert (on_host(RUNGS[rung](q, k, v, [0] * 4, tables[:, :0])()) == 0).all()


@each_rung
def test_no_sequences_give_no_rows(xp, rung):
    q, cache = contiguous_case([1], *HEADS["float32"], "float32", xp)
    k, v, tables = pool_of(cache, 16)
    assert RUNGS[rung](q[:0], k, v, [], tables[:0])().shape == (0, *q.shape[1:])


@ways("rung, sequences", [("cpu", rung, 300) for rung in RUNGS], [(rung, 65536) for rung in RUNGS])
def test_each_of_many_sequences_gets_its_row(xp, rung, sequences):
    q, cache = contiguous_case([1] * 2, *HEADS["float32"], "float32", xp)
    k, v, tables = pool_of(cache, 16)
    tables, want = (on_host(x)[np.arange(sequences) % 2] for x in (tables, np.repeat(on_host(cache.v)[:, 0], 2, axis=1)))
    launch = RUNGS[rung](xp.repeat(q[:1], sequences, 0), k, v, [1] * sequences, tables)
    assert (on_host(launch()) == want).all()


@one_way
@pytest.mark.parametrize("rung", ["online_softmax", "split_kv"])
def test_contexts_to_131072(xp, rung):
    q, cache = contiguous_case([131072], 1, 1, 64, "float32", xp)
    k, v, tables = pool_of(cache, 16)
    assert worst_error(RUNGS[rung](q, k, v, cache.seq_lens, tables)(), exact(q, cache)) <= LONG


@each_rung
def test_scores_of_a_thousand_do_not_overflow(xp, rung):
    q, cache = contiguous_case([100, 300], *HEADS["float32"], "float32", xp)
    for seq, n in enumerate(cache.seq_lens):
        cache.k[seq, :n] *= 10
    k, v, tables = pool_of(cache, 16)
    out = RUNGS[rung](q * 100, k, v, cache.seq_lens, tables, scale=-0.5)()
    assert worst_error(out, exact(q * 100, cache, scale=-0.5)) <= 3e-4  # a score is rounded to 2^-11 there


@one_way
@each_rung
def test_rows_of_one_sequence_with_rising_lengths_are_causal_prefill(xp, rung):
    tokens, (heads, kv_heads, head_dim) = 70, HEADS["float32"]
    _, cache = contiguous_case([tokens], heads, kv_heads, head_dim, "float32", xp)
    q = np.random.default_rng(5).standard_normal((tokens, heads, head_dim), np.float32)
    k, v, tables = pool_of(cache, 16)
    out = RUNGS[rung](xp.asarray(q), k, v, np.arange(1, tokens + 1), xp.repeat(tables, tokens, 0))()
    keys, values = (np.repeat(on_host(x)[0, :tokens], heads // kv_heads, 1).astype(float) for x in (cache.k, cache.v))
    scores = np.einsum("qhd,thd->hqt", q, keys) / np.sqrt(head_dim)
    weights = np.exp(scores) * np.tri(tokens)
    want = np.einsum("hqt,thd->qhd", weights / weights.sum(-1, keepdims=True), values)
    assert worst_error(out, want) <= BOUND["float32"]


# ---- large pools, and what is read back -----------------------------------------------------------------------------


@one_way
@each_rung
def test_a_pool_of_more_than_2_to_the_31_elements(xp, rung):
    blocks, small = 131074, contiguous_case([32], 8, 8, 128, "float16", xp)[1]  # 16,384 elements a block
    q = xp.asarray(np.random.default_rng(1).standard_normal((1, 8, 128)).astype(np.float16))
    large = xp.zeros((blocks, 16, 8, 128), np.float16)
    large[-1], large[-2] = small.k[0, :16], small.k[0, 16:32]
    out = RUNGS[rung](q, large, large, [32], [[blocks - 1, blocks - 2]])()
    assert same(out, RUNGS[rung](q, large[-2:].copy(), large[-2:].copy(), [32], [[1, 0]])())
    assert worst_error(out, reference_attention(q, small.k, small.k, [32])) <= BOUND["float16"]


def test_two_full_pages_swapped_show_when_they_are_read_back_and_not_in_the_output(xp):
    q, cache = contiguous_case([40], *HEADS["float32"], "float32", xp)
    k, v, tables = pool_of(cache, 16)
    swapped = tables.copy()
    swapped[0, :2] = tables[0, :2][::-1]
    assert same(gathered(k, tables, [40]), cache.k[:, :40]) and not same(gathered(k, swapped, [40]), cache.k[:, :40])
    for run in RUNGS.values():
        assert worst_error(run(q, k, v, [40], swapped)(), exact(q, cache)) <= BOUND["float32"]


@one_way
@each_rung
def test_tables_that_grow_block_by_block_give_what_a_contiguous_cache_gives(xp, rung):
    q, dense = contiguous_case([14, 30, 33], *HEADS["float32"], "float32", xp)
    pool, cache = BlockPool(8, 16), PagedCache(8, 16, *dense.k.shape[2:], xp=xp)
    tables = [BlockTable(pool) for _ in dense.seq_lens]
    for step in range(0, 33, 5):
        for seq, (table, n) in enumerate(zip(tables, dense.seq_lens.tolist())):
            start, end = min(step, n), min(step + 5, n)
            table.append(end - start)
            cache.append(table.slots(start), *(x[seq, start:end] for x in (dense.k, dense.v)))
    out = RUNGS[rung](q, cache.k, cache.v, [t.num_tokens for t in tables], block_tables(tables))()
    assert same(out, RUNGS[rung](q, dense.k, dense.v, dense.seq_lens)())


def test_a_page_swapped_with_the_partial_last_one_shows_in_the_output(xp):
    q, cache = contiguous_case([40], *HEADS["float32"], "float32", xp)
    k, v, tables = pool_of(cache, 16, unused=(ZERO, ZERO))
    tables[0, 1:3] = tables[0, 1:3][::-1].copy()
    for run in RUNGS.values():
        assert worst_error(run(q, k, v, [40], tables)(), exact(q, cache)) > 0.01


# ---- chunks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung, options", [("naive", {}), ("online_softmax", {}),
                                           *(("split_kv", dict(split_tokens=n)) for n in (1, 16, 100, 5000))])
def test_launch_after_launch_gives_the_same_bytes_however_contexts_are_split(xp, rung, options):
    q, cache = contiguous_case([1, 33, 0, 300], *HEADS["float32"], "float32", xp)
    k, v, tables = pool_of(cache, 16)
    launch = RUNGS[rung](q, k, v, cache.seq_lens, tables, **options)
    first = on_host(launch()).copy()
    assert worst_error(first, exact(q, cache)) <= BOUND["float32"]
    for _ in range(200 if xp is not np else 2):
        launch.out[:] = np.nan
        assert same(launch(), first)


@pytest.mark.gpu
@each_rung
def test_what_a_launch_on_another_stream_needs_is_not_given_to_others_before_it_has_run(rung):
    import cupy

    q, cache = contiguous_case([2048] * 16, *HEADS["float32"], "float32", cupy)
    k, v, tables = pool_of(cache, 16)
    want = RUNGS[rung](q, k, v, cache.seq_lens, tables)()
    cupy.cuda.Device().synchronize()
    stream, outs = cupy.cuda.Stream(non_blocking=True), []
    for _ in range(100):
        with stream:
            outs.append(RUNGS[rung](q, k, v, list(cache.seq_lens), on_host(tables))())
        for size in (16, 96, 128, 2048, 4096):
            cupy.full(size, 2**31 - 1, np.int32)
    stream.synchronize()
    assert all(same(out, want) for out in outs)


def test_chunks_hold_each_token_once_none_is_too_long_and_the_longest_come_first():
    random = np.random.RandomState(0)
    for _ in range(200):
        lengths, most = random.randint(0, random.choice([2, 40, 5000]), random.randint(0, 60)), random.randint(1, 700)
        chunks, num_parts = chunk_list(lengths, most)
        assert chunks.dtype == np.int32 and (np.diff(chunks[:, 2] - chunks[:, 1]) <= 0).all()
        seen, rows = [np.zeros(n, int) for n in lengths], []
        for seq, begin, end, part, parts, first in chunks:
            assert begin < end <= begin + most or begin == end == lengths[seq] == 0
            assert parts == max(1, -(-lengths[seq] // most)) and 0 <= part < parts
            seen[seq][begin:end] += 1
            rows += [first + part] if parts > 1 else []
        assert all((s == 1).all() for s in seen) and set(chunks[:, 0]) == set(range(len(lengths)))
        assert sorted(rows) == list(range(num_parts))


def test_a_batch_is_split_so_that_it_fills_the_gpu_once():
    def grid(lengths, heads, kv_heads, **options):
        q, k = np.zeros((len(lengths), heads, 64), np.float16), np.zeros((1, 16, kv_heads, 64), np.float16)
        tables = np.zeros((len(lengths), -(-max(lengths) // 16)), int)
        return split_kv_launch(q, k, k, lengths, tables, **options).grid[0]

    assert grid([131072], 32, 8) == 264  # two thread blocks on each of an H200's 132 processors
    assert grid([131072], 64, 8) == 128  # one: 8 query heads a group need its registers; 16 chunks of 8 groups
    assert grid([2048] * 64, 32, 8) == 512  # enough without splitting
    assert grid([100], 32, 8) == 8  # a chunk of less than 128 tokens isn't worth it
    assert grid([131072], 32, 8, split_tokens=131072) == 8
