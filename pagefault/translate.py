"""A kernel's source as both compilers take it: headers spliced in, and for the CPU its variables declared as in C++."""

import re
from pathlib import Path

from .errors import KernelError

KERNELS = Path(__file__).parent / "kernels"
VARIABLES = re.compile(r'''//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'  # comments and text are left alone
    |\b(?P<extern>extern\s+)?(?:static\s+)?(?P<align>__align__\s*\([^)]*\)\s*)?__shared__\s+
     (?P<shared>(?:/\*.*?\*/|//[^\n]*|[^;{}]|{[^{}]*})*);
    |\b(?:static\s+)?__device__\s+(?P<device>[^;(){}=]+(?:=[^;()]*)?);''', re.S | re.X)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
BRACKETS = re.compile(r"<[^<>]*>|{[^{}]*}|\[[^][]*\]|\([^()]*\)")


def read(path):
    """The text of a source file; raises KernelError if it isn't UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise KernelError(f"{path.name} is not UTF-8 text: {e}") from e


def with_includes(text, file, seen):
    """The source with its own headers (#include "x.cuh") spliced in, each once; seen collects their paths.

    CuPy's cache of compiled kernels is keyed by the text alone: a header found by a path could change unnoticed.
    """
    lines = [f'#line 1 "{file.name}"']
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        included = re.match(r'\s*#\s*include\s*"([^"]+\.cuh)"', line)
        headers = [folder / included[1] for folder in (file.parent, KERNELS)] if included else []
        header = next((h.resolve() for h in headers if h.exists()), None)  # one that is missing is named by the compiler
        if header:
            if header not in seen:
                seen[header] = True
                lines.append(with_includes(read(header), header, seen))
            line = f'#line {number + 1} "{file.name}"'
        lines.append("" if line.strip() == "#pragma once" else line)
    return "\n".join(lines)


def to_cpp(source):
    """The source with its `__shared__` and `__device__` variables declared so that cuda_on_cpu/memory.h knows them."""
    return VARIABLES.sub(_declared, source)


def _declared(match):
    before, what = match.string[: match.start()], COMMENT.sub("", match["shared"] or match["device"] or "")
    if not what or before.rstrip().endswith(">"):  # a comment, text, or a template
        return match[0]
    if match["extern"]:
        return _dynamic(what, before) or match[0]
    names = _names(what)
    if match["device"]:
        return f"{match[0]} static cpu::Device {_known(names)};" if names else match[0]
    text = re.sub(r"^static\s+", "", match[0])  # `__shared__` is static on the CPU
    return f"{text} cpu::Shared {_known(names)};" if names else text


def _known(names):
    return ", ".join(f'{n}_known("{n}", {n})' for n in names)


def _names(declaration):
    """The names that a declaration declares: the last word of each part between commas, without brackets and values."""
    while BRACKETS.search(declaration):
        declaration = BRACKETS.sub("", declaration)
    words = (re.search(r"(\w+)\s*$", part.split("=")[0]) for part in declaration.split(","))
    return [word[1] for word in words if word]


def _dynamic(what, before):
    """`extern __shared__ T name[]` as a pointer to the launch's shared memory; None if it isn't such a declaration."""
    found = re.fullmatch(r"(?:__align__\s*\([^)]*\))?\s*(.+?)\s*\b(\w+)\s*\[\s*\]\s*", what, re.S)
    if not found:
        return None
    code = re.sub(r"\bnamespace\b[\w:\s]*{", "", COMMENT.sub("", before))
    if code.count("{") <= code.count("}"):  # outside of functions: whatever each launch will have
        return f"static {found[1]}*& {found[2]} = ({found[1]}*&)cpu::dynamic_shared;"
    return f"{found[1]}* {found[2]} = cpu::DynamicShared();"
