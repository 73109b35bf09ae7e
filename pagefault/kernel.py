"""One kernel, two machines: CUDA C that runs on a GPU through CuPy, or on a CPU as C++."""

import os
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from .arguments import launch_shape
from .cpu import PROCESSORS, SHARED_LIMIT, CPUFunction
from .gpu import GPUFunction, copy_to_host, device_shared_limit
from .profile import profile
from .races import check
from .translate import KERNELS, read, with_includes


class Kernel:
    """A CUDA C kernel, called as a cupy.RawKernel is; it runs where its arrays are.

    source: CUDA C, or the path of a .cu file. name: the kernel's, with its template arguments if it has any, as
    in "scale<float, 64>". Files that the source includes as "x.cuh" or "x.cu" are looked for beside it, then among
    the module's kernels.
    """

    def __init__(self, source, name):
        if not isinstance(source, (str, Path)) or not isinstance(name, str):
            raise TypeError(f"a Kernel's source is text or a path and its name text, not {type(source)} and {type(name)}")
        is_file = isinstance(source, Path) or (source.endswith(".cu") and "\n" not in source)
        self.file = Path(source) if is_file else Path(re.split(r"\W", name.split("<")[0].split("::")[-1])[0] + ".cu")
        self.name, self.included = name, {}
        self.source = with_includes(read(self.file) if is_file else source, self.file, self.included)

    def __call__(self, grid, block, args, *, shared_mem=0):
        """Launch a grid of thread blocks, with shared_mem bytes of dynamic shared memory each.

        args: arrays, all of NumPy or all on one GPU, and numbers, which are cast to the kernel's parameters.
        Raises TypeError if an argument doesn't fit, KernelError if there is no such launch or a thread went wrong
        (on a GPU the latter shows later, when the program waits for it, and as CuPy's error).
        """
        grid, block = self._shape(grid, block)
        (self._gpu if self._on_gpu(args) else self._cpu).launch(grid, block, args, shared_mem)

    def profile(self, grid, block, args, *, shared_mem=0):
        """Launch the kernel on the CPU, and return a Profile of what its warps ask of memory.

        It takes what a launch takes, and does what a launch does to NumPy arrays; GPU arrays are copied first, and
        don't change. Raises what a launch raises.
        """
        return profile(self._cpu, *self._shape(grid, block), self._on_host(args), shared_mem)

    def check(self, grid, block, args, *, shared_mem=0, strict=False):
        """Launch the kernel on the CPU, as `profile` does, and return its faults: a list of sentences, empty if all is well.

        Found are races within and between thread blocks, reads of shared memory that nobody wrote, and the first
        access outside of the arrays, which ends the launch. strict: of the collectives of a warp only __syncwarp()
        orders memory, which is all that CUDA promises. Atomics order nothing here: a spin lock, or a last thread block
        that adds up what the others wrote, is reported as a race. Raises what a launch raises for other mistakes, and
        KernelError if the launch's memory is too large to remember who touched it.
        """
        return check(self._cpu, *self._shape(grid, block), self._on_host(args), shared_mem, strict)

    def _shape(self, grid, block):
        return [launch_shape(self.name, what, s) for what, s in (("grid", grid), ("block", block))]

    def _on_gpu(self, args):
        names = self.names(len(args))
        here = [n for n, a in zip(names, args) if isinstance(a, np.ndarray)]
        there = [n for n, a in zip(names, args) if hasattr(a, "__cuda_array_interface__")]
        if here and there:
            raise TypeError(f"{self.name}: {here[0]} is in the CPU's memory, and {there[0]} in a GPU's")
        return bool(there)

    def _on_host(self, args):
        return [copy_to_host(a) for a in args] if self._on_gpu(args) else args

    @cached_property
    def _gpu(self):
        return GPUFunction(self)

    @cached_property
    def _cpu(self):
        return CPUFunction(self)

    def names(self, count):
        """The names of the kernel's parameters, for messages, if its source names `count` of them."""
        return self._names if len(self._names) == count else [f"argument {i}" for i in range(count)]

    @cached_property
    def _names(self):
        code = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", self.source, flags=re.S)
        name = re.escape(self.name.split("<")[0].split("::")[-1].strip())
        found = re.search(rf"__global__[^;{{}}]*?\b{name}\s*\(([^)]*)\)\s*{{", code)
        parameters = re.sub(r"=[^,]*|\[[^]]*\]", "", found[1]).split(",") if found else []
        return [words[-1] for words in (re.findall(r"\w+", p) for p in parameters) if words]


