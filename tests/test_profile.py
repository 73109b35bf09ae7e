import functools
import os
import re
import shutil

import numpy as np
import pytest
from faults import FAULTS, source
from record_counters import WORKS
from right import RIGHT

from pagefault import Kernel, KernelError, benchmark, build, on_cpu, races
from pagefault.translate import KERNELS

COMPILERS = [pytest.param(c, marks=pytest.mark.skipif(not shutil.which(c), reason=f"{c} is not installed"))
             for c in ("g++", "clang++")]
NAIVE = KERNELS / "naive_attention.cu"

# One kernel whose lines are the cases: a warp of 32 lanes, t = 0 to 31; x and y are floats, h halves, i bytes.
# kind: (lines, requests, bytes, sectors or wavefronts, conflicts) with the reason in the comment
BY_HAND = {
    "a thread a row of 64 floats": (  # each of 64 loads: 32 rows, 256 bytes from one another
        "for (int j = 0; j < 64; ++j) a += x[t * 64 + j];", "global load", 64, 64 * 128, 64 * 32, 0),
    "lanes along the row": (  # 64 loads of 32 floats beside each other: 128 bytes are 4 sectors
        "for (int r = 0; r < 32; ++r) for (int j = t; j < 64; j += 32) a += x[r * 64 + j];",
        "global load", 64, 64 * 128, 64 * 4, 0),
    "all lanes at one address": ("a += x[5];", "global load", 1, 128, 1, 0),
    "stride 2": ("a += x[2 * t];", "global load", 1, 128, 8, 0),  # 256 bytes
    "one float off": ("a += x[t + 1];", "global load", 1, 128, 5, 0),  # bytes 4 to 131
    "float4": ("float4 v = ((const float4*)x)[t]; a += v.x + v.w;", "global load", 1, 512, 16, 0),  # 16 bytes a lane
    "one member of float4": ("a += ((const float4*)x)[t].x;", "global load", 1, 128, 16, 0),  # two lanes a sector
    "float4 stored": ("((float4*)y)[t] = make_float4(a, a, a, a);", "global store", 1, 512, 16, 0),
    "half": ("a += __half2float(h[t]);", "global load", 1, 64, 2, 0),  # 2 bytes a lane
    "half2": ("a += __low2float(((const __half2*)h)[t]);", "global load", 1, 128, 4, 0),
    "bytes": ("a += i[t];", "global load", 1, 32, 1, 0),
    "backwards": ("a += x[31 - t];", "global load", 1, 128, 4, 0),
    "half of the lanes": ("if (t % 2) a += x[t];", "global load", 1, 64, 4, 0),  # every sector holds 4 of theirs
    "both sides of a branch": ("if (t < 16) a += x[t]; else a += 2 * x[t];", "global load", 2, 128, 4, 0),  # 2 sectors each
    "each lane one more": (  # load j is of the lanes t > j: 31 - j floats, from float 33 j + 1 on
        "for (int j = 0; j < t; ++j) a += x[32 * j + t];", "global load", 31, 4 * 496, sum(4 - (j + 1) // 8 for j in range(31)), 0),
    "atomics on one word": ("atomicAdd(y, a);", "global atomic", 1, 128, 1, 0),
    "shared": ("a += s[t];", "shared load", 1, 128, 1, 0),
    "shared, one word for all": ("a += s[7];", "shared load", 1, 128, 1, 0),
    "shared, stride 2": ("a += s[2 * t];", "shared load", 1, 128, 2, 1),  # lanes 0 and 16 meet in bank 0
    "shared, stride 32": ("a += s[32 * t];", "shared load", 1, 128, 32, 31),  # all in bank 0
    "shared, stride 33": ("a += s[33 * t];", "shared load", 1, 128, 1, 0),
    "a column of [32][33]": ("a += padded[t][3];", "shared load", 1, 128, 1, 0),
    "a column of [32][32]": ("a += square[t][3];", "shared load", 1, 128, 32, 31),
    "shared float4": ("((float4*)s)[t] = make_float4(a, a, a, a);", "shared store", 1, 512, 4, 0),  # 512 of 128 bytes a wavefront
    "shared float4, every other": ("((float4*)s)[2 * t] = make_float4(a, a, a, a);", "shared store", 1, 512, 8, 4),
    "shared bytes": ("((char*)s)[t] = (char)t;", "shared store", 1, 32, 1, 0),
    "shared atomics": ("atomicAdd(&s[t / 2], a);", "shared atomic", 1, 128, 1, 0),  # 16 words of 16 banks
}
HEAD = """#include <cuda_fp16.h>
__global__ void hand(const float* x, const __half* h, const signed char* i, float* y, float* z) {
  __shared__ __align__(16) float s[2048], square[32][32], padded[32][33]; int t = threadIdx.x; float a = 1;
"""


def forget_compiler():
    build.compiler.cache_clear()
    build.compiler_kind.cache_clear()


@pytest.fixture(params=COMPILERS)
def cxx(request, monkeypatch):
    """Kernels are compiled with g++, then with clang++."""
    monkeypatch.setenv("CXX", request.param)
    forget_compiler()
    yield request.param
    monkeypatch.undo()
    forget_compiler()


@functools.cache
def by_hand(cxx, backwards):
    body = "".join(f"  {line}\n" for line, *_ in BY_HAND.values())
    x, h, i = np.ones(4096, np.float32), np.ones(64, np.float16), np.ones(64, np.int8)
    with on_cpu(backwards=backwards):
        profile = Kernel(HEAD + body + "  z[t] = a; }", "hand").profile(1, 32, (x, h, i, np.zeros(256, "f"), np.zeros(32, "f")))
    return profile.lines.set_index(["line", "access"])


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("case", BY_HAND)
def test_counts_are_those_worked_out_by_hand(cxx, case, backwards):
    _, access, *want = BY_HAND[case]
    row = by_hand(cxx, backwards).loc[(4 + list(BY_HAND).index(case), access)]
    units = row.sectors if access.startswith("global") else row.wavefronts
    assert [row.requests, row.bytes, units, row.conflicts] == want
    if access.startswith("global"):
        assert row.sectors_per_request == want[2] / want[0] and row.efficiency == want[1] / (32 * want[2])


def naive(dtype, method, seq_lens=(5, 40, 64), threads=128, kernel=None):
    """naive_attention on one head of 64, 64 tokens of room; returns what the kernel's method does, and the output."""
    random, n = np.random.default_rng(0), len(seq_lens)
    q, k, v = (random.standard_normal(s, np.float32).astype(dtype) for s in ((n, 1, 64), (n, 64, 1, 64), (n, 64, 1, 64)))
    out = np.zeros((n, 1, 64), dtype)
    kernel = kernel or Kernel(NAIVE, f"naive_attention<{'float' if dtype == 'float32' else '__half'}>")
    call = getattr(kernel, method)
    return call((n, 1), threads, (q, k, v, np.array(seq_lens, np.int32), out, 64, 1, 64, 0.125), shared_mem=4 * (threads + 64)), out


@pytest.mark.parametrize("dtype, value_sectors", [("float32", 4), ("float16", 2)])
def test_naive_attention_touches_a_sector_for_each_key_element(cxx, dtype, value_sectors):
    # Scores: warps of tokens 5 | 32 + 8 | 32 + 32, so 5 warps load 64 times q[d], one sector, and key[d], one sector a
    # token (rows are 256 or 128 bytes). Output: 2 warps of 32 dimensions load V for each of 109 tokens, a row of 32 elements.
    profile, _ = naive(dtype, "profile")
    rows = profile.lines[profile.lines.file == "naive_attention.cu"].set_index(["line", "access"])
    text = NAIVE.read_text(encoding="utf-8").splitlines()
    parts = "q[d]);", "key[d]);", "total +=", "out[d] ="
    query, key, output, store = ([n for n, line in enumerate(text, 1) if part in line][0] for part in parts)
    size = np.dtype(dtype).itemsize
    expected = {
        (query, "global load"): (5 * 64, 109 * 64 * size, 5 * 64),
        (key, "global load"): (5 * 64, 109 * 64 * size, 109 * 64),
        (output, "global load"): (2 * 109, 2 * 109 * 32 * size, 2 * 109 * value_sectors),
        (output, "shared load"): (2 * 109, 2 * 109 * 32 * 4, 0),
        (store, "global store"): (2 * 3, 2 * 3 * 32 * size, 2 * 3 * value_sectors),
    }
    for place, want in expected.items():
        assert tuple(rows.loc[place, ["requests", "bytes", "sectors"]]) == want
    assert profile.total.conflicts.sum() == 0


def profile_of(name):
    if name in RIGHT:
        text, grid, block, args, _ = RIGHT[name]
        return Kernel(text, "f").profile(grid, block, [a.copy() if isinstance(a, np.ndarray) else a for a in args])
    return naive(name, "profile")[0]


@pytest.mark.parametrize("name", ["float32", "float16", *RIGHT])
def test_a_profile_is_the_same_from_both_compilers_and_in_both_orders(name, monkeypatch):
    if not all(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("g++ and clang++ are not both installed")
    seen = set()
    for cxx in ("g++", "clang++"):
        monkeypatch.setenv("CXX", cxx)
        forget_compiler()
        for backwards in (False, True):
            with on_cpu(backwards=backwards):
                p = profile_of(name)
            seen.add((p.lines.to_csv(), p.total.to_csv(), str(p), p._repr_html_()))
    monkeypatch.undo()
    forget_compiler()
    assert len(seen) == 1 and "elsewhere" not in str(p)


@pytest.mark.parametrize("method", ["profile", "check"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_results_are_a_plain_launchs(dtype, method):
    assert naive(dtype, method)[1].tobytes() == naive(dtype, "__call__")[1].tobytes()


def test_a_view_lies_where_it_lies_in_its_array():
    kernel = Kernel("__global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }", "copy")
    for start, sectors in ((0, 4), (1, 5), (8, 4)):
        profile = kernel.profile(1, 32, (np.ones(99, np.float32)[start:], np.ones(32, np.float32)))
        assert profile.total.sectors.tolist() == [sectors, 4]


def test_a_long_divergent_loop_is_counted_in_step():
    # Lane t makes 100 t trips of one load each; all its lanes read one float: a request a trip, and a sector.
    kernel = Kernel("__global__ void f(const float* x, float* y) {\n float a = 0; int t = threadIdx.x;\n"
                    "for (int j = 0; j < 100 * t; ++j) a += x[j];\n y[t] = a; }", "f")
    profile = kernel.profile(1, 32, (np.ones(3100, np.float32), np.zeros(32, np.float32)))
    assert profile.total.loc["global load", ["requests", "sectors", "bytes"]].tolist() == [3100, 3100, 4 * 100 * 31 * 16]


def test_a_copy_of_many_bytes_is_counted_in_pieces_of_4(cxx):
    # 3 lanes fill and copy 20,480 bytes each, 5,120 pieces; every lane's piece lies in a sector of its own
    kernel = Kernel("struct Row { float4 v[2]; };\n__global__ void f(const float* x, float* y) {\n"
                    "  memset(y + threadIdx.x * 5120, 0, 20480);\n  memcpy(y + threadIdx.x * 5120, x, 20480);\n"
                    "  ((Row*)y)[threadIdx.x] = ((const Row*)x)[threadIdx.x];\n}", "f")
    y = np.zeros(3 * 5120, np.float32)
    profile = kernel.profile(1, 3, (np.ones(5120, np.float32), y))
    assert y.all()
    rows = profile.lines[profile.lines.file == "f.cu"].groupby(["line", "access"])[["requests", "bytes", "sectors"]].sum()
    assert rows.loc[(3, "global store")].tolist() == rows.loc[(4, "global store")].tolist() == [5120, 3 * 20480, 3 * 5120]
    assert rows.loc[(4, "global load")].tolist() == [5120, 3 * 20480, 5120]  # all copy from the same place
    assert profile.total.loc["global load", "bytes"] == 3 * (20480 + 32)


@pytest.mark.parametrize("fields, words", [("float x, y, z;", 3), ("int a, b, c, d;", 4), ("float a[5];", 5)])
def test_a_structure_is_loaded_member_by_member(cxx, fields, words):
    # its alignment is 4, so a GPU can't do otherwise; rows of `words` words touch that many sectors for each word
    kernel = Kernel(f"struct S {{ {fields} }};\n__global__ void f(const S* x, S* y) {{ y[threadIdx.x] = x[threadIdx.x]; }}", "f")
    total = kernel.profile(1, 32, (np.ones(32 * words, np.float32), np.zeros(32 * words, np.float32))).total
    sectors = sum(len({4 * (lane * words + word) // 32 for lane in range(32)}) for word in range(words))
    for access in ("global load", "global store"):
        assert total.loc[access, ["requests", "bytes", "sectors"]].tolist() == [words, 128 * words, sectors]


def test_a_profile_shows_itself_beside_the_source():
    kernel = Kernel("template <int N> __global__ void f(const float* x, float* y) {\n  if (threadIdx.x < N)\n"
                    "    y[threadIdx.x] = x[threadIdx.x] > 0 && x[0] < 2;  // <script>\n}", "f<32>")
    profile = kernel.profile(1, 64, (np.ones(64, np.float32), np.zeros(64, np.float32)))
    shown = profile._repr_html_()
    assert "f&lt;32&gt;" in shown and "&lt;script&gt;" in shown and "<script>" not in shown and "http" not in shown
    assert re.search(r"<td>3</td>.*global load</td><td>2</td>.*2.50</td>", shown)
    assert shown.count("global store") == 2  # the line, and the total
    assert re.search(r"f.cu, line 3: global store +1 +128 +4 +4.00 +100.0%", str(profile))


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_check_finds_the_fault_and_nothing_else(name, backwards):
    lines, threads, wanted = FAULTS[name]
    x, y, n = np.ones(1024, np.float32), np.zeros(1024, np.float32), np.zeros(4, np.int32)
    blocks = 2 if re.search(r"\bb\b", " ".join(lines)) else 1
    with on_cpu(backwards=backwards):
        found = Kernel(source(lines), "f").check(blocks, threads, (x, y, n), shared_mem=1024, strict="strict" in name)
    for pattern in wanted:
        assert any(re.search(pattern, sentence) for sentence in found)
    assert all(any(re.search(pattern, sentence) for pattern in wanted) for sentence in found)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_reduction_buffer_reused_without_a_barrier_is_found(tmp_path, backwards):
    common = (KERNELS / "common.cuh").read_text(encoding="utf-8")
    whole = "  float total = partial[0];\n  __syncthreads();\n"
    assert whole in common
    for text, wanted in ((common, 0), (common.replace(whole, "  float total = partial[0];\n"), 1)):
        (tmp_path / "common.cuh").write_text(text, encoding="utf-8")
        (tmp_path / NAIVE.name).write_text(NAIVE.read_text(encoding="utf-8"), encoding="utf-8")
        kernel = Kernel(tmp_path / NAIVE.name, "naive_attention<float>")
        with on_cpu(backwards=backwards):
            found, _ = naive("float32", "check", kernel=kernel)
        assert len(found) == wanted
    assert re.search(r"race on byte 0 of the dynamic .*line \d+ of common.cuh .*line \d+ of common.cuh", found[0])


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_clean_and_right(name, backwards):
    text, grid, block, args, want = RIGHT[name]
    for strict in (False, True):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        with on_cpu(backwards=backwards):
            assert Kernel(text, "f").check(grid, block, copies, strict=strict) == []
        np.testing.assert_allclose(*want(copies), rtol=1e-4)
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    Kernel(text, "f").profile(grid, block, copies)
    np.testing.assert_allclose(*want(copies), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("threads", [32, 128, 256])
def test_naive_attention_is_clean(dtype, threads):
    for strict in (False, True):
        kernel = Kernel(NAIVE, f"naive_attention<{'float' if dtype == 'float32' else '__half'}>")
        kernel.check = functools.partial(kernel.check, strict=strict)
        assert naive(dtype, "check", (0, 1, 33, 64), threads, kernel)[0] == []


def test_what_others_find_in_a_launch_a_check_raises_with_the_faults_until_then():
    lines = FAULTS["write, read"][0] + ["__syncthreads();", "if (t == 9) __trap();"]
    args = np.ones(1024, np.float32), np.zeros(1024, np.float32), np.zeros(4, np.int32)
    with pytest.raises(KernelError, match=r"(?s)f: __trap\(\) in line 8.*Until then:.*race on s\["):
        Kernel(source(lines), "f").check(1, 128, args)


@pytest.mark.parametrize("method", ["profile", "check"])
def test_arguments_are_checked_and_the_time_is_limited(method):
    x = np.ones(50, np.float32)
    call = getattr(Kernel("__global__ void f(float* x, int n) {\n  while (n < 50) x[0] = n;\n}", "f"), method)
    with pytest.raises(TypeError, match=r"f: argument 0 \(x\) holds float64"):
        call(1, 32, (x.astype(float), 50))
    with pytest.raises(KernelError, match="block = .2000,"):
        call(1, 2000, (x, 50))
    with on_cpu(time_limit=0.2), pytest.raises(KernelError, match="still running after 0.2 s"):
        call(1, 32, (x, 0))
    call(1, 32, (x, 50))  # and all is well afterwards


def test_a_check_that_would_need_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(races, "LIMIT", 1 << 20)
    kernel = Kernel("__global__ void f(float* x) { x[threadIdx.x] = 1; }", "f")
    assert kernel.check(1, 32, (np.ones(25000, np.float32),)) == []  # 900,000 bytes
    with pytest.raises(KernelError, match="hold 160,000 bytes, would need 1 MiB .* may take 1 MiB; check a smaller"):
        kernel.check(1, 32, (np.ones(40000, np.float32),))


def test_without_addr2line_a_profile_says_what_to_install(tmp_path, monkeypatch):
    kernel = Kernel("__global__ void f(float* x) { x[threadIdx.x] = 1; }", "f")
    kernel.profile(1, 32, (np.ones(32, np.float32),))
    monkeypatch.setattr(os, "environ", {**os.environ, "PATH": str(tmp_path)})
    with pytest.raises(KernelError, match="(?s)addr2line .*apt install binutils"):
        kernel.profile(1, 32, (np.ones(32, np.float32),))


@pytest.mark.parametrize("work", ["W1", "odd"])
def test_the_counts_are_those_of_a_gpus_own_counters(work):
    table = benchmark.recorded(benchmark.COUNTERS).query("work == @work").set_index("counter").value
    w, random = WORKS[work], np.random.default_rng(0)
    q = random.standard_normal((len(w.seq_lens), w.num_heads, w.head_dim), np.float32).astype(w.dtype)
    shape = (2, len(w.seq_lens), max(w.seq_lens), w.num_kv_heads, w.head_dim)
    total = benchmark.naive_launch(q, *random.standard_normal(shape, np.float32).astype(w.dtype), w.seq_lens).profile().total
    for counter, value in table.items():
        access, _, what = counter.rpartition(" ")
        if access in total.index:
            assert total[what][access] == value, counter
    assert {"global load sectors", "shared store wavefronts"} <= set(table.index)
