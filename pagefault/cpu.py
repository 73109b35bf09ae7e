"""A kernel on a CPU: loads its library, launches it, and turns what went wrong into an exception."""

import ctypes
import os
import signal
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np

from .arguments import pack, shared_memory
from .build import library_for, source_lines
from .errors import KernelError

SHARED_LIMIT = 227 * 1024  # bytes of shared memory a thread block: as much as compute capability 9.0 has
PROCESSORS = 132  # for which work is divided: those of an H200, so that counts are what they are there
SANITIZED = os.environ.get("PAGEFAULT_SANITIZE", "0") not in ("", "0")
STACKS = 8192  # that libraries keep from launch to launch: each takes 2 of the 65,530 maps that Linux allows a process
kept = {}  # library: how many
CHECKED_BYTES = 16 << 20  # each access is checked in launches whose arrays hold no more


@dataclass(frozen=True)
class Settings:
    """How kernels run on the CPU; see on_cpu."""

    backwards: bool = False
    time_limit: float = 10.0
    checked: bool | None = None
    lines: int = 200

    def __post_init__(self):
        limit = self.time_limit
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit <= 1e6:
            raise ValueError(f"time_limit = {limit!r}, seconds from above 0 to 1,000,000 are possible")
        if not isinstance(self.backwards, bool) or self.checked not in (True, False, None):
            raise ValueError(f"backwards = {self.backwards!r}, checked = {self.checked!r}: True or False (or None for checked)")
        if type(self.lines) is not int or not 0 <= self.lines < 2**32:
            raise ValueError(f"lines = {self.lines!r}, a whole number from 0 on is possible")


settings = ContextVar("settings", default=Settings())  # noqa: B039 (it is frozen)
lock = threading.RLock()  # a signal handler of Python's may launch a kernel too


@contextmanager
def on_cpu(*, backwards=None, time_limit=None, checked=..., lines=None):
    """How kernels run on the CPU inside a `with` block; what isn't given stays as it is.

    backwards: the last thread goes first (a result that changes with it shows a missing barrier).
    time_limit: seconds of processor time after which a launch ends with a KernelError; 10 at first.
    checked: True checks each memory access against the launch's arrays, at a tenth of the speed; False leaves
    that to the operating system, which sees only what is far away; None, as at first, checks launches whose arrays
    hold 16 MiB or less. lines: of what a launch prints that are shown, 200 at first (and no more than 16,000 bytes).
    Raises ValueError for anything else.
    """
    given = dict(backwards=backwards, time_limit=time_limit, lines=lines)
    changes = {name: value for name, value in given.items() if value is not None}
    token = settings.set(replace(settings.get(), **changes, **({} if checked is ... else {"checked": checked})))
    try:
        yield
    finally:
        settings.reset(token)


class Region(ctypes.Structure):  # as in cuda_on_cpu/memory.h
    _fields_ = [("begin", ctypes.c_void_p), ("size", ctypes.c_size_t), ("itemsize", ctypes.c_size_t), ("at", ctypes.c_size_t),
                ("name", ctypes.c_char_p), ("shared", ctypes.c_bool)]