_kernels = {}  # (file, name): a Kernel, and when its files were edited last


def ladder_kernel(file, name):
    """One of the module's kernels; it is read again when its file, or one that it includes, has been edited."""
    kernel, edited = _kernels.get((file, name), (None, None))
    if kernel is None or edited != _edited(kernel):
        kernel = Kernel(KERNELS / file, name)
        _kernels[file, name] = kernel, _edited(kernel)
    return kernel


def _edited(kernel):
    return [os.stat(file).st_mtime_ns for file in (kernel.file, *kernel.included)]


@dataclass
class Launch:
    """A kernel with all that a launch takes, checked, ready to be run many times; a call returns out, its result.

    counts: an array that is 0 between launches.
    """

    kernel: Kernel
    grid: tuple
    block: tuple
    args: tuple
    shared_mem: int
    out: object
    counts: object = None

    def __call__(self):
        if all(self.grid):
            try:
                self.kernel(self.grid, self.block, self.args, shared_mem=self.shared_mem)
            except BaseException:  # it was ended in the middle
                if isinstance(self.counts, np.ndarray):
                    self.counts[:] = 0
                raise
        return self.out

    def packed(self):
        """On a GPU, a call that does the launch: checked now, and not again, which saves most of the time that a launch takes."""
        return self.kernel._gpu.packed(*self.kernel._shape(self.grid, self.block), self.args, self.shared_mem)

    def with_args(self, grid=None, **args):
        """The same launch, unchecked, with other arguments for the parameters of these names, and another grid."""
        names = self.kernel.names(len(self.args))
        if unknown := set(args) - set(names):
            raise TypeError(f"{self.kernel.name} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(names)}")
        return replace(self, grid=grid or self.grid, args=tuple(args.get(n, a) for n, a in zip(names, self.args)),
                       counts=args.get("arrived", self.counts))

    def profile(self):
        """What the launch asks of memory: Kernel.profile."""
        return self.kernel.profile(self.grid, self.block, self.args, shared_mem=self.shared_mem)

    def check(self):
        """The launch's faults: Kernel.check."""
        return [] if not all(self.grid) else self.kernel.check(self.grid, self.block, self.args, shared_mem=self.shared_mem)


def shared_limit(xp):
    """How many bytes of shared memory a thread block can have: on the current GPU (xp = cupy), or on the CPU."""
    return SHARED_LIMIT if xp is np else device_shared_limit(xp)


def processors(xp):
    """How many processors, which run thread blocks, the current GPU has (xp = cupy); on the CPU as many as an H200."""
    return PROCESSORS if xp is np else xp.cuda.Device().attributes["MultiProcessorCount"]


def blocks_at_once(xp, shared, most):
    """How many thread blocks with so many bytes of shared memory a processor of the current GPU runs, at most `most`."""
    room = SHARED_LIMIT + 1024 if xp is np else xp.cuda.Device().attributes["MaxSharedMemoryPerMultiprocessor"]
    return max(1, min(most, room // (shared + 2048)))  # (what a thread block takes besides: 1 KiB, and static variables)


def tensor_cores(xp):
    """Whether the current GPU has what kernels/instructions.cuh names; the CPU plays it."""
    return xp is np or int(xp.cuda.Device().compute_capability) >= 80
