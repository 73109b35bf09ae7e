"""The module's own errors, and the check that most arguments need. A call that raises an error has changed nothing."""

import operator


class KernelError(RuntimeError):
    """A kernel does not compile, can't be launched as asked, or went wrong while it ran."""


class RequestTooLarge(ValueError):
    """A sequence needs more than there will ever be, however long it waits."""


class OutOfBlocks(RuntimeError):
    """More blocks are asked for than are free at the moment."""


class DoubleFree(RuntimeError):
    """A block is given back that nobody has."""


class Deadlock(RuntimeError):
    """All sequences wait for blocks that others among them hold, and none will ever give way."""


class Livelock(RuntimeError):
    """Sequences are preempted again and again, and none is ever finished."""


class TraceError(ValueError):
    """A file can't be read as a trace of requests."""


def whole(name, value, least=0, most=None):
    """value as an int. Raises TypeError if it isn't a whole number, ValueError if it isn't from least to most."""
    try:
        if type(value).__name__.startswith("bool"):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} = {value!r}, a whole number is needed") from None
    if number < least or (most is not None and number > most):
        limits = f"at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise ValueError(f"{name} = {number:,}, it is {limits}")
    return number
