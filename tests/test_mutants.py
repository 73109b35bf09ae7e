"""Would the tests notice? Faults planted in the kernels of the ladder, each of which a short test has to find."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from cases import BOUND, compile_side_by_side, contiguous_case, pool_of, worst_error

from pagefault import Kernel, KernelError, dequantized, on_cpu, reference_attention
from pagefault.attention import naive_launch, online_softmax_launch, split_kv_launch
from pagefault.tensor_core import int8_launch, tensor_core_launch
from pagefault.translate import KERNELS
from pagefault.works import in_int8
from pagefault.works import pool_of as in_pool

RUNGS = {  # launch, file, kernel, head_dim, block_size
    "naive": (naive_launch, "paged_attention.cu", "paged_attention<float, 16>", 64, 16),
    "online_softmax": (online_softmax_launch, "online_softmax.cu", "online_softmax<float, 64, Paged<16>>", 64, 16),
    "split_kv": (split_kv_launch, "split_kv.cu", "split_kv<float, 64, 2, Paged<16>>", 64, 16),
    "split_kv, 80 dims": (split_kv_launch, "split_kv.cu", "split_kv<float, 80, 2, Paged<16>>", 80, 16),
    "online_softmax, pages of 1": (online_softmax_launch, "online_softmax.cu", "online_softmax<float, 64, Paged<1>>", 64, 1),
    "tensor_core": (tensor_core_launch, "tensor_core.cu", "tensor_core<__half, 64, 2, 3, Paged<16>>", 64, 16),
    "tensor_core, pages of 5": (tensor_core_launch, "tensor_core.cu", "tensor_core<__half, 64, 2, 3, Paged<5>>", 64, 5),
    "int8": (int8_launch, "tensor_core.cu", "tensor_core<signed char, 64, 2, 2, Paged<16>>", 64, 16),
}
SPLIT = split_kv_launch, tensor_core_launch, int8_launch
HEADS = "kv_head = head / (num_heads / num_kv_heads)", "kv_head = head % num_kv_heads"
K_ALONE = "seq_len >= 32 && token < 32 ? token ^ 16 : token"  # two full pages of K are swapped, and V's are not
MUTANTS = [  # the rung that must notice, its file, what is wrong, what stands there, what a mutant has instead
    ("naive", "layout.cuh", "block ids are shifted", "token / BLOCK_SIZE];", "token / BLOCK_SIZE] + 1;"),
    ("naive", "layout.cuh", "pages begin a token early", "token / BLOCK_SIZE]", "(token + 1) / BLOCK_SIZE]"),
    ("naive", "layout.cuh", "pages begin a token late", "token / BLOCK_SIZE]", "(token - (token > 0)) / BLOCK_SIZE]"),
    ("naive", "layout.cuh", "two pages are swapped", "token / BLOCK_SIZE]", "(token / BLOCK_SIZE ^ 1)]"),
    ("naive", "layout.cuh", "offsets are shifted", "token % BLOCK_SIZE;", "(token + 1) % BLOCK_SIZE;"),
    ("naive", "layout.cuh", "the table's rows are shorter", "seq * max_blocks", "seq * (max_blocks - 1)"),
    ("naive", "naive_attention.cu", "K's page alone", "k + row(token)", f"k + row({K_ALONE})"),
    ("naive", "naive_attention.cu", "a score too many", "token < seq_len; token += blockDim.x) {\n    const",
     "token <= seq_len; token += blockDim.x) {\n    const"),
    ("naive", "naive_attention.cu", "a value too many", "token < seq_len; ++token", "token <= seq_len; ++token"),
    ("naive", "paged_attention.cu", "heads tiled", *HEADS),
    ("naive", "common.cuh", "no barrier", "partial[t + half];\n    __syncthreads();", "partial[t + half];"),
    ("online_softmax", "online_softmax.cu", "the partial page isn't masked", "if (token >= seq_len) break;", ""),
    ("online_softmax, pages of 1", "online_softmax.cu", "loads past the end", "min(token, seq_len - 1)", "token"),
    ("online_softmax", "online_softmax.cu", "K's page alone", "row(k, slot,", f"row(k, layout.slot(seq, {K_ALONE}),"),
    ("online_softmax", "online_softmax.cu", "heads tiled", *HEADS),
    ("online_softmax", "online_softmax.cu", "no barrier", "__syncthreads();", ""),
    ("online_softmax", "online_softmax.cu", "half a score", "flip < Piece::LANES", "flip < Piece::LANES / 2"),
    ("online_softmax", "partial.cuh", "the sum isn't scaled down", "top = new_top, sum *= keep;", "top = new_top;"),
    ("online_softmax", "partial.cuh", "the output isn't scaled down", "out[i] *= keep;", "out[i] *= 1;"),
    ("split_kv", "split_kv.cu", "the partial page isn't masked", "token + u * STEP < chunk.end ? score : NO_SCORE", "score"),
    ("split_kv", "split_kv.cu", "loads past the end", "min(token + u * STEP, chunk.end - 1)", "token + u * STEP"),
    ("split_kv", "split_kv.cu", "heads tiled", HEADS[0], "kv_head = head / GROUP % num_kv_heads ^ 1"),
    ("split_kv", "split_kv.cu", "no barrier", "  __syncthreads();\n  chunk =", "  chunk ="),
    ("split_kv", "split_kv.cu", "each chunk begins at 0", "first = chunk.begin + warp", "first = warp"),
    ("split_kv", "chunks.cuh", "another sequence's parts", "(long long)chunk.first_part * num_heads", "0LL"),
    ("split_kv", "chunks.cuh", "merged a part early", "== num_parts - 1", "== num_parts - 2"),
    ("split_kv", "chunks.cuh", "one lane alone hears who is last", "return __shfl_sync(~0u, last, 0);", "return last;"),
    ("split_kv", "partial.cuh", "parts past the last count", "first + i < n ? one.top : LOWEST", "one.top"),
    ("split_kv", "chunks.cuh", "the count isn't reset", "if (last) atomicExch(arrived, 0);", ""),
    ("split_kv, 80 dims", "split_kv.cu", "lanes without a piece count", "has_piece ? to_float(", "true ? to_float("),
    ("split_kv, 80 dims", "split_kv.cu", "lanes without a piece load past the row", "if (!has_piece) start = 0;", ""),
    ("tensor_core", "tensor_core.cu", "the partial tile isn't masked", "lane / 4 + i / 2 * 8 < count ?", "true ?"),
    ("tensor_core", "tensor_core.cu", "loads past the end", "WHOLE ? slot + min(r, last)", "WHOLE ? slot + r"),
    ("tensor_core, pages of 5", "tensor_core.cu", "loads past the end", "token + min(lane % TILE, last)", "token + lane % TILE"),
    ("tensor_core, pages of 5", "tensor_core.cu", "a tile taken for one page", "Layout::RUN % TILE == 0", "true"),
    ("tensor_core", "tensor_core.cu", "heads tiled", HEADS[0], "kv_head = head / GROUP % num_kv_heads ^ 1"),
    ("tensor_core", "tensor_core.cu", "a tile is used too early", "wait_copies<STAGES - 1>", "wait_copies<STAGES>"),
    ("tensor_core", "tensor_core.cu", "a tile may not be there", "    __syncwarp();  // the tile is there, for all lanes\n", ""),
    ("tensor_core", "tensor_core.cu", "each chunk begins at 0", "int token = chunk.begin + (", "int token = ("),
    ("tensor_core", "tensor_core.cu", "the output isn't scaled down", "*= keep * shrink", "*= shrink"),
    ("tensor_core", "tensor_core.cu", "the sum isn't scaled down", "sum[c][h] *= keep;", "sum[c][h] *= 1;"),
    ("tensor_core", "tensor_core.cu", "the largest of some tokens", "flip < 32; flip *= 2) new_base",
     "flip < 16; flip *= 2) new_base"),
    ("tensor_core", "tensor_core.cu", "results over tiles in use", "  __syncthreads();  // nobody needs the tiles any more\n", ""),
    ("tensor_core", "tiles.cuh", "V not transposed", "load_transposed(a[f]", "load_matrices(a[f]"),
    ("int8", "tensor_core.cu", "K's scale alone", "scales[warp][stage][1] : 1", "scales[warp][stage][0] : 1"),
    ("int8", "tensor_core.cu", "V's scale isn't followed", "shrink = v_scale / new_v_scale", "shrink = 1"),
    ("int8", "tensor_core.cu", "another head's scale", "* num_kv_heads + kv_head);", "* num_kv_heads);"),
    ("int8", "tiles.cuh", "dims in another order", "return 2 * c + j;", "return c + 4 * j;"),
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """{(rung, file, what is wrong): Kernel}, and {rung: Kernel} of the right ones; compiled side by side."""
    found = {}
    for i, (rung, file, wrong, old, new) in enumerate(MUTANTS):
        folder = shutil.copytree(KERNELS, tmp_path_factory.mktemp("mutant") / str(i))
        text = (folder / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
        (folder / file).write_text(text.replace(old, new), encoding="utf-8")
        found[rung, file, wrong] = Kernel(folder / RUNGS[rung][1], RUNGS[rung][2])
    found |= {rung: Kernel(KERNELS / file, name) for rung, (_, file, name, *_) in RUNGS.items()}
    compile_side_by_side(found.values())
    return found


def notices(rung, kernel):
    """What a short test says to a kernel of a rung, None if it finds nothing."""
    launch, _, name, head_dim, block_size = RUNGS[rung]
    dtype = "float32" if "float" in name else "float16"
    q, cache = contiguous_case([1, 15, 16, 17, 31, 32, 33, 70, 300], 4, 2, head_dim, dtype)
    exact, bound = reference_attention(q, cache.k, cache.v, cache.seq_lens), BOUND["float32"] if dtype == "float32" else 4e-4
    for unused in ((np.nan, np.nan), (1e3, 1e3)):
        *pool, tables = pool_of(cache, block_size, unused=unused)
        if rung == "int8":
            int8 = in_int8(cache.k, cache.v * np.float16(3), cache.seq_lens)
            exact = reference_attention(q, *(dequantized(*int8[i::2]) for i in (0, 1)), cache.seq_lens)
            *pool, tables = in_pool(int8, cache.seq_lens, 16, "shuffled", 1)
        for options in ({}, dict(split_tokens=24)) if launch in SPLIT else ({},):
            mutant = replace(launch(q, *pool, cache.seq_lens, tables, **options), kernel=kernel)
            for backwards in (False, True):
                mutant.out[:] = np.nan
                try:
                    with on_cpu(backwards=backwards, checked=False):
                        error = worst_error(mutant(), exact)
                except KernelError as e:
                    return str(e)
                if not error <= bound:
                    return f"relative error {error:.1e} ({'last' if backwards else 'first'} thread first, {unused[0]} unused)"
    return None


@pytest.mark.parametrize("rung", RUNGS)
def test_the_right_kernel_passes(kernels, rung):
    assert notices(rung, kernels[rung]) is None


@pytest.mark.parametrize("rung, file, wrong", [m[:3] for m in MUTANTS])
def test_a_mutant_is_noticed(kernels, rung, file, wrong):
    assert notices(rung, kernels[rung, file, wrong])


# ---- faults that no result need show: what Kernel.check says ---------------------------------------------------------


def findings(rung, folder=KERNELS, **options):
    launch, file, name, head_dim, block_size = RUNGS[rung]
    q, cache = contiguous_case([0, 33, 80], 4, 2, head_dim, "float32")
    k, v, tables = pool_of(cache, block_size)
    return replace(launch(q, k, v, cache.seq_lens, tables, **options), kernel=Kernel(folder / file, name)).check()


@pytest.mark.parametrize("rung", ["naive", "online_softmax", "split_kv"])
def test_the_ladder_is_free_of_races(rung):
    assert findings(rung) == []


def test_where_contexts_are_split_only_atomics_order_the_parts():
    # A check takes atomics for no order: it reports that who merges reads the parts that others wrote, and nothing else.
    found = findings("split_kv", split_tokens=40)
    assert found and all(re.fullmatch(r"race on parts\[\d+\]: .* partial.cuh .*; thread blocks run in no order", f) for f in found)
