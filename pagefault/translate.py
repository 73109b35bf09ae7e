"""A kernel's source as both compilers take it: headers spliced in, and for the CPU its variables declared as in C++."""

import re
from pathlib import Path

from .errors import KernelError

KERNELS = Path(__file__).parent / "kernels"
VARIABLES = re.compile(r'''//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'  # comments, text, directives stay as they are
    |^[ \t]*\#(?:\\\n|[^\n])*
    |\bextern\s+__device__
    |\b(?P<extern>extern\s+(?P<type>(?:\w+\s+)*?))?(?:static\s+)?(?:__align__\s*\([^)]*\)\s*)?__shared__\s+
     (?P<shared>(?:/\*.*?\*/|//[^\n]*|[^;{}]|{[^{}]*})*);
    |\b(?:static\s+)?__device__\s+(?P<device>(?:\[[^];]*\]|[^][;(){}=])+(?:=\s*[^][;\s][^;]*|{[^;{}]*})?);''', re.S | re.X | re.M)
ASIDE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
BRACKETS = re.compile(r"<[^<>]*>|{[^{}]*}|\[[^][]*\]|\([^()]*\)")


def read(path):
    """The text of a source file; raises KernelError if it isn't UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise KernelError(f"{path.name} is not UTF-8 text: {e}") from e


def with_includes(text, file, seen):
    """The source with its own headers (#include "x.cuh", or another kernel's "x.cu") spliced in, each once; seen collects them.

    CuPy's cache of compiled kernels is keyed by the text alone: a header found by a path could change unnoticed.
    """
    lines = [f'#line 1 "{file.name}"']
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        included = re.match(r'\s*#\s*include\s*"([^"]+\.cuh?)"', line)
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


def own_words(message):
    """What a compiler says of the source itself, and not of this module's headers, which are put around it.

    A brace that is never closed shows behind the source's end only; a note says where it was opened.
    """
    parts = re.split(r"^(?=In file included from |[^\s:][^:\n]*:(?: In |\d+:\d+: ))", message, flags=re.M)
    own = "".join(part for part in parts if re.match(r"(?!launch:)[^/:]+:\d+:\d+: ", part))
    opened = re.search(r"^([^/:\n]+:\d+:\d+): note: to match this .\{.*(?:\n .*)*", message, re.M)
    if "error: " in own:
        return own.strip()
    return opened[0].replace("note: to match this", "error: nothing closes this") if opened else message.strip()


def _declared(match):
    what = ASIDE.sub("", match["shared"] or match["device"] or "")
    if not what or "(*" in what or re.search(r"template\s*<[^;{}]*>\s*$", ASIDE.sub("", match.string[: match.start()])):
        return match[0]
    if match["extern"]:
        return _dynamic((match["type"] or "") + what) or match[0]
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


def _dynamic(what):
    """`extern __shared__ T name[]` as a name for whatever shared memory a launch has; None if it isn't such a declaration."""
    found = re.fullmatch(r"\s*(?:__align__\s*\([^)]*\))?\s*(.+?)\s*\b(\w+)\s*\[\s*\]\s*((?:\[[^]]*\])*)\s*", what, re.S)
    if found:
        pointer = f"({found[1]} (*&){found[3]})" if found[3] else f"({found[1]}*&)"
        name = f"{found[1]} (*&{found[2]}){found[3]}" if found[3] else f"{found[1]}*& {found[2]}"
        return f"static {name} = {pointer}cpu::dynamic_shared;"
