import shutil
from dataclasses import replace

import numpy as np
import pytest
from cases import BOUND, LENGTHS, contiguous_case

from pagefault import RequestTooLarge, kernel, naive_attention, naive_launch, on_cpu, reference_attention, relative_error
from pagefault.attention import THREADS
from pagefault.kernel import shared_limit
from pagefault.reference import on_host
from pagefault.translate import KERNELS

LONG = 1e-5  # a mean of random values shrinks as a context grows, and the rounding of its sum doesn't


def run(q, cache, **options):
    return naive_attention(q, cache.k, cache.v, cache.seq_lens, **options)


def reference(q, cache, **options):
    return reference_attention(q, cache.k, cache.v, cache.seq_lens, **options)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize("heads, kv_heads", [(32, 8), (28, 4), (4, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_equals_float64_whatever_lies_in_the_padding(xp, dtype, heads, kv_heads, head_dim):
    lengths = LENGTHS if head_dim == 128 or heads == 4 else LENGTHS[:-2] + [100]
    q, cache = contiguous_case(lengths, heads, kv_heads, head_dim, dtype, xp)
    assert relative_error(run(q, cache), reference(q, cache)) <= BOUND[dtype]


@pytest.mark.parametrize("head_dim", [1, 5, 200, 256])
def test_any_head_dim(xp, head_dim):
    q, cache = contiguous_case([3, 40], 2, 1, head_dim, "float32", xp)
    assert relative_error(run(q, cache), reference(q, cache)) <= BOUND["float32"]


def test_equal_keys_give_the_mean_of_v(xp):
    q, cache = contiguous_case([37], 2, 2, 64, "float32", xp)
    cache.k[:] = 1.5
    mean = on_host(cache.v)[0, :37].astype(np.float64).mean(0)
    assert relative_error(run(q, cache)[0], mean) <= 2e-6


def test_one_key_far_above_the_others_gives_its_v(xp):
    q, cache = contiguous_case([50], 1, 1, 64, "float32", xp)
    q[:], cache.k[0, :50], cache.k[0, 23] = 1, -1, 30
    assert (on_host(run(q, cache))[0] == on_host(cache.v)[0, 23]).all()


def test_one_token_gives_its_v_whatever_q_is(xp):
    q, cache = contiguous_case([1], 4, 2, 80, "float16", xp)
    assert (on_host(run(q, cache))[0] == np.repeat(on_host(cache.v)[0, 0], 2, axis=0)).all()


def test_query_heads_share_kv_heads_in_groups(xp):
    for heads, kv_heads in ((4, 2), (28, 4), (8, 1), (4, 4)):
        q, cache = contiguous_case([9], heads, kv_heads, 64, "float32", xp)
        cache.v[:] = 10 * (1 + xp.arange(kv_heads))[:, None]
        want = np.repeat(10 * (1 + np.arange(kv_heads)), heads // kv_heads)
        np.testing.assert_allclose(on_host(run(q, cache))[0, :, 0], want, rtol=1e-6)


def test_no_tokens_give_zeros_and_leave_other_rows_right(xp):
    q, cache = contiguous_case([0, 5], 4, 2, 64, "float32", xp)
    out = run(q, cache)
    assert (on_host(out)[0] == 0).all()
    assert relative_error(out[1:], reference(q, cache)[1:]) <= 2e-6


def test_no_sequences_give_no_rows(xp):
    empty = xp.zeros((0, 8, 2, 64), np.float32)
    assert naive_attention(xp.zeros((0, 4, 64), np.float32), empty, empty, []).shape == (0, 4, 64)


def test_65536_sequences(xp):
    q, cache = contiguous_case([1] * 3, 1, 1, 4, "float32", xp)
    many = [xp.repeat(a[:1], 65536, 0) for a in (q, cache.k, cache.v)]
    with on_cpu(time_limit=60):
        assert (on_host(naive_attention(*many, [1] * 65536)) == on_host(cache.v)[0, 0]).all()


def test_scores_of_a_thousand_do_not_overflow(xp):
    q, cache = contiguous_case([100], 1, 1, 64, "float32", xp)
    q, cache.k[0, :100] = q * 100, cache.k[0, :100] * 10
    assert relative_error(run(q, cache, scale=1.0), reference(q, cache, scale=1.0)) <= 1e-5


@pytest.mark.parametrize("tokens", [12159, 12160, 12161, 12287, 12288, 12289, 16384])
def test_contexts_around_48_KiB_of_shared_memory(xp, tokens):
    q, cache = contiguous_case([tokens], 1, 1, 8, "float32", xp)
    assert relative_error(run(q, cache), reference(q, cache)) <= LONG


def test_a_context_beyond_shared_memory_names_the_limit_before_the_launch(xp):
    most = shared_limit(xp) // 4 - THREADS
    q, cache = contiguous_case([most], 1, 1, 2, "float32", xp, max_seq_len=most + 1)
    assert relative_error(run(q, cache), reference(q, cache)) <= LONG
    out = xp.full_like(q, 7)
    with pytest.raises(RequestTooLarge, match=f"{most + 1:,} tokens needs .* at most .* enough for {most:,} tokens"):
        naive_attention(q, cache.k, cache.v, [most + 1], out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("threads", [128, 256])
def test_two_hundred_launches_give_the_same_bytes(xp, threads):
    q, cache = contiguous_case([1000], 2, 2, 64, "float32", xp)
    launch = naive_launch(q, cache.k, cache.v, cache.seq_lens)
    launch = replace(launch, block=(threads,), shared_mem=4 * (threads + 1000))
    assert relative_error(launch(), reference(q, cache)) <= 2e-6
    first = on_host(launch.out).tobytes()
    for _ in range(200 if xp is not np else 3):
        launch.out[:] = np.nan
        assert on_host(launch()).tobytes() == first


def test_bad_input_is_refused_by_name():
    q, cache = contiguous_case([5, 9], 4, 2, 64, "float32")
    k, v, n, frozen = cache.k, cache.v, cache.seq_lens, np.zeros_like(q)
    frozen.flags.writeable = False
    for message, call in {
        "share 2 KV heads": lambda: naive_attention(q[:, :3].copy(), k, v, n),
        "q .2, 64. is": lambda: naive_attention(q[:, 0], k, v, n),
        r"and v \[2, 12, 2, 32\]": lambda: naive_attention(q, k, v[..., :32], n),
        "float16, float32, float32; all": lambda: naive_attention(q.astype(np.float16), k, v, n),
        "float64, float64, float64; all": lambda: naive_attention(*(x.astype(float) for x in (q, k, v)), n),
        "1 sequence lengths for 2": lambda: naive_attention(q, k, v, [5]),
        "sequence 1 has 13 tokens, and the cache 12": lambda: naive_attention(q, k, v, [5, 13]),
        r"seq_lens\[0\] = -1": lambda: naive_attention(q, k, v, [-1, 5]),
        "scale = nan": lambda: run(q, cache, scale=float("nan")),
        "out is a list": lambda: run(q, cache, out=[1]),
        "head_dim and max_seq_len are at least 1": lambda: naive_attention(q[..., :0], k[..., :0], v[..., :0], n),
        "whole numbers, not float64": lambda: naive_attention(q, k, v, [1.0, 5.0]),
        "argument 1 .k. is a view": lambda: naive_attention(q, *(np.asfortranarray(x) for x in (k, v)), n),
        "q is a builtins.list, k is a numpy.ndarray, .* all are NumPy's": lambda: naive_attention(q.tolist(), k, v, n),
        "out is float32 .2, 4, 3": lambda: run(q, cache, out=q[..., :32]),
        "argument 4 .out. is read-only": lambda: run(q, cache, out=frozen),
    }.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()


def test_a_kernel_of_the_module_is_read_again_when_a_file_that_it_includes_is_edited(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel, "KERNELS", shutil.copytree(KERNELS, tmp_path / "kernels"))
    monkeypatch.setattr(kernel, "_kernels", {})
    names = "paged_attention.cu", "paged_attention<float, 16>"
    first = kernel.ladder_kernel(*names)
    assert kernel.ladder_kernel(*names) is first
    with open(tmp_path / "kernels" / "layout.cuh", "a", encoding="utf-8") as file:
        file.write("// edited")
    assert "// edited" in kernel.ladder_kernel(*names).source
