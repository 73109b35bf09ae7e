import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pagefault import Kernel, KernelError, cpu, on_cpu
from pagefault.build import library_for
from pagefault.reference import on_host

HERE = Path(__file__).parent
SCALE = """__global__ void scale(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}"""
TREE = """__global__ void total(const float* x, float* out) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  for (int half = 64; half > 0; half /= 2) {
    if (t < half) s[t] += s[t + half];
    __syncthreads();
  }
  if (t == 0) out[0] = s[0];
}"""


def test_the_language(xp):
    out, fout, hout = xp.zeros(144, np.int32), xp.zeros(65, np.float32), xp.zeros(64, np.float16)
    kernel = Kernel(HERE / "features.cu", "features<21, float>")
    launches = 0
    for _ in range(2):
        fout[0] = 0
        kernel((1,), (16, 8), (out, fout, hout, 5 << 40, 1.0), shared_mem=4 * 128)
        got = on_host(out).tolist()
        assert got[0] == launches + 1 or not launches  # a __device__ variable lives on
        launches = got[0]
        assert got[1:5] == [127 * 64, 7, 5, 0]
        assert got[5:9] == [sum(range(32 * w, 32 * w + 32)) for w in range(4)]
        assert got[9:16] == [0xAAAAAAAA - 2**32, 42, 16, got[12], 32, 96, 8 + 9 + 10 + 11]
        assert got[12] in range(32, 48)
        assert got[16:] == [t // 32 * 32 + 5 + 1000 * (t - (t % 32 > 0)) for t in range(128)]
        np.testing.assert_array_equal(on_host(fout)[1:], (np.arange(64, dtype=np.float32) * np.float32(0.1)).astype(np.float16))
        assert float(fout[0]) == 128


def test_half_conversions_are_numpys():
    kernel = Kernel("""#include <cuda_fp16.h>
    __global__ void convert(const __half* h, float* x, const float* y, __half* g) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      x[i] = __half2float(h[i]), g[i] = __float2half(y[i]);
    }""", "convert")
    h = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    random = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        ties = h.astype(np.float32) * np.float32(1 + 2**-11)
    for y in (ties, random.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)):
        x, g = np.empty(1 << 16, np.float32), np.empty(1 << 16, np.float16)
        kernel((256,), (256,), (h, x, y, g))
        np.testing.assert_array_equal(x, h.astype(np.float32))
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(g, y.astype(np.float16))


def test_a_missing_barrier_shows_in_one_order_of_threads():
    x, out, results = np.arange(1, 129, dtype=np.float32), np.zeros(1, np.float32), []
    for source in (TREE, TREE.replace("    __syncthreads();\n", "")):
        for backwards in (False, True):
            with on_cpu(backwards=backwards):
                Kernel(source, "total")((1,), (128,), (x, out))
            results.append(out[0])
    assert results == [8256, 8256, 135, 8256]


def test_shared_memory_that_nobody_wrote_is_not_a_number():
    source = """__global__ void unset(float* out) {
      __shared__ float s;
      extern __shared__ float d[];
      if (blockIdx.x == 0) s = d[0] = 1;
      __syncthreads();
      out[2 * blockIdx.x] = s, out[2 * blockIdx.x + 1] = d[0];
    }"""
    for checked in (False, True):
        out = np.zeros(6, np.float32)
        with on_cpu(checked=checked):
            Kernel(source, "unset")((3,), (32,), (out,), shared_mem=4)
        assert out[:2].tolist() == [1, 1] and np.isnan(out[2:]).all()


