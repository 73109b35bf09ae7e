"""What is wrong with a kernel's accesses to memory: found on the CPU, whichever way the threads happened to run."""

import re

import numpy as np

from .cpu import lock
from .errors import KernelError
from .profile import lines_of, read_report

LIMIT = 2 << 30  # bytes in which a check remembers who touched what
CELL = 36        # of these, for each element of up to four bytes; as in cuda_on_cpu/races.h
FINDING = [(f, "u8") for f in "what shared offset itemsize".split()]
FINDING += [(f, "u8", 2) for f in "pc how block thread".split()] + [("name", "S64")]
VERBS = "reads", "writes", "updates"
OUTSIDE = re.compile(r"(reads|writes|updates) |index -?\d+ in line \d+ is out of bounds")


def check(function, grid, block, args, shared_mem, strict):
    """Launch a CPUFunction's kernel and return its faults as sentences."""
    name = function.kernel.name

    def prepare(library, arrays):
        need = CELL * (sum(a.nbytes // min(a.itemsize, 4) for a, _ in arrays) + shared_mem) + 4 * int(np.prod(grid, dtype=object))
        if need > LIMIT:
            nbytes = sum(a.nbytes for a, _ in arrays)
            raise KernelError(f"{name}: a check of this launch, whose arrays hold {nbytes:,} bytes, would need {need >> 20:,} MiB "
                              f"to remember who touched them, and may take {LIMIT >> 20:,} MiB; check a smaller case")
        library.only_fences(bool(strict))

    with lock:
        library, _, error = function.run("races", grid, block, args, shared_mem, prepare)
        findings = read_report(library, FINDING)
        exception = function.exception(library, error) if error else None
        library.forget()
    findings = findings[findings["pc"][:, 1] > 0]
    if error:  # what a thread that never ran would have written is not known
        findings = findings[findings["what"] == 0]
    problems = describe(function, library, findings, grid, block)
    if error:
        what = str(exception).removeprefix(f"{name}: ")
        if not OUTSIDE.match(what):
            if problems and isinstance(exception, KernelError):
                raise KernelError("\n".join([str(exception), "Until then:", *problems]))
            raise exception
        problems.append(f"access outside of the arrays: {what}")
    return problems


def describe(function, library, findings, grid, block):
    """The findings as sentences, one for each two lines; a value that a race brings too early was not forgotten."""
    lines = np.array(lines_of(function, library, findings["pc"].ravel().tolist()), object).reshape(-1, 2, 2)
    where = [[f"line {line} of {file}" for file, line in two] for two in lines]
    racing = {w for f, two in zip(findings, where) if f["what"] == 0 for w in two}
    seen = {}
    for f, two in zip(findings, where):
        who = [f"{line} {VERBS[how]} (thread {index(t, block)} of thread block {index(b, grid)})"
               for line, how, t, b in zip(two, f["how"], f["thread"], f["block"])]
        name, at = f["name"].decode(), int(f["offset"])
        what = (f"{name}[{at // int(f['itemsize'])}]" if name else f"byte {at} of the dynamic shared memory" if f["shared"]
                else "a __device__ variable")
        if f["what"] == 0:
            why = "no barrier between them" if f["block"][0] == f["block"][1] else "thread blocks run in no order"
            seen.setdefault((0, name, *sorted(two)), f"race on {what}: {who[0]}, {who[1]}; {why}")
        elif two[1] not in racing:
            seen.setdefault((1, name, two[1]), f"nothing was written to {what} in this thread block: {who[1]}")
    return list(seen.values())


def index(i, shape):
    """Number i as threadIdx or blockIdx."""
    i, (x, y, _) = int(i), shape
    return f"({i % x}, {i // x % y}, {i // x // y})"