class CPUFunction:
    """A kernel compiled for this CPU."""

    def __init__(self, kernel):
        self.kernel, self.libraries = kernel, {}

    def library(self, mode):
        if mode not in self.libraries:
            k = self.kernel
            if mode == "sanitized" and not hasattr(ctypes.CDLL(None), "__asan_init"):
                raise KernelError("PAGEFAULT_SANITIZE is set, and AddressSanitizer isn't loaded; set LD_PRELOAD to libasan.so")
            path = library_for(k.source, k.name, k.file, mode)
            try:  # PyDLL keeps Python's lock: while a kernel runs, no other thread sees its arrays
                library = ctypes.PyDLL(str(path))
            except OSError:  # a damaged file: once more
                path.unlink(missing_ok=True)  # (another process may have noticed too)
                try:
                    library = ctypes.PyDLL(str(library_for(k.source, k.name, k.file, mode)))
                except OSError as e:
                    raise KernelError(f"{k.name} uses what can't be linked: {e}") from e
            library.launch.restype, library.stopped_at.restype = ctypes.c_char_p, ctypes.c_size_t
            text = ctypes.addressof(ctypes.c_char.in_dll(library, "kernel_signature"))
            library.signature = ctypes.string_at(text).decode()
            self.libraries[mode] = library
        return self.libraries[mode]

    def launch(self, grid, block, args, shared_mem):
        small = sum(a.nbytes for a in args if isinstance(a, np.ndarray)) <= CHECKED_BYTES
        checked = small if settings.get().checked is None else settings.get().checked
        with lock:
            library, _, error = self.run("sanitized" if SANITIZED else "checked" if checked else "plain",
                                         grid, block, args, shared_mem)
            if error:
                raise self.exception(library, error)

    def run(self, mode, grid, block, args, shared_mem, prepare=None):
        """Launch the library of `mode`, whose lock the caller holds; returns it, [(array, name)] and what went wrong.

        prepare: called with the library and the arrays, before anything runs.
        """
        shared_mem = shared_memory(self.kernel.name, shared_mem, SHARED_LIMIT)
        library = self.library(mode)
        names = self.kernel.names(len(args))
        args = pack(args, library.signature, names, np.ndarray, self.kernel.name)
        arrays = [(a, n) for a, n in zip(args, names) if isinstance(a, np.ndarray)]
        if prepare:
            prepare(library, arrays)
        addresses = {id(a): a.ctypes.data for a, _ in arrays}
        regions = (Region * len(arrays))(*((addresses[id(a)], a.nbytes, a.itemsize, at, n.encode(), False)
                                           for (a, n), at in zip(arrays, places([a for a, _ in arrays]))))
        values = [ctypes.c_void_p(addresses[id(a)]) if isinstance(a, np.ndarray) else ctypes.create_string_buffer(a.tobytes())
                  for a in args]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        keep_stacks(library, block[0] * block[1] * block[2])
        error = library.launch((ctypes.c_uint * 6)(*grid, *block), ctypes.c_size_t(shared_mem), pointers, regions,
                               len(arrays), settings.get().backwards, signal.getsignal(signal.SIGINT) != signal.SIG_IGN,
                               ctypes.c_double(settings.get().time_limit), ctypes.c_uint(settings.get().lines))
        return library, arrays, error.decode(errors="replace") if error else ""

    def exception(self, library, error):
        if library.ended_by() == signal.SIGINT:
            if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
                return KeyboardInterrupt()
            signal.raise_signal(signal.SIGINT)  # the program's own handler
            return KernelError(f"{self.kernel.name}: interrupted")
        what, sign, where = error.rpartition("; ")
        if not sign:  # no thread ran
            return KernelError(f"{self.kernel.name}: {error}")
        at = library.stopped_at()
        line = at and (source_lines(library._name, [at], self.files) or [None])[0]
        return KernelError(f"{self.kernel.name}: {what}" + (f", in line {line[1]} of {line[0]}" if line else "") + f"; {where}")

    @property
    def files(self):
        """The names of the files whose lines are the kernel's."""
        return {self.kernel.file.name, *(path.name for path in self.kernel.included)}


def keep_stacks(library, threads):
    """Let other libraries give theirs back if all would keep more than STACKS; the caller holds the lock."""
    if kept.get(library, 0) < threads:
        kept[library] = threads
        for other in [other for other in kept if other is not library]:
            if sum(kept.values()) <= STACKS:
                break
            other.give_stacks_back()
            del kept[other]


def places(arrays):
    """Where the arrays would lie on a GPU, which gives each allocation an address that is a multiple of 256."""
    end, places = 0, []
    for a in arrays:
        whole = a
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        places.append(end + (a.ctypes.data - whole.ctypes.data if whole is not a else 0))
        end = (places[-1] + a.nbytes + 255) // 256 * 256
    return places
