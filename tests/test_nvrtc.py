"""Every kernel compiles for every architecture it claims, with NVRTC, which needs no GPU."""

import ctypes
import importlib.util
from pathlib import Path

import pytest

from pagefault.gpu import OPTIONS, gpu_source
from pagefault.kernel import Kernel
from pagefault.storage import PIECES
from pagefault.translate import KERNELS

OLDEST = 75  # compute capability 7.5, unless a kernel needs more
INSTANCES = {  # file: its instances, and the oldest architecture that has what they use
    "naive_attention.cu": (["naive_attention<float>", "naive_attention<__half>"], OLDEST),
    "append.cu": ([f"append<{p}>" for p in PIECES.values()], OLDEST),
    "copy_blocks.cu": ([f"copy_blocks<{p}>" for p in PIECES.values()], OLDEST),
    "gather_blocks.cu": ([f"gather_blocks<{p}, {back}>" for p in PIECES.values() for back in ("false", "true")], OLDEST),
    "paged_attention.cu": (["paged_attention<__half, 5>"], OLDEST),
    "online_softmax.cu": (["online_softmax<float, 256, Paged<16>>", "online_softmax<__half, 80, Contiguous>"], OLDEST),
    "split_kv.cu": (["split_kv<float, 64, 1, Contiguous>", "split_kv<__half, 128, 8, Paged<16>>"], OLDEST),
    "tensor_core.cu": (["tensor_core<__half, 128, 16, 3, Paged<16>>", "tensor_core<__half, 64, 1, 2, Paged<5>>",
                        "tensor_core<signed char, 128, 4, 2, Contiguous>"], 80),
    "append_int8.cu": (["append_int8"], OLDEST),
    **{f"{name}.cu": ([f"{name}<float>", f"{name}<__half>"], OLDEST) for name in ("rms_norm", "rope", "swiglu")},
    "read_ceiling.cu": ([f"read_ceiling<{n}>" for n in (2, 8)], OLDEST),
}
EXTRA = {Path(__file__).parent / "features.cu": (["features<21, float>"], OLDEST)}
CASES = [(path, name, arch) for path, (names, oldest) in {**{KERNELS / f: i for f, i in INSTANCES.items()}, **EXTRA}.items()
         for name in names for arch in (75, 80, 86, 90, 100) if arch >= oldest]


@pytest.fixture(scope="module")
def nvrtc():
    """The NVRTC library and the folder of CUDA's headers, from the wheels of the test extra."""
    spec = importlib.util.find_spec("nvidia")
    found = [f for root in (spec.submodule_search_locations if spec else []) for f in Path(root).glob("**/libnvrtc.so.*")]
    if not found:
        pytest.skip("needs the wheels nvidia-cuda-nvrtc and nvidia-cuda-runtime, which Linux alone has")
    return ctypes.CDLL(str(found[0])), next(found[0].parents[1].glob("**/cuda_fp16.h")).parent


def nvrtc_compile(nvrtc, source, name, arch):
    """The compiler's log if it refuses the kernel, else None."""
    lib, include = nvrtc
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    lib.nvrtcAddNameExpression(program, name.encode())
    options = [o.encode() for o in (*OPTIONS, f"--gpu-architecture=compute_{arch}", f"-I{include}")]
    failed = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode() if failed else None


@pytest.mark.parametrize("path, name, arch", CASES, ids=[f"{n}-sm_{a}" for _, n, a in CASES])
def test_a_kernel_compiles(nvrtc, path, name, arch):
    assert nvrtc_compile(nvrtc, gpu_source(Kernel(path, name)), name, arch) is None


def test_a_kernel_that_is_wrong_does_not_compile(nvrtc):
    kernel = Kernel("__global__ void f(float* x) { *x = nothing; }", "f")
    assert "nothing" in nvrtc_compile(nvrtc, gpu_source(kernel), "f", 90)


def test_no_kernel_is_left_out():
    assert {p.name for p in KERNELS.glob("*.cu")} == set(INSTANCES)