SUM = "__global__ void f(float* x, int n) {\n  int t = threadIdx.x;\n  %s\n}"
WHERE = r"thread block \(%s, 0, 0\), thread \(%s, 0, 0\)"
POINTER = "__shared__ float s[40]; volatile float* p = s; "
MISTAKES = {  # name: the third line of a kernel; what the error says
    "just past": ("x[t] = 1;", r"f: writes x\[50\], and x has 50 elements, in line 3 of f.cu; " + WHERE % (0, 50)),
    "just before": ("n = x[t - 1];  x[0] = n;", r"reads x\[-1\].* in line 3 of f.cu; " + WHERE % (0, 0)),
    "far away": ("x[t + 3000000000u] = 1;", r"writes 4 bytes at 0x\w+, far from every array, in line 3"),
    "shared, past": ("extern __shared__ float s[]; s[t] = 1;", "writes byte 80 of the dynamic shared memory, which has 80 bytes"),
    "static, past": ("__shared__ float s[40]; s[t] = 1;", r"index 40 in line 3 is out of bounds.*float ?\[40\].*thread \(40"),
    "local, past": ("float s[4]; for (int i = 0; i < n; ++i) s[i] = 1; x[0] = s[t % 4];", "index 4 in line 3 is out of bounds"),
    "misaligned": ("x[0] = ((float4*)(x + 1))[0].x + ((double*)(x + 1))[0];", "misaligned address 0x.* in line 3"),
    "two barriers": ("if (t < 32) __syncthreads(); else\n__syncthreads();",
                     "divergent barrier: .* line 3, this one in line 4; " + WHERE % (0, 32)),
    "half a warp": ("if (t < 16) x[t] = __shfl_xor_sync(~0u, x[t], 1); __syncthreads();",
                    "divergent warp: the lanes 0xffffffff never all come to the collective in line 3"),
    "not in the mask": ("x[t % 50] = __shfl_sync(1, t, 0);", "lane 1 is not in the mask 0x00000001 .* line 3"),
    "division": ("x[0] = 5 / n;", "division by zero, in line 3"),
    "assertion": ("assert(t < 7);", "assertion in line 3 failed: t < 7; " + WHERE % (0, 7)),
    "trap": ("if (blockIdx.x == 1 && t == 9) __trap();", "__trap.. in line 3; " + WHERE % (1, 9)),
    "abort": ("if (t == 9) abort();", r"f: abort\(\).*thread \(9, 0, 0\)"),
    "illegal instruction": ("if (t == 9) __builtin_trap();", r"f: illegal instruction, in line 3 .*thread \(9, 0, 0\)"),
    "shared, past, by pointer": (POINTER + "p[t] = 1;", r"writes s\[40\], and s has 40 elements, in line 3"),
    "shared, before, by pointer": (POINTER + "p[-1 - t] = 1;", r"writes s\[-1\], and s has 40 elements"),
    "shared, read past": (POINTER + "x[0] = p[t + 1];", r"reads s\[40\], and s has 40 elements"),
    "a built-in variable": ("*(volatile unsigned*)&blockDim.x = 1;", "writes 4 bytes at 0x.*, in line 3"),
    "two shuffles": ("x[t % 50] = t < 16 ? __shfl_sync(~0u, x[0], 5)\n : __shfl_sync(~0u, x[1], 7);", "divergent warp: .* line 3"),
    "a shuffle and a vote": ("if (t % 32 < 16) x[0] = __shfl_sync(~0u, t, 5);\nelse n = __ballot_sync(~0u, t);", "divergent warp"),
    "width": ("x[t % 50] = __shfl_down_sync(~0u, t, 1, 12);", "width 12 of the shuffle in line 3 is not 1, 2, 4, 8, 16 or 32"),
    "deep stack": ("volatile float big[50000]; for (int i = 49999; i >= 0; --i) big[i] = 1;", "more than 64 KiB of stack"),
    "endless": ("while (n < 50) __syncwarp();", "still running after 0.2 s .* an endless loop"),
    "endless, alone": ("for (;;);", "still running after 0.2 s .*endless loop.* in line 3"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_becomes_an_error_that_says_where(name):
    line, message = MISTAKES[name]
    x = np.ones(50, np.float32)
    with on_cpu(time_limit=0.2), pytest.raises(KernelError, match=f"(?s){message}"):
        Kernel(SUM % line, "f")((2,), (64,), (x, 49 if name == "endless" else 0 if name == "division" else 50), shared_mem=80)
    with on_cpu(time_limit=2):  # and all is well afterwards
        Kernel(SCALE, "scale")((1,), (64,), (x, x, 2.0, 50))


def test_an_illegal_address_in_a_fast_launch_says_where_too():
    message = "illegal memory access at .*, in line 3 of f.cu; thread block .0, 0"
    with on_cpu(checked=False), pytest.raises(KernelError, match=message):
        Kernel(SUM % "x[t + 3000000000u] = 1;", "f")((2,), (64,), (np.ones(50, np.float32), 50))


def test_fast_and_checked_launches_give_the_same_bytes():
    x = np.random.default_rng(0).standard_normal(1000, np.float32)
    source = "__global__ void g(float* x) { int i = threadIdx.x; x[i] = expf(x[i]) * x[i] + 0.3f * x[999 - i]; }"
    results = []
    for checked in (False, True):
        y = x.copy()
        with on_cpu(checked=checked):
            Kernel(source, "g")((1,), (500,), (y,))
        results.append(y.tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("args, message", [
    (lambda x: (x, x, 2.0), "scale takes 4 arguments, not 3"),
    (lambda x: (x.astype(float), x, 2.0, 50), r"argument 0 \(x\) holds float64, the kernel wants float32"),
    (lambda x: (x, x.astype(">f4"), 2.0, 50), r"argument 1 \(y\) holds >f4, .* byte order"),
    (lambda x: (x[::2], x, 2.0, 25), r"argument 0 \(x\) is a view that isn't contiguous \(strides \(8,\)\)"),
    (lambda x: (x.tolist(), x, 2.0, 50), r"argument 0 \(x\) is a list, the kernel wants an array"),
    (lambda x: (x, None, 2.0, 50), r"argument 1 \(y\) is a NoneType"),
    (lambda x: (x, np.broadcast_to(x[:1], 50), 2.0, 50), r"argument 1 \(y\) is (read-only|a view)"),
    (lambda x: (x, x, 10**400, 50), r"which is beyond float32"),
    (lambda x: (x, x, np.timedelta64(1), 50), r"is a timedelta64"),
    (lambda x: (x, x, 1j, 50), r"is a complex"),
    (lambda x: (x, x, x, 50), r"argument 2 \(a\) is a ndarray, the kernel wants a number \(float32\)"),
    (lambda x: (x, x, 1e300, 50), r"argument 2 \(a\) is 1e\+300, which is beyond float32"),
    (lambda x: (x, x, 2.0, 50.5), r"argument 3 \(n\) is 50.5, the kernel wants a whole number \(int32\)"),
    (lambda x: (x, x, 2.0, 2**31), r"argument 3 \(n\) is 2147483648, which is beyond int32"),
    (lambda x: (x, x, 2.0, "50"), r"argument 3 \(n\) is a str"),
])
def test_an_argument_that_does_not_fit_is_named(args, message):
    x = np.ones(50, np.float32)
    with pytest.raises(TypeError, match=message):
        Kernel(SCALE, "scale")((1,), (64,), args(x))
    assert (x == 1).all()


@pytest.mark.parametrize("grid, block, options, message", [
    ((0,), (64,), {}, "grid = .0,., 0 thread blocks where 1 to 2,147,483,647"),
    ((1, 65536), (64,), {}, "65,536 thread blocks where 1 to 65,535"),
    ((1,), (1025,), {}, "1,025 threads where 1 to 1,024"),
    ((1,), (64, 32), {}, "block = .64, 32., 2,048 threads"),
    ((1,), (8, 1, 65), {}, "65 threads where 1 to 64"),
    ((1, 1, 1, 1), (64,), {}, "one to three"),
    ((1,), (1.5,), {}, "whole numbers"),
    ((1,), (64,), dict(shared_mem=-1), "shared_mem = -1"),
    ((1,), (64,), dict(shared_mem=1 << 20), "shared_mem = 1048576 bytes, where a thread block can have 0 to "),
])
def test_a_launch_that_cannot_be_is_refused(xp, grid, block, options, message):
    x = xp.ones(50, np.float32)
    with pytest.raises(KernelError, match=f"scale: .*{message}"):
        Kernel(SCALE, "scale")(grid, block, (x, x, 2.0, 50), **options)


def test_numbers_are_cast_to_the_parameters(xp):
    x = xp.arange(50, dtype=np.float32)
    for two, n in ((2.0, 50), (2, 50.0), (np.float64(2), np.int64(50)), (np.int8(2), True)):
        y = xp.zeros_like(x)
        Kernel(SCALE, "scale")((1,), 64, (x, y, two, n))
        assert (y[: int(n)] == 2 * x[: int(n)]).all() and (y[int(n):] == 0).all()


@pytest.mark.gpu
def test_arrays_on_two_devices_are_refused():
    import cupy

    x = np.ones(50, np.float32)
    with pytest.raises(TypeError, match="scale: x is in the CPU's memory, and y in a GPU's"):
        Kernel(SCALE, "scale")((1,), (64,), (x, cupy.asarray(x), 2.0, 50))


def test_a_syntax_error_shows_the_line(xp):
    with pytest.raises(KernelError, match=r"(?s)f does not compile.*f.cu.?2.*nothing"):
        Kernel("__global__ void f(float* x) {\n  x[0] = nothing;\n}", "f")((1,), (1,), (xp.zeros(1, np.float32),))
    with pytest.raises(KernelError, match=r"(?s)f does not compile.*gone\.cuh"):
        Kernel('#include "gone.cuh"\n__global__ void f(float* x) {}', "f")((1,), (1,), (xp.zeros(1, np.float32),))


@pytest.mark.parametrize("source, place", [
    ("f(float* x) {\n  if (x) {\n    x[0] = 1;\n}", 1), ("f(float* x) {\n  x[0] = 1\n}", 2), ("f(float* x) {\n  x[0] = 1;\n}}", 3),
    ("f(float* x) {\n  x[0 = 1;\n}", 2), ("f(float* x) {\n  x[0] = (1;\n}", 2), ("f(float* x {\n  x[0] = 1;\n}", 1),
    ("f(float* x) {\n  __syncthreads(1, 2);\n}", 2),
])
def test_a_syntax_error_names_the_source_and_no_header(source, place):
    source = f"__global__ void {source}"
    with pytest.raises(KernelError, match=f"f does not compile:\nf.cu:{place}") as caught:
        library_for(*(lambda kernel: (kernel.source, "f", kernel.file, "plain"))(Kernel(source, "f")))
    assert "error: " in str(caught.value) and "/" not in str(caught.value)


def test_an_edited_file_or_header_is_compiled_again(xp, tmp_path):
    for number in (1, 2):
        (tmp_path / "n.cuh").write_text(f"#define N {number}\n", encoding="utf-8")
        (tmp_path / "k.cu").write_text('#include "n.cuh"\n__global__ void k(int* x) { *x = N; }', encoding="utf-8")
        x = xp.zeros(1, np.int32)
        Kernel(str(tmp_path / "k.cu"), "k")((1,), (1,), (x,))
        assert int(x[0]) == number


def test_two_processes_may_compile_the_same_kernel_at_once(cpu_cache):
    code = f"""import numpy as np; from pagefault import Kernel; x = np.ones(8, "f")
Kernel({SCALE!r}, "scale")((1,), (8,), (x, x, 3, 8)); print(x.sum())"""
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [r.communicate()[0].strip() for r in runs] == ["24.0"] * 4
    assert sorted(f.suffix for f in cpu_cache.iterdir()) == [".o", ".so"]


@pytest.mark.parametrize("method", ["__call__", "profile", "check"])
def test_ctrl_c_ends_a_launch(method):
    code = f"""if True:
    import numpy as np
    from pagefault import Kernel, on_cpu
    call = Kernel("__global__ void f(float* x, int n) {{ while (n < 9) x[n] = n; }}", "f").{method}
    x = np.ones(8, "f")
    call(1, 32, (x, 9))
    print("ready", flush=True)
    try:
        with on_cpu(time_limit=100): call(1, 32, (x, 0))
    except KeyboardInterrupt: print("interrupted, alive")"""
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "ready\n"
    time.sleep(0.5)
    os.kill(run.pid, signal.SIGINT)
    assert run.communicate(timeout=20)[0] == "interrupted, alive\n"


def test_without_a_compiler_the_error_says_how_to_get_one(cpu_cache):
    code = f"""import importlib.util as u; find = u.find_spec; u.find_spec = lambda n, *a: None if n == "ziglang" else find(n, *a)
import numpy as np, pagefault as p; print(p.mixed_lengths(1, 42)); x = np.ones(8, "f")
p.Kernel({SCALE!r}, "scale")((1,), (8,), (x, x, 3, 8))"""
    run = subprocess.run([sys.executable, "-c", code], env=dict(os.environ, PATH="", CXX=""), capture_output=True, text=True)
    assert run.stdout == "[83]\n"
    assert "KernelError: no C++ compiler was found" in run.stderr and "pip install ziglang" in run.stderr


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("PAGEFAULT_CACHE", str(tmp_path / "file" / "kernels"))
    with pytest.raises(KernelError, match="can't be kept in .*; set PAGEFAULT_CACHE"):
        Kernel(SCALE, "scale")((1,), (8,), (np.ones(8, "f"), np.ones(8, "f"), 3, 8))


def test_shuffles_stay_within_their_warp(xp):
    source = """__global__ void f(int* x) {
      int t = threadIdx.x;
      x[t] = __shfl_xor_sync(~0u, t, -1) + 100 * __shfl_down_sync(~0u, t, 31) + 10000 * __shfl_up_sync(~0u, t, 1, 8);
    }"""
    x = xp.zeros(32, np.int32)
    Kernel(source, "f")((1,), (32,), (x,))
    assert on_host(x).tolist() == [(t ^ 31) + 100 * (31 if t == 0 else t) + 10000 * (t - (t % 8 > 0)) for t in range(32)]


def test_variables_are_declared_in_many_ways(xp):
    source = """
    template <class A, class B> struct Pair { A a; B b; };
    struct Inner { float x[2]; };
    namespace n { extern __shared__ float far_away[]; }  /* { */
    extern __align__(16) __shared__ double aligned[];
    __device__ int counter = 3, table[4] = {1, 2, 3, 4};
    static __device__ volatile int other;
    template <int N> __device__ int times(int x) { return N * x; }
    __global__ void f(float* x) {
      static __shared__ float a[8] /* eight; */, b[2][4];
      __shared__ Pair<Pair<float, int>, float> pair;
      __shared__ struct { float u; int w; } s;
      volatile __shared__ int flag; // __shared__ int nothing;
      const char* text = "__shared__ float no[3];";
      int t = threadIdx.x;
      if (t == 0) flag = 1, pair.a.b = 2, s.w = 3, a[7] = 4, b[1][3] = 5, n::far_away[1] = text[0], counter = table[3], other = 6;
      __syncthreads();
      if (t == 1) x[0] = flag + pair.a.b + s.w + a[7] + b[1][3] + (n::far_away[1] == '_') + counter + other + times<2>(1);
      if (t == 1) x[1] = ((float*)aligned)[1] == '_';
    }"""
    x = xp.zeros(2, np.float32)
    Kernel(source, "f")((1,), (32,), (x,), shared_mem=64)
    assert on_host(x).tolist() == [1 + 2 + 3 + 4 + 5 + 1 + 4 + 6 + 2, 1]


@pytest.mark.parametrize("source, args, message", [
    ("struct P { float x[32]; }; __global__ void f(P* p, float* y) { y[0] = p->x[31]; }", lambda x: (x, x), None),
    ("__global__ void f(volatile float* x) { x[0] = 2; }", lambda x: (x,), None),
    ("__global__ void f(volatile float* x) {}", lambda x: (x.astype(float),), "holds float64, the kernel wants float32"),
    ("__global__ void f(float** x) {}", lambda x: (x,), "arrays of addresses"),
    ("__global__ void f(void* x) {}", lambda x: (np.array([None]),), "Python objects can't be passed"),
])
def test_unusual_parameters(source, args, message):
    x = np.arange(64, dtype=np.float32)
    if message:
        with pytest.raises(TypeError, match=message):
            Kernel(source, "f")((1,), (1,), args(x))
    else:
        Kernel(source, "f")((1,), (1,), args(x))


def test_a_kernels_parameters_are_named_whatever_stands_around_them():
    source = """// __global__ void f(int wrong) {
    __global__ void f(float (*x), int n);
    namespace n { __global__ void f(float x[8], const int n = 3, float* __restrict__ y = nullptr) { } }"""
    assert Kernel(source, "n::f").names(3) == ["x", "n", "y"]
    assert Kernel("template <class T> __global__ void g(T* out) {}", "g < float >").names(1) == ["out"]


def test_odd_text_in_a_file_is_read_as_it_is(xp, tmp_path):
    for folder, number in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "u.cuh").write_text(f"\ufeff#define N{number} {number}\r\n", encoding="utf-8")
    text = '''\ufeff// caf\u00e9 \u2028 #error\r\n#include "a/u.cuh"\n#include "b/u.cuh"
__global__ void f(int* x, int n) {\n  x[n] = N1 + N2;\n}'''
    (tmp_path / "my kernel.cu").write_bytes(text.encode())
    kernel, x = Kernel(tmp_path / "my kernel.cu", "f"), xp.zeros(1, np.int32)
    kernel((1,), (1,), (x, 0))
    assert int(x[0]) == 3
    if xp is np:
        with pytest.raises(KernelError, match="line 5 of my kernel.cu"):
            kernel((1,), (1,), (x, 1 << 28))
    (tmp_path / "latin.cu").write_bytes("// caf\u00e9".encode("latin-1"))
    with pytest.raises(KernelError, match="latin.cu is not UTF-8"):
        Kernel(tmp_path / "latin.cu", "f")


@pytest.mark.parametrize("settings", [
    dict(time_limit=0), dict(time_limit=-1), dict(time_limit=float("nan")), dict(time_limit=float("inf")), dict(time_limit="1"),
    dict(backwards="no"), dict(checked="yes"), dict(lines=-1), dict(lines=2.0),
])
def test_settings_are_checked_where_they_are_given(settings):
    with pytest.raises(ValueError, match=next(iter(settings))), on_cpu(**settings):
        pass


def test_settings_belong_to_a_thread():
    seen = []

    def other():
        with on_cpu(time_limit=77):
            started.set(), go_on.wait()
        seen.append(cpu.settings.get().time_limit)

    started, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    thread.start(), started.wait()
    with on_cpu(checked=True):
        go_on.set(), thread.join()
        assert cpu.settings.get().checked is True
    assert seen == [10.0] and cpu.settings.get() == cpu.Settings()


def test_no_interrupt_is_lost():
    code = f"""if True:
    import os, signal, time
    import numpy as np
    from pagefault import Kernel
    x, kernel = np.ones(64, "f"), Kernel({SCALE!r}, "scale")
    kernel((1,), (64,), (x, x, 1, 64))
    asked, ask = os.pipe()
    if not os.fork():  # each interrupt comes a little later in a launch, and only when it was asked for
        os.close(ask)
        for i in range(150):
            if not os.read(asked, 1): break
            time.sleep(0.001 + i * 1e-5)
            os.kill(os.getppid(), signal.SIGINT)
        os._exit(0)
    for caught in range(1, 151):
        try:
            os.write(ask, b"!")
            end = time.time() + 10
            while time.time() < end: kernel((1,), (64,), (x, x, 1, 64))
            raise SystemExit("an interrupt was lost")
        except KeyboardInterrupt: pass
    print(caught)"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "150\n", run.stderr


def test_a_kernel_may_be_launched_in_a_signal_handler():
    code = f"""if True:
    import signal, numpy as np
    from pagefault import Kernel
    x, y, kernel = np.ones(64, "f"), np.ones(64, "f"), Kernel({SCALE!r}, "scale")
    signal.signal(signal.SIGALRM, lambda *_: kernel((1,), (64,), (y, y, 3, 64)))
    kernel((1,), (64,), (x, x, 1, 64))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    for _ in range(2000): kernel((1,), (64,), (x, x, 1, 64))
    print("done", y[0] > 3)"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "done True\n", run.stderr


def test_what_is_damaged_is_compiled_again(cpu_cache):
    x = np.ones(8, np.float32)
    for n, damage in enumerate((b"", b"\x7fELF and no more")):  # (another kernel each time: a library is loaded once)
        kernel = Kernel(SCALE.replace("a *", f"{n} + a *"), "scale")
        compiled = library_for(kernel.source, "scale", kernel.file, "checked")
        compiled.write_bytes(damage)
        kernel((1,), (8,), (np.ones(8, np.float32), x, 3, 8))
        assert x[0] == n + 3
    compiled.unlink()
    next(cpu_cache.glob("*.o")).write_bytes(damage)
    with pytest.raises(KernelError, match="scale does not compile"):
        library_for(kernel.source, "scale", kernel.file, "checked")
    assert library_for(kernel.source, "scale", kernel.file, "checked").exists()


def test_a_compiler_that_is_not_there_is_named(cpu_cache):
    code = f"import numpy as np, pagefault as p; p.Kernel({SCALE!r}, 'scale')((1,), (8,), (np.ones(8, 'f'),) * 2 + (3, 8))"
    run = subprocess.run([sys.executable, "-c", code], env=dict(os.environ, CXX="nonsense -x"), capture_output=True, text=True)
    assert "KernelError: the environment variable CXX names nonsense, which is not there" in run.stderr


def test_legal_declarations_that_are_hard_to_read_still_run(xp):
    source = """#include <cuda_fp16.h>
    #define N 2
    #define SHARED __shared__
    // as in vector<int>
    __device__ int plain;
    __device__ int table[(N) * 8];
    __device__ float best = -(1.0f / 2);
    __device__ int braces{5}, parentheses(6);
    __device__ struct Q { int c; } q;
    extern "C" {
      extern __shared__ int whole[];
      extern __shared__ int rows[][4];
      extern volatile __shared__ int seen[];
    }
    __device__ int next() { static int calls = 0; return atomicAdd(&calls, 1); }
    struct Base { int k; __device__ virtual int get(int x) { return x + k; } };
    struct Twice : Base { __device__ int get(int x) { return 2 * x + k; } };
    __global__ void f(int* x) {
      SHARED int hidden[32];
      __shared__ int (*pointer)[4];
      const int squares[] = {0, 1, 4, 9};
      int t = threadIdx.x;
      Base base; Twice twice; base.k = twice.k = 1;
      Base* either = t & 1 ? &twice : &base;
      whole[t] = hidden[t] = t, plain = 1, table[15] = 2, best = 3, braces = 4, q.c = 5;
      if (t == 0) pointer = rows;
      __syncthreads();
      x[t] = rows[t / 4][t % 4] + seen[t] + (*pointer)[0] + hidden[31 - t] + either->get(t) + squares[t % 4];
      if (t == 0) x[32] = plain + table[15] + (int)best + braces + parentheses + q.c + (next() >= 0);
      dim3 d(2, 3);
      if (t == 0) x[33] = d.x + d.y + d.z;
    }"""
    x = xp.zeros(34, np.int32)
    Kernel(source, "f")((1,), (32,), (x,), shared_mem=128)
    want = [2 * t + (31 - t) + (2 * t if t % 2 else t) + 1 + (t % 4) ** 2 for t in range(32)]
    assert on_host(x).tolist() == [*want, 1 + 2 + 3 + 4 + 6 + 5 + 1, 6]


def test_a_kernel_that_prints_forever_leaves_printing_usable(capfd):
    x = np.ones(50, np.float32)
    for _ in range(3):
        with on_cpu(time_limit=0.05), pytest.raises(KernelError, match="still running"):
            Kernel(SUM % 'while (n) printf("%d of %s\\n", t, "many");', "f")((1,), (4,), (x, 1))
    capfd.readouterr()
    Kernel(SUM % 'printf("%d %.1f\\n", t, x[t]);', "f")((1,), (2,), (x, 1))
    assert capfd.readouterr().out == "0 1.0\n1 1.0\n"


@pytest.mark.parametrize("threads, lines, shown, left", [(200, None, 200, 0), (201, None, 200, 1), (64, 20, 20, 44), (64, 0, 0, 0)])
def test_what_is_printed_without_end_is_cut(threads, lines, shown, left, capfd):
    with on_cpu(lines=lines):
        Kernel(SUM % 'printf("%d\\n", t);', "f")((1,), (threads,), (np.ones(1, np.float32), 1))
    more = [f"... ({left} more {'line was' if left == 1 else 'lines were'} printed)"] * bool(left)
    assert capfd.readouterr().out.splitlines() == [*map(str, range(shown)), *more]


def test_what_is_printed_fits_into_a_notebooks_pipe(capfd):
    with on_cpu(time_limit=0.2), pytest.raises(KernelError, match="still running"):
        Kernel(SUM % 'while (n) printf("%4000d", t);', "f")((1,), (1,), (np.ones(1, np.float32), 1))
    assert len(capfd.readouterr().out) == 16_000 + len("... (more was printed)\n")


def test_another_handler_of_interrupts_is_heard():
    code = f"""if True:
    import os, signal, threading, numpy as np
    from pagefault import Kernel, KernelError
    x, heard, endless = np.ones(8, "f"), [], Kernel({SUM % "for (;;);"!r}, "f")
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try: endless((1,), (8,), (x,))  # (one argument is missing: compiles, and runs nothing)
    except TypeError: pass
    if not (child := os.fork()): import time; time.sleep(1); os.kill(os.getppid(), signal.SIGINT); os._exit(0)
    try: endless((1,), (8,), (x, 8))
    except KernelError as error: print(error, heard)"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "f: interrupted [1]\n", run.stderr


def test_a_launch_that_finds_no_memory_says_so_and_is_no_interrupt():
    code = f"""if True:
    import resource, signal, threading, os, time, numpy as np
    from pagefault import Kernel, KernelError
    x, kernel = np.ones(8, "f"), Kernel({SCALE!r}, "scale")
    try: kernel((1,), (8,), (x, x, 3))  # (one argument is missing: compiles, and runs nothing)
    except TypeError: pass
    pages = int(open("/proc/self/statm", encoding="utf-8").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (8 << 20),) * 2)
    try: kernel((1,), (8,), (x, x, 3, 8))
    except KernelError as error: print(error, x[0])"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux's /proc to know how much memory is in use")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "scale: no memory for the threads' stacks 1.0\n", run.stderr


def test_kernels_give_the_stacks_of_their_threads_back_when_all_keep_too_many(monkeypatch):
    monkeypatch.setattr(cpu, "STACKS", 100)
    monkeypatch.setattr(cpu, "kept", {})
    kernels = [Kernel(f"__global__ void f(int* x) {{ x[threadIdx.x] = {i}; }}", "f") for i in range(3)]
    x = np.zeros(64, np.int32)
    for _ in range(2):
        for i, kernel in enumerate(kernels):
            kernel((1,), (64,), (x,))
            assert (x == i).all() and list(cpu.kept.values()) == [64]
