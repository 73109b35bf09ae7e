"""A reader's kernel, run on the CPU: in both orders of threads, every access watched."""

import re
from functools import lru_cache

import numpy as np

from ..cpu import on_cpu
from ..errors import KernelError
from ..kernel import Kernel
from ..profile import NO_SYMBOLS
from .base import Wrong
from .running import describe
from .values import close, show, what

SECONDS = 2.0  # of processor time a launch
LINES = 20  # of what it prints that are shown
NO_WORK = "The index goes past the array's end: the last item is n - 1, and some threads may have nothing to do."


def compiled(source, name):
    """A Kernel of a reader's source; raises Wrong if it doesn't compile."""
    if type(source) is not str:
        raise Wrong(expected="CUDA C, as text", got=what(source))
    kernel, error = _compiled(source, name)
    if error:
        lines = [line for line in error.splitlines() if "error" in line or "does not compile" in line]
        raise Wrong(expected="a kernel that compiles", got="\n".join(lines[:4]) or error[:200],
                    hint=f"The kernel's name is {name}." if re.search(rf"\b{name}\W+was not declared", error) else None)
    if not re.search(rf"__global__\b[^;{{}}]*\b{name}\s*\(", source):
        raise Wrong(expected=f"a kernel: __global__ void {name}(...)", got=f"{name} without __global__")
    return kernel


@lru_cache(maxsize=8)
def _compiled(source, name):
    try:
        kernel = Kernel(source, name)
        kernel._cpu.library("races")
        return kernel, ""
    except (KernelError, TypeError, OSError) as error:
        return None, str(error)


def launch(kernel, grid, block, args, given, right, slips=dict, hint=None, outside=NO_WORK, races=True, shared_mem=0,
           rtol=1e-5, racing=None):
    """Launch a kernel with copies of args, first thread first and last thread first; raises the first Wrong.

    given: the case in words. right: {index of an argument: the array that it must be afterwards}; other arrays must be as they
    were. slips: a function that returns {hint: what this mistake makes of the first of them}. hint: for other mistakes, a text or
    a function of that array; racing: for those in which there is a race; outside: for an access outside of the arrays. races:
    also raise a Wrong for races and reads of what nobody wrote, once both results are right.
    """
    faults = []
    for backwards in (False, True):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        order = f"{given}; {'last' if backwards else 'first'} thread first"
        try:
            with on_cpu(backwards=backwards, time_limit=SECONDS, lines=0 if backwards else LINES):
                found = kernel.check(grid, block, copies, shared_mem=shared_mem)
        except KernelError as error:
            if NO_SYMBOLS not in str(error):
                text = str(error).removeprefix(f"{kernel.name}: ").splitlines()[0]
                raise Wrong(order, got=text, hint=fault_hint(text), hangs="endless" in text) from None
            found = ["a race, or an access outside of the arrays (its line needs addr2line or llvm-symbolizer)"]
        except TypeError as error:
            raise Wrong(given, "the parameters as they were", describe(error)) from None
        for fault in found:
            if fault.startswith("access outside"):
                raise Wrong(order, got=fault, hint=outside)
        faults += found
        for i, array in right.items():
            if not close(copies[i], array, rtol):
                hints = [] if backwards else [hint for hint, wrong in slips().items() if close(copies[i], wrong, rtol)]
                if backwards:
                    hints = ["It was right the other way round: a thread uses what another has not written yet, or has changed."]
                if racing and found:
                    hints += [racing] if any("race" in fault for fault in found) else found
                hints += [hint(copies[i]) if callable(hint) else hint]
                raise Wrong(order, *first_difference(kernel.names(len(args))[i], array, copies[i]), hints[0])
        for i, (before, after) in enumerate(zip(args, copies)):
            if isinstance(before, np.ndarray) and i not in right and before.tobytes() != after.tobytes():
                raise Wrong(order, f"{kernel.names(len(args))[i]} as it was", "other numbers in it")
    if faults and races:
        raise Wrong(given, "no race", faults[0], "Right both ways this time, and on a GPU threads run in any order.")


def first_difference(name, expected, got):
    """The first place where two arrays differ, as texts: what is expected there, and what was got."""
    at = tuple(np.argwhere(~np.isclose(got, expected, rtol=1e-5))[0])
    place = name + "".join(f"[{i}]" for i in at)
    return [f"{place} = {show(array[at])}" for array in (expected, got)]


def fault_hint(text):
    """What an error of a launch usually means."""
    if "endless" in text:
        return "A loop doesn't come to an end."
    text = text.partition("; thread block")[0]  # behind it stands which barrier the thread had passed
    if "barrier" in text or "__syncthreads" in text:
        return "All threads of a thread block must come to the same barrier."
    return None


def barrier_of_some(source):
    """Whether a barrier stands in an if, or in a loop, whose condition depends on the thread: not all may come to it."""
    bare = _without_comments(source)
    for head in re.finditer(r"\b(if|for|while)\s*(?=\()", bare):
        end = _closing(bare, head.end(), "()")
        block = re.match(r"\s*\{", bare[end:])
        body = bare[end : _closing(bare, end + block.end() - 1, "{}") if block else bare.find(";", end)]
        if re.search(r"\bt\b|threadIdx", bare[head.end() : end]) and "__syncthreads" in body:
            return True
    return False


def _closing(text, start, brackets):
    """Where the bracket that opens at start is closed: the place behind it, or the end of the text."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == brackets[0]) - (text[i] == brackets[1])
        if depth == 0:
            return i + 1
    return len(text)


def same_source(answer, given):
    """Whether a source is still the given one, but for comments and spaces."""
    return type(answer) is str and _bare(answer) == _bare(given)


def _bare(source):
    return re.sub(r"\s+", "", _without_comments(source))


def _without_comments(source):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.S)
