"""What a kernel asks of memory, line by line: counted on the CPU, exactly."""

import ctypes
import html
import re

import numpy as np
import pandas as pd

from .build import source_lines
from .cpu import lock
from .errors import KernelError

NO_SYMBOLS = """the lines of a kernel are found with addr2line or llvm-symbolizer, and neither is installed:
  Debian, Ubuntu, WSL:  sudo apt install binutils
  macOS:                brew install llvm, and add its bin folder to PATH
  conda:                conda install binutils"""
SITE = [(f, "u8") for f in "pc how shared size requests bytes units best".split()]  # as in cuda_on_cpu/profile.h
ACCESSES = [f"{memory} {how}" for memory in ("global", "shared") for how in ("load", "store", "atomic")]
COUNTS = ["requests", "bytes", "sectors", "wavefronts", "conflicts"]
COLOURS = {"global": "#0072B2", "shared": "#E69F00"}


class Profile:
    """What the warps of a launch asked of memory.

    lines: a pandas frame, a row for each line of the source and kind of access ("global load", "shared atomic").
    total: a frame with a row for each kind of access, which is its index. Both have the columns

      requests             of warps: a load, store or atomic operation of all lanes that take part in it
      bytes                that the lanes asked for
      sectors              of 32 bytes that the requests touched, in global memory
      sectors_per_request
      efficiency           bytes asked for a byte of the sectors; above 1 where lanes ask for the same bytes
      wavefronts           that shared memory needed for the requests
      conflicts            wavefronts that would not be needed if no two lanes met in a bank
      share                of all sectors, or of all wavefronts

    Counted are the loads and stores that an optimizing compiler leaves: a value kept in a register is loaded once.
    There is no cache: a sector counts in each request that touches it. `__constant__` variables don't count.
    """

    def __init__(self, kernel, rows):
        self.name, self.text = kernel.name, source_text(kernel)
        self.lines = summed(rows, ["file", "line", "access"], list(dict.fromkeys(file for file, _ in self.text)))
        self.total = summed(rows, ["access"]).set_index("access")
        at = zip(self.lines.file, self.lines.line)
        self.lines.insert(2, "source", [self.text.get(place, "").strip() for place in at])

    def __str__(self):
        places = [f"{r.file}, line {r.line}: {r.access}" if r.line else f"elsewhere: {r.access}" for r in self.lines.itertuples()]
        places += [f"total: {access}" for access in self.total.index]
        width = max([len(self.name), *map(len, places)])
        heads = [f"{self.name:{width}}  {'requests':>12} {'bytes':>15} {'sectors':>12} {'a request':>9} {'efficiency':>10} "
                 f"{'wavefronts':>12} {'conflicts':>10} {'share':>6}"]
        rows = [*self.lines.itertuples(), *self.total.reset_index().itertuples()]
        return "\n".join(heads + [
            f"{place:{width}}  {r.requests:12,} {r.bytes:15,} "
            + (f"{r.sectors:12,} {r.sectors_per_request:9.2f} {r.efficiency:10.1%} {'':12} {'':10}" if r.access[0] == "g" else
               f"{'':12} {'':9} {'':10} {r.wavefronts:12,} {r.conflicts:10,}") + f" {r.share:6.1%}"
            for place, r in zip(places, rows)])

    __repr__ = __str__

    def _repr_html_(self):
        body = []
        for file in dict.fromkeys(self.lines.file):
            rows = self.lines[self.lines.file == file]
            body.append(f'<tr><th colspan="6" style="text-align:left">{html.escape(file or "elsewhere")}</th></tr>')
            for line in range(rows.line.min(), rows.line.max() + 1):
                first = (f'<td>{line}</td><td style="text-align:left;white-space:pre">'
                         f"<code>{html.escape(self.text.get((file, line), ''))}</code></td>")
                here = [cells(r) for r in rows[rows.line == line].itertuples()] or ["<td></td>" * 4]
                body += [f"<tr>{'<td></td>' * 2 if i else first}{rest}</tr>" for i, rest in enumerate(here)]
        names = "line", html.escape(self.name), "access", "requests", "sectors a request", "share"
        heads = "".join(f"<th>{name}</th>" for name in names)
        total = "".join(f'<tr><td></td><td style="text-align:left">total</td>{cells(r)}</tr>'
                        for r in self.total.reset_index().itertuples())
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}{total}</tbody></table>"


