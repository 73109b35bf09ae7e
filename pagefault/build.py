"""From a kernel's CUDA C to a library for this machine's CPU, compiled once and cached."""

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from .errors import KernelError
from .translate import own_words, to_cpp

HEADERS = Path(__file__).parent / "cuda_on_cpu"
RUNTIME = '#define CUDA_CPU_RUNTIME\n#include "cuda_cpu.h"\n'  # what is the same for all kernels
NO_COMPILER = """no C++ compiler was found, and without an NVIDIA GPU kernels are compiled for the CPU.
  Debian, Ubuntu, WSL:  sudo apt install g++
  macOS:                xcode-select --install
  anywhere:             pip install ziglang
Then run this again. All that launches no kernel works without one."""


def llvm(*options):
    return [flag for option in options for flag in ("-mllvm", "-" + option)]


COMMON = ["-std=c++17", "-gdwarf-4", "-w", "-UNDEBUG", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-fno-exceptions",
          "-fno-threadsafe-statics", "-fno-finite-loops", "-fstack-clash-protection",
          "-ffp-contract=off"]  # the same bytes on every processor
MODES = {
    "plain": ["-O2"],
    "checked": ["-O1", "-DCUDA_CPU_HOOKED", "-fsanitize=thread,bounds,alignment"],
    "races": ["-O1", "-DCUDA_CPU_RACES", "-fsanitize=thread,bounds,alignment"],
    "profile": ["-O1", "-DCUDA_CPU_PROFILE", "-fsanitize=thread", "-fno-optimize-sibling-calls", "-fno-unroll-loops",
                "-fno-math-errno"],
    "sanitized": ["-O1", "-DCUDA_CPU_ASAN", "-fsanitize=address,undefined", "-fsanitize-recover=address"],
}
# A profile wants a call at the start of each basic block, and the blocks in the order of the source; and clang++ would
# leave out a read of what is then written.
MORE = {
    ("profile", "g++"): ["-fsanitize-coverage=trace-pc", "--param=tsan-instrument-func-entry-exit=0", "-fno-reorder-blocks",
                         "-fno-tree-ch", "-fno-thread-jumps", "-fno-tree-dominator-opts"],
    ("profile", "clang++"): ["-fsanitize-coverage=trace-pc,bb,no-prune", "-Xclang", "-disable-lifetime-markers", *llvm(
        "disable-block-placement", "disable-branch-fold", "rotation-max-header-size=0", "simplifycfg-hoist-common=0",
        "simplifycfg-sink-common=0", "tsan-instrument-func-entry-exit=0", "tsan-instrument-read-before-write=1")],
    ("races", "clang++"): llvm("tsan-instrument-read-before-write=1"),
}
def cache_folder():
    """Where compiled kernels are kept: $PAGEFAULT_CACHE, or pagefault in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PAGEFAULT_CACHE") or Path(base, "pagefault")).expanduser().absolute()


def library_for(source, name, file, mode):
    """The path of the library that runs kernel `name` of `source` on this CPU; compiles it if need be."""
    text = f"""#include "cuda_cpu.h"
{to_cpp(source)}
#line 1 "launch"
EXPORT auto kernel_signature = pagefault::signature(&{name});
void pagefault_call(void** pagefault_arguments) {{ cpu::call(&{name}, pagefault_arguments); }}
"""
    library = kept_as(name, mode, text, ".so")
    if not library.exists():
        runtime = kept_as("runtime", mode, RUNTIME, ".o")
        if not runtime.exists():
            make(runtime, mode, RUNTIME, name)
        make(library, mode, text, name, runtime)
    return library


def command_for(mode):
    return [*compiler(), *COMMON, *MODES[mode], *MORE.get((mode, compiler_kind()), [])]


def kept_as(name, mode, text, end):
    """The path of what is compiled from a text; its name changes with all that the result depends on."""
    headers = [h.read_text(encoding="utf-8") for h in sorted(HEADERS.glob("*.h"))]
    key = hashlib.sha256(repr((command_for(mode), platform.machine(), headers, text)).encode()).hexdigest()[:16]
    return cache_folder() / f"{re.sub(r'[^A-Za-z0-9]+', '_', name)[:80]}-{mode}-{key}{end}"


def make(path, mode, text, name, runtime=None):
    """Compile a text to an object file, or together with the runtime to a library."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=path.parent)
    except OSError as e:
        raise KernelError(f"compiled kernels can't be kept in {path.parent}: {e}; set PAGEFAULT_CACHE") from e
    env = dict(os.environ, LD_PRELOAD="") if mode == "sanitized" else None  # (the compiler is not to be sanitized)
    with folder:
        cpp, o, so = (Path(folder.name, "kernel" + end) for end in (".cpp", ".o", ".so"))
        cpp.write_text(text, encoding="utf-8")
        steps = [[*command_for(mode), f"-I{HEADERS}", "-c", cpp, "-o", o]]
        if runtime:
            link = [f for f in MODES[mode] if mode == "sanitized" and "sanitize=" in f]  # others need no sanitizer's library
            steps.append([*compiler(), *link, "-shared", o, runtime, "-o", so])
        for step in steps:
            done = subprocess.run(step, env=env, capture_output=True, encoding="utf-8", errors="replace")
            if done.returncode or not Path(step[-1]).exists():
                if runtime in step:
                    runtime.unlink(missing_ok=True)  # if it is damaged, the next one won't be
                raise KernelError(f"{name} does not compile:\n{own_words(done.stderr)}")
        os.replace(steps[-1][-1], path)  # at once, so that another process never sees half of it


@cache
def compiler():
    """The command of a C++ compiler: $CXX, else the first one installed."""
    if os.environ.get("CXX", "").strip():
        command = os.environ["CXX"].split()
        if not shutil.which(command[0]):
            raise KernelError(f"the environment variable CXX names {command[0]}, which is not there")
        return command
    for command in ("c++", "g++", "clang++"):
        if shutil.which(command):
            return [command]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++", "-nostdlib++"]
    raise KernelError(NO_COMPILER)


@cache
def compiler_kind():
    """Which options the compiler understands: those of g++, or of clang++."""
    done = subprocess.run([*compiler(), "--version"], capture_output=True, encoding="utf-8", errors="replace")
    return "clang++" if "clang" in done.stdout else "g++"


def source_lines(library, offsets, files):
    """(file, line) for each of a library's instructions: the innermost of `files`' lines there, else None.

    Returns None if no program that knows is installed.
    """
    tools = [os.environ.get("ADDR2LINE", ""), "addr2line", "llvm-addr2line", "llvm-symbolizer"]
    tool = next(filter(shutil.which, tools), None)
    if not tool:
        return None
    found = []
    for start in range(0, len(offsets), 500):
        command = [tool, "-a", "-i", "-e", library, *map(hex, offsets[start : start + 500])]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        for frames in re.split(r"^0x[0-9a-f]+\n", done.stdout, flags=re.M)[1:]:
            lines = [(f, int(n)) for f, n in re.findall(r"([^/\n]+):(\d+)", frames) if f in files and int(n)]
            found.append(lines[0] if lines else None)
    return found
