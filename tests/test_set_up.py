"""The ways in agree with each other, and the module needs no GPU to be there."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pagefault
from pagefault.benchmark import recorded

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMES = {"cupy-cuda12x": "cupy", "cupy-cuda13x": "cupy"}  # PyPI's: conda-forge's
ONLY_CONDA = {"pip", "cxx-compiler", "python"}
NOT_CONDA = {"ziglang", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nbgrader", "gguf", "tokenizers"}


def requirements():
    """{name: floor} of pyproject.toml."""
    extras = PROJECT["optional-dependencies"]
    every = PROJECT["dependencies"] + [r for extra in extras.values() for r in extra]
    found = {NAMES.get(n, n): floor for n, floor in (re.match(r"([\w-]+)(?:\[ctk])?>=([\d.]+)", r).groups() for r in every)}
    return found | {"python": PROJECT["requires-python"].removeprefix(">=")}


def conda(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    return dict(re.findall(r"^  - ([\w-]+)(?:>=([\d.]+))?$", text, re.M)), text


@pytest.mark.parametrize("file, without", [("environment.yml", set()), (".binder/environment.yml", {"cupy"})])
def test_conda_and_pip_name_the_same_packages_and_floors(file, without):
    environment, text = conda(file)
    wanted = {n: f for n, f in requirements().items() if n not in NOT_CONDA | without}
    assert environment == wanted | {"pip": "", "cxx-compiler": ""}
    assert re.search(r"- -e \.\.?$", text, re.M)


def test_cupy_is_never_asked_for_on_macos():
    assert all("sys_platform != 'darwin'" in r for e in ("cuda12", "cuda13") for r in PROJECT["optional-dependencies"][e])


def test_what_uv_installs_for_the_tests_is_the_extra_that_pip_installs():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    assert groups == {"dev": ["pagefault[test]"]}


def test_text_files_are_opened_as_utf_8():
    for file in [*ROOT.glob("pagefault/**/*.py"), *ROOT.glob("tests/*.py")]:
        for call in re.findall(r"(?:\.read_text|\.write_text|\bopen)\(.*", file.read_text(encoding="utf-8")):
            assert "encoding" in call, f"{file.name}: {call}"


@pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_the_module_works_where_there_is_no_gpu(environment, tmp_path):
    code = "import pagefault as p; print(p.gpu_available() and 'GPU', p.mixed_lengths(1, 42), p.MODELS['opt-13b'].bytes_per_token)"
    env = dict(os.environ, **environment) if environment else {k: v for k, v in os.environ.items() if not k.startswith("CUDA")}
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert run.stderr == "" and run.stdout.endswith("[83] 819200\n")


def test_an_array_on_a_gpu_without_cupy_gives_one_clear_error(monkeypatch):
    from pagefault import Kernel, KernelError

    class Elsewhere:
        __cuda_array_interface__ = {}

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(KernelError, match=r"CuPy.* is not installed.*\n.*pagefault\[cuda13\]"):
        Kernel("__global__ void f(float* x) {}", "f")((1,), (1,), (Elsewhere(),))


def test_the_code_passes_ruff():
    run = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", ROOT], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_the_readmes_times_are_the_recorded_ones():
    text, table = (ROOT / "README.md").read_text(encoding="utf-8"), recorded()
    shuffled = table.query("layout == 'paged' and order == 'shuffled' and block_size == 16")
    dense = table[(table.layout == "contiguous") & table.kernel.isin(["read_ceiling", "naive_attention", "cudnn_sdpa"])]
    dense = dense[dense.work.isin(["W1", "W2", "W2m", "W3", "W4"])]
    fast = shuffled[shuffled.kernel.isin(["split_kv", "tensor_core", "int8_pages"])]
    assert len(dense) == 5 + 4 + 3 and len(fast) == 5 + 4 + 4
    assert all(f"{us:,.2f} µs" in text for us in [*dense.median_us, *fast.median_us])
    reading = dense[dense.kernel == "read_ceiling"].set_index("work").median_us
    for row in fast[fast.kernel != "int8_pages"].itertuples():
        assert f"{row.median_us:,.2f} µs ({100 * reading[row.work] / row.median_us:.1f}%)" in text
    slow = shuffled[(shuffled.work == "W2") & (shuffled.kernel != "cudnn_sdpa")].to_contiguous
    assert len(slow) == 4 and all(f"{ratio:.3f}x" in text for ratio in slow)
    for name in ("device", "driver", "cuda", "cupy", "date", "repeats"):
        assert str(table[name].iloc[0]) in text


def test_the_examples_in_the_docstrings_are_right():
    names = [f"pagefault.{m.name}" for m in pkgutil.iter_modules(pagefault.__path__) if not m.name.startswith("__")]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert sum(r.failed for r in results) == 0 and sum(r.attempted for r in results) >= 15