def cells(r):
    """The last four cells of a line's row: for shared memory wavefronts are counted, not sectors."""
    memory = r.access.split()[0]
    each = f"{r.sectors_per_request:.2f}" if memory == "global" else f"{r.wavefronts / r.requests:.2f} wavefronts"
    bar = (f'<span style="display:inline-block;height:0.8em;width:{5 * r.share:.2f}em;'
           f'background:{COLOURS[memory]}"></span> {r.share:.1%}')
    return (f'<td style="white-space:nowrap">{r.access}</td><td>{r.requests:,}</td><td style="white-space:nowrap">{each}</td>'
            f'<td style="text-align:left;white-space:nowrap">{bar}</td>')


def summed(rows, by, files=()):
    """The counts of rows that agree in the columns `by`, and what follows from them; files: their order."""
    table = rows.groupby(by, as_index=False)[COUNTS].sum()
    order = {name: i for i, name in enumerate([*files, *ACCESSES])}
    table = table.sort_values(by, key=lambda c: c.map(order) if c.name != "line" else c, ignore_index=True)
    is_global = table.access.str.startswith("global")
    table.insert(len(by) + 3, "sectors_per_request", (table.sectors / table.requests).where(is_global))
    table.insert(len(by) + 4, "efficiency", (table.bytes / (32 * table.sectors)).where(is_global))
    units = table.sectors.where(is_global, table.wavefronts)
    table["share"] = units / units.groupby(is_global).transform("sum")
    return table


def source_text(kernel):
    """{(file, line): text} of a kernel and its headers."""
    text, file, line = {}, "", 0
    for row in kernel.source.splitlines():
        marker = re.fullmatch(r'#line (\d+) "(.*)"', row)
        if marker:
            file, line = marker[2], int(marker[1]) - 1
        else:
            text[file, line] = row
        line += 1
    return text


def read_report(library, fields):
    """The rows of a library's report; fields: the first ones of each."""
    shape = (ctypes.c_size_t * 2).in_dll(library, "report_shape")
    library.report.restype = ctypes.c_void_p
    dtype = np.dtype(fields)
    raw = np.frombuffer(ctypes.string_at(library.report(), shape[0] * shape[1]), np.uint8).reshape(shape[0], shape[1])
    return np.ascontiguousarray(raw[:, : dtype.itemsize]).view(dtype)[:, 0]


def lines_of(function, library, pcs):
    """(file, line) for each place in a library's code where a function was called; ("", 0) where it isn't known."""
    if not pcs:
        return []
    library.image.restype = ctypes.c_size_t
    start = library.image()
    lines = source_lines(library._name, [pc - 1 - start for pc in pcs], function.files)
    if lines is None:
        raise KernelError(NO_SYMBOLS)
    return [line or ("", 0) for line in lines]


def profile(function, grid, block, args, shared_mem):
    """Launch a CPUFunction's kernel and count what it asks of memory; returns a Profile."""
    with lock:
        library, _, error = function.run("profile", grid, block, args, shared_mem)
        if error:
            raise function.exception(library, error)
        sites = read_report(library, SITE)
    sites = sites[sites["requests"] > 0]
    rows = pd.DataFrame({f: sites[f].astype(np.int64) for f in ("requests", "bytes")})
    rows["sectors"] = np.where(sites["shared"], 0, sites["units"]).astype(np.int64)
    rows["wavefronts"] = np.where(sites["shared"], sites["units"], 0).astype(np.int64)
    rows["conflicts"] = np.where(sites["shared"], sites["units"] - sites["best"], 0).astype(np.int64)
    rows["access"] = np.array(ACCESSES, object)[(3 * sites["shared"] + sites["how"]).astype(int)]
    places = lines_of(function, library, sites["pc"].tolist())
    rows["file"] = np.array([file for file, _ in places], object)
    rows["line"] = np.array([line for _, line in places], int)
    return Profile(function.kernel, rows)
