"""A kernel on an NVIDIA GPU: CuPy compiles it with NVRTC and launches it."""

from functools import partial

import numpy as np

from .arguments import pack, shared_memory
from .build import HEADERS
from .errors import KernelError

NO_CUPY = """an array lies on a GPU, and CuPy, which launches kernels there, is not installed:
  CUDA 13:  pip install "pagefault[cuda13]"
  CUDA 12:  pip install "pagefault[cuda12]\""""

OPTIONS = ("-std=c++17",)


def gpu_available():
    """Whether kernels can run on a GPU here: CuPy is installed, and finds a driver and a device."""
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except Exception:  # no CuPy, or an older one, which raises where there is no driver
        return False


def device_shared_limit(cupy):
    return cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]


def gpu_source(kernel):
    """What NVRTC compiles: the kernel, and a variable that holds its signature."""
    return f"""{(HEADERS / "signature.h").read_text(encoding="utf-8")}
{kernel.source}
#line 1 "launch"
extern "C" __device__ auto kernel_signature = pagefault::signature(&{kernel.name});
"""


def import_cupy():
    try:
        import cupy
    except ImportError as e:
        raise KernelError(NO_CUPY) from e
    return cupy


def copy_to_host(value):
    """A GPU's array in the CPU's memory, as far from a multiple of 256 bytes as it was; other values as they are."""
    if not hasattr(value, "__cuda_array_interface__"):
        return value
    cupy = import_cupy()
    array = cupy.asarray(value)
    if not array.flags.c_contiguous:
        return np.lib.stride_tricks.as_strided(array.get(), array.shape, array.strides)  # to be refused, as by a launch
    start = array.data.ptr % 256
    copy = np.empty(start + array.nbytes, np.uint8)[start:].view(array.dtype).reshape(array.shape)
    copy[...] = array.get()
    return copy


class GPUFunction:
    """A kernel compiled for the current GPU."""

    def __init__(self, kernel):
        cupy = import_cupy()
        self.kernel, self.cupy = kernel, cupy
        module = cupy.RawModule(code=gpu_source(kernel), options=OPTIONS, name_expressions=[kernel.name])
        try:
            self.function = module.get_function(kernel.name)
        except cupy.cuda.compiler.CompileException as e:
            raise KernelError(f"{kernel.name} does not compile:\n{e}") from e
        memory = module.get_global("kernel_signature")
        self.signature = cupy.ndarray(4 * 64, cupy.uint8, memory).get().tobytes().rstrip(b"\0").decode()
        self.limit = device_shared_limit(cupy) - self.function.shared_size_bytes

    def launch(self, grid, block, args, shared_mem):
        self.packed(grid, block, args, shared_mem)()

    def packed(self, grid, block, args, shared_mem):
        """The launch as a call without arguments: checked now, and not again."""
        cupy, name = self.cupy, self.kernel.name
        shared_mem = shared_memory(name, shared_mem, self.limit)
        args = [cupy.asarray(a) if hasattr(a, "__cuda_array_interface__") else a for a in args]
        args = pack(args, self.signature, self.kernel.names(len(args)), cupy.ndarray, name)
        homes, current = {a.device.id for a in args if isinstance(a, cupy.ndarray)}, cupy.cuda.Device().id
        if homes != {current}:
            raise TypeError(f"{name}: its arrays lie on the GPUs {sorted(homes)}, and the current one is {current}")
        if shared_mem > self.function.max_dynamic_shared_size_bytes:
            self.function.max_dynamic_shared_size_bytes = shared_mem
        return partial(self.function, grid, block, tuple(args), shared_mem=shared_mem)
