"""The notebooks are executed, clean, and really held to their outputs. (nbval runs them: see pyproject.toml.)"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
EXECUTED = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)


def cells(path, kind="code"):
    return [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == kind]


def core(path):
    every = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return next((i for i, c in enumerate(every) if "## Deep dive" in "".join(c["source"])), len(every))


@EXECUTED
def test_it_was_executed_once_from_top_to_bottom(path):
    assert [c["execution_count"] for c in cells(path)] == list(range(1, len(cells(path)) + 1))
    outputs = [o for c in cells(path) for o in c["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]


@EXECUTED
def test_it_carries_nothing_of_the_machine_it_was_executed_on(path):
    text = re.sub(r'"image/png": "[^"]*"', '"image/png": ""', path.read_text(encoding="utf-8"))  # in which 0xb9486f may occur
    metadata = json.loads(text)["metadata"]
    assert metadata == {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
                        "language_info": {"name": "python"}}
    assert not re.search(r"/(home|root|tmp|work|Users)/|20\d\d-\d\d-\d\dT|0x[0-9a-f]{6}", text)
    assert all(set(c["metadata"]) <= {"tags"} for c in cells(path))


@EXECUTED
def test_its_outputs_do_not_depend_on_versions(path):
    for cell in cells(path):
        shown = [set(o.get("data", {})) for o in cell["outputs"] if o["output_type"] == "execute_result"]
        assert not shown, f"a bare value ends the cell: {''.join(cell['source'])[-80:]}"


@EXECUTED
def test_its_cells_are_short_and_its_outputs_are_read(path):
    lengths = sorted(len(c["source"]) for c in cells(path))
    assert lengths[len(lengths) // 2] <= 6 and lengths[-1] <= 25
    assert core(path) <= 40
    every = json.loads(path.read_text(encoding="utf-8"))["cells"]
    pairs = [(a, b) for a, b in zip(every, every[1:]) if a["cell_type"] == b["cell_type"] == "code" and a["outputs"]]
    assert len(pairs) <= len(cells(path)) // 8


def nbval(path, folder=None):
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "--nbval", "--nbval-cell-timeout=6"]
    run = subprocess.run([sys.executable, "-m", "pytest", *options, path], cwd=folder, capture_output=True, encoding="utf-8")
    return run.returncode, run.stdout


SMALL = {
    "cells": [
        {"cell_type": "code", "execution_count": 1, "id": "a", "metadata": {}, "outputs": [], "source": ["import pagefault as pf"]},
        {"cell_type": "code", "execution_count": 2, "id": "b", "metadata": {}, "source": ["print(pf.mixed_lengths(2, 42))"],
         "outputs": [{"name": "stdout", "output_type": "stream", "text": ["[  83 1145]\n"]}]},
    ],
    "metadata": json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))["metadata"], "nbformat": 4, "nbformat_minor": 5,
}
ENDLESS = '''import numpy as np
with pf.on_cpu(time_limit=1):
    pf.Kernel("__global__ void f(float* x) { for (;;); }", "f")((1,), (1,), (np.zeros(1, "f"),))'''
PLANTED = {
    "a changed number": ("print(pf.mixed_lengths(2, 42))", "print(pf.mixed_lengths(2, 43))"),
    "a bad magic": ("import pagefault as pf", "%no_such_magic\nimport pagefault as pf"),
    "an endless loop": ("print(pf.mixed_lengths(2, 42))", "while True: pass"),
    "an endless kernel": ("print(pf.mixed_lengths(2, 42))", ENDLESS),
}


def test_a_notebook_as_it_should_be_passes(tmp_path):
    (tmp_path / "small.ipynb").write_text(json.dumps(SMALL), encoding="utf-8")
    assert nbval(tmp_path / "small.ipynb")[0] == 0


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_turns_the_tests_red(tmp_path, fault):
    old, new = PLANTED[fault]
    text = json.dumps(SMALL)
    assert json.dumps(old)[1:-1] in text
    (tmp_path / "small.ipynb").write_text(text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1]), encoding="utf-8")
    code, output = nbval(tmp_path / "small.ipynb")
    assert code == 1 and re.search(r"\d failed", output), output[-2000:]


def test_a_changed_number_in_the_course_turns_the_tests_red(tmp_path):
    text = NOTEBOOKS[0].read_text(encoding="utf-8")
    assert "20,500 tokens in" in text
    (tmp_path / "changed.ipynb").write_text(text.replace("20,500 tokens in", "20,501 tokens in"), encoding="utf-8")
    code, output = nbval(tmp_path / "changed.ipynb")
    assert code == 1 and re.search(r"\d failed", output), output[-2000:]


def test_the_first_notebook_passes_from_its_own_folder_whatever_that_is_called(tmp_path):
    shutil.copytree(NOTEBOOKS[0].parent, tmp_path / "my notebooks", ignore=shutil.ignore_patterns(".*"))
    code, output = nbval(NOTEBOOKS[0].name, tmp_path / "my notebooks")
    assert code == 0, output[-2000:]
