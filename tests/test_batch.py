"""What the rungs take: arrays of any library, and nothing that doesn't fit."""

import numpy as np
import pytest
from cases import contiguous_case, pool_of

from pagefault import RequestTooLarge, relative_error
from pagefault.attention import naive_launch, online_softmax_launch, split_kv_launch
from pagefault.reference import on_host


class DLPack:
    """Another library's array, with no more than DLPack's two methods."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Interface:
    """Another library's array on a GPU, with no more than the CUDA array interface."""

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        return self.array.__cuda_array_interface__


@pytest.fixture
def case():
    q, cache = contiguous_case([5, 40], 4, 2, 64, "float32")
    return q, *pool_of(cache, 16), cache


@pytest.mark.parametrize("run", [naive_launch, online_softmax_launch, split_kv_launch])
@pytest.mark.parametrize("xp, library", [("cpu", DLPack), *(pytest.param("gpu", kind, marks=pytest.mark.gpu)
                                                            for kind in (DLPack, Interface))], indirect=["xp"])
def test_arrays_of_other_libraries_come_in_and_out_without_a_copy(xp, library, run):
    q, cache = contiguous_case([5, 40], 4, 2, 64, "float32", xp)
    k, v, tables = pool_of(cache, 16)
    lens, out = xp.asarray(cache.seq_lens), xp.zeros_like(q)
    run(*map(library, (q, k, v, lens, tables)), out=library(out))()
    want = run(q, k, v, lens, tables)()
    assert on_host(out).tobytes() == on_host(want).tobytes()


@pytest.mark.parametrize("run", [naive_launch, online_softmax_launch, split_kv_launch])
def test_bad_tables_are_refused_by_name_and_nothing_changes(case, run):
    q, k, v, tables, cache = case
    out, lens = np.full_like(q, 7), cache.seq_lens

    def changed(row, column, block):
        copy = tables.copy()
        copy[row, column] = block
        return copy

    for message, tables_ in {
        r"block_tables\[1, 2\] = -1, and the pool has blocks 0 to 5; sequence 1 has 40 tokens in 3 blocks": changed(1, 2, -1),
        r"block_tables\[0, 0\] = 6, and the pool": changed(0, 0, 6),
        "sequence 1 has 40 tokens, 3 blocks of 16, and its row of block_tables 2": tables[:, :2],
        r"block_tables are int32 \[1, 5\]; they are whole numbers \[num_seqs = 2, max_blocks\]": tables[:1],
        r"block_tables are int32 \[5\]": tables[0],
        r"block_tables are float64 \[2, 5\]": tables.astype(float),
    }.items():
        with pytest.raises(ValueError, match=message):
            run(q, k, v, lens, tables_, out=out)()
    assert (out == 7).all()
    for right in (tables.astype(np.int64), tables.tolist(), np.asfortranarray(tables), changed(1, 3, 99), tables[:, :3]):
        assert run(q, k, v, lens, right)().tobytes() == run(q, k, v, lens, tables)().tobytes()


@pytest.mark.parametrize("run", [naive_launch, online_softmax_launch, split_kv_launch])
def test_bad_pools_are_refused_by_name(case, run):
    q, k, v, tables, cache = case
    lens = cache.seq_lens
    huge = np.broadcast_to(k[:1], (2**28, *k.shape[1:]))
    for message, call in {
        r"are \[num_blocks, block_size, num_kv_heads, head_dim\]": lambda: run(q, k, v[..., :32], lens, tables),
        r"are \[num_seqs, max_seq_len, num_kv_heads, head_dim\]": lambda: run(q, k, v, lens),
        "4 query heads can't share 3 KV heads": lambda: run(q, *(np.repeat(x[:, :, :1], 3, 2) for x in (k, v)), lens, tables),
        "block_size are at least 1": lambda: run(q, k[:, :0], v[:, :0], lens, tables),
        "argument 1 .k. is a view": lambda: run(q, *(np.asfortranarray(x) for x in (k, v)), lens, tables)(),
        "has 4,294,967,296 slots, and kernels count to 4,294,967,295": lambda: run(q, huge, huge, lens, tables),
        r"seq_lens\[0\] = -1": lambda: run(q, k, v, [-1, 40], tables),
        "float32, float16, float32; all": lambda: run(q, k.astype(np.float16), v, lens, tables),
    }.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()


@pytest.mark.parametrize("run", [online_softmax_launch, split_kv_launch])
def test_what_loads_of_16_bytes_cannot_take_is_refused(case, run):
    q, k, v, tables, cache = case
    behind = np.zeros(k.size + 1, np.float32)[1:].reshape(k.shape)
    with pytest.raises(ValueError, match="v begins 4 bytes behind a multiple of 16"):
        run(q, k, behind, cache.seq_lens, tables)
    for head_dim in (4, 100, 264):
        q, k = np.zeros((1, 2, head_dim), np.float32), np.zeros((1, 16, 2, head_dim), np.float32)
        with pytest.raises(ValueError, match=f"head_dim = {head_dim}; this kernel takes multiples of 8 up to 256"):
            run(q, k, k, [3], [[0]])


def test_split_tokens_is_a_positive_whole_number(case):
    q, k, v, tables, cache = case
    for wrong in (0, -5, 1.5, "16"):
        with pytest.raises((ValueError, TypeError), match="split_tokens = "):
            split_kv_launch(q, k, v, cache.seq_lens, tables, split_tokens=wrong)


def test_a_paged_context_beyond_shared_memory_names_the_limit_before_the_launch():
    q, k = np.zeros((1, 1, 8), np.float32), np.zeros((1, 256, 1, 8), np.float32)
    with pytest.raises(RequestTooLarge, match="a context of 100,000 tokens needs 400,512 bytes .* enough for 57,984 tokens"):
        naive_launch(q, k, k, [100_000], np.zeros((1, 391), int))


def test_rows_may_share_blocks(case):
    q, k, v, tables, cache = case
    out = split_kv_launch(q, k, v, [40, 40], tables[[1, 1]])()
    assert relative_error(out[1], split_kv_launch(q, k, v, cache.seq_lens, tables)()[1]) == 0
