"""A launch's shape and arguments, checked before anything runs: what CUDA would take silently is named here."""

import math
import warnings

import numpy as np

from .errors import KernelError

LIMITS = {"grid": ((2**31 - 1, 65535, 65535), "thread blocks"), "block": ((1024, 1024, 64), "threads")}


def launch_shape(kernel, what, shape):
    """grid or block as three whole numbers; raises KernelError with the numbers if CUDA has no such launch."""
    limits, unit = LIMITS[what]
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not 1 <= len(shape) <= 3 or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in shape):
        raise KernelError(f"{kernel}: {what} = {shape}, one to three whole numbers are needed")
    shape = tuple(map(int, shape))
    for n, most in zip(shape, limits):
        if not 1 <= n <= most:
            raise KernelError(f"{kernel}: {what} = {shape}, {n:,} {unit} where 1 to {most:,} are possible")
    threads = math.prod(shape)
    if what == "block" and threads > 1024:
        raise KernelError(f"{kernel}: block = {shape}, {threads:,} threads where a thread block has at most 1,024")
    return (*shape, 1, 1)[:3]


def shared_memory(kernel, shared_mem, limit):
    """shared_mem in bytes; raises KernelError beyond the limit."""
    if not isinstance(shared_mem, (int, np.integer)) or not 0 <= shared_mem <= limit:
        raise KernelError(f"{kernel}: shared_mem = {shared_mem} bytes, where a thread block can have 0 to {limit:,}")
    return int(shared_mem)


def pack(args, signature, names, array, kernel):
    """The arguments, checked against a kernel's signature (cuda_on_cpu/signature.h); numbers are cast to its types.

    names: of the parameters, for messages. array: NumPy's or CuPy's class. Raises TypeError.
    """
    args = list(args)
    wanted = [signature[i : i + 4] for i in range(0, len(signature), 4)]
    if len(args) != len(wanted):
        raise TypeError(f"{kernel} takes {len(wanted)} arguments, not {len(args)}")
    return [(_array if w[0] == "*" else _number)(a, w, array, f"{kernel}: argument {i} ({name})")
            for i, (a, w, name) in enumerate(zip(args, wanted, names))]


def _array(value, wanted, array, who):
    constant, code = wanted[1] == "c", wanted[2:]
    if not isinstance(value, array):
        raise TypeError(f"{who} is a {type(value).__name__}, the kernel wants an array")
    if code[0] == "p" or value.dtype.hasobject:
        raise TypeError(f"{who}: arrays of addresses or of Python objects can't be passed")
    if code[0] != "?" and value.dtype.str[1:] != code:
        raise TypeError(f"{who} holds {value.dtype}, the kernel wants {np.dtype(code)}")
    if not value.dtype.isnative:
        raise TypeError(f"{who} holds {value.dtype.str}, which is not this machine's byte order")
    if not value.flags.c_contiguous:
        raise TypeError(f"{who} is a view that isn't contiguous (strides {value.strides}); copy it first")
    if not constant and not getattr(value.flags, "writeable", True):
        raise TypeError(f"{who} is read-only, and the kernel may write to it")
    return value


def _number(value, wanted, array, who):
    if wanted[2] in "?p":
        raise TypeError(f"{who}: the kernel wants a type of its own, and only numbers can be passed")
    kind = np.dtype(wanted[2:])
    if not isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)) or isinstance(value, np.timedelta64):
        raise TypeError(f"{who} is a {type(value).__name__}, the kernel wants a number ({kind})")
    if kind.kind == "f":
        try:
            with warnings.catch_warnings(action="ignore"):
                cast = kind.type(value)
        except OverflowError:  # a Python int beyond any float
            cast = kind.type("inf")
        if np.isinf(cast) and abs(value) != float("inf"):
            raise TypeError(f"{who} is {value}, which is beyond {kind}")
        return cast
    if isinstance(value, (float, np.floating)) and not float(value).is_integer():
        raise TypeError(f"{who} is {value}, the kernel wants a whole number ({kind})")
    bits = 1 if kind.kind == "b" else 8 * kind.itemsize
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.kind == "i" else (0, (1 << bits) - 1)
    if not least <= value <= most:
        raise TypeError(f"{who} is {value}, which is beyond {kind}")
    return kind.type(int(value))
