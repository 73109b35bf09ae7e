"""The notebooks are executed, clean, and really held to their outputs. (nbval runs them: see pyproject.toml.)"""

import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
EXECUTED = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)


EXERCISE = {"exercise-text", "exercise", "check", "solution"}


def tags(cell):
    return set(cell["metadata"].get("tags", []))


def every_cell(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def cells(path, kind="code"):
    return [c for c in every_cell(path) if c["cell_type"] == kind]


def course_cells(path):
    """The cells without those of the exercises; a text that an exercise parts in two is one."""
    kept = []
    for cell in every_cell(path):
        if tags(cell) & EXERCISE:
            continue
        if cell["id"].endswith("-rest") and kept[-1]["cell_type"] == "markdown":
            kept[-1] = kept[-1] | dict(source=[*kept[-1]["source"], "\n", *cell["source"]])
        else:
            kept.append(cell)
    return kept


def core(path):
    every = course_cells(path)
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
    assert all(set(c["metadata"]) <= {"tags", "pagefault"} for c in cells(path))


@EXECUTED
def test_its_outputs_do_not_depend_on_versions(path):
    for cell in cells(path):
        if "check" in tags(cell):  # whose text is the module's own: see the next test
            continue
        shown = [set(o.get("data", {})) for o in cell["outputs"] if o["output_type"] == "execute_result"]
        assert not shown, f"a bare value ends the cell: {''.join(cell['source'])[-80:]}"


def test_the_pictures_of_the_readme_are_the_notebooks():
    shown = [o.get("data", {}).get("image/png", "") for path in NOTEBOOKS for c in cells(path) for o in c["outputs"]]
    drawn = {base64.b64decode("".join(png)) for png in shown}
    pictures = re.findall(r"\]\((notebooks/images/.*?)\)", (NOTEBOOKS[0].parents[1] / "README.md").read_text(encoding="utf-8"))
    assert len(pictures) == 5 and all((NOTEBOOKS[0].parents[1] / name).read_bytes() in drawn for name in pictures)


@EXECUTED
def test_its_exercises_are_blank_and_each_has_its_four_cells(path):
    kinds = [kind for c in every_cell(path) for kind in tags(c) & EXERCISE]
    assert kinds == ["exercise-text", "exercise", "check", "solution"] * (len(kinds) // 4)
    checks = [c for c in cells(path) if "check" in tags(c)]
    assert [c["outputs"][0]["data"]["text/plain"] for c in checks] == [["not attempted"]] * len(checks)
    assert [c["metadata"]["pagefault"]["exercise"] for c in checks] == [f"{path.name[0]}.{i + 1}" for i in range(len(checks))]


@EXECUTED
def test_its_cells_are_short_and_its_outputs_are_read(path):
    code = [c for c in course_cells(path) if c["cell_type"] == "code"]
    lengths = sorted(sum("pagefault.checks" not in line for line in c["source"]) for c in code)
    assert lengths[len(lengths) // 2] <= 6 and lengths[-1] <= 25
    assert core(path) <= 40
    every = course_cells(path)
    pairs = [(a, b) for a, b in zip(every, every[1:]) if a["cell_type"] == b["cell_type"] == "code" and a["outputs"]]
    assert len(pairs) <= len(code) // 8


SMALL = {
    "cells": [
        {"cell_type": "code", "execution_count": 1, "id": "a", "metadata": {}, "outputs": [], "source": ["import pagefault as pf"]},
        {"cell_type": "code", "execution_count": 2, "id": "b", "metadata": {}, "source": ["print(pf.mixed_lengths(2, 42))"],
         "outputs": [{"name": "stdout", "output_type": "stream", "text": ["[  83 1145]\n"]}]},
    ],
    "metadata": json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))["metadata"], "nbformat": 4, "nbformat_minor": 5,
}
ENDLESS = '''import numpy as np
with pf.on_cpu(time_limit=0.2):
    pf.Kernel("__global__ void f(float* x) { for (;;); }", "f")((1,), (1,), (np.zeros(1, "f"),))'''
FAULTS = {  # what is planted in the small notebook: what stands there, what a faulty one has instead
    "a changed number": ("print(pf.mixed_lengths(2, 42))", "print(pf.mixed_lengths(2, 43))"),
    "a bad magic": ("import pagefault as pf", "%no_such_magic\nimport pagefault as pf"),
    "an endless loop": ("print(pf.mixed_lengths(2, 42))", "import time\nwhile True: time.sleep(0.1)"),
    "an endless kernel": ("print(pf.mixed_lengths(2, 42))", ENDLESS),
}
COURSE = "a changed number in the course"


def changed(text, old, new):
    old, new = json.dumps(old)[1:-1], json.dumps(new)[1:-1]
    assert old in text
    return text.replace(old, new)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """{notebook: how each cell ends}: nbval runs the first notebook, small ones and a wrong one in a folder of their own."""
    folder, small, first = tmp_path_factory.mktemp("course") / "my notebooks", json.dumps(SMALL), NOTEBOOKS[0]
    shutil.copytree(first.parent, folder, ignore=shutil.ignore_patterns(".*"))
    wrong = json.loads(changed(first.read_text(encoding="utf-8"), "20,500 tokens in", "20,501 tokens in"))
    last = next(i for i, c in enumerate(wrong["cells"]) if "20,501 tokens in" in str(c.get("outputs")))
    del wrong["cells"][last + 1 :]
    texts = {"small": small, COURSE: json.dumps(wrong), **{name: changed(small, *fault) for name, fault in FAULTS.items()}}
    for name, text in texts.items():
        (folder / f"{name}.ipynb").write_text(text, encoding="utf-8")
    options = "-rA -p no:cacheprovider -p no:hypothesispytest -o addopts= --nbval --nbval-cell-timeout=10".split()
    files = [first.name, *(f"{name}.ipynb" for name in texts)]
    run = subprocess.run([sys.executable, "-m", "pytest", *options, *files], cwd=folder, capture_output=True, encoding="utf-8")
    assert run.returncode == 1, run.stdout[-2000:]
    found = re.findall(r"^(PASSED|FAILED) ([^\n]*)\.ipynb::Cell \d+", run.stdout, re.M)
    return {name: [outcome for outcome, of in found if of == name] for name in (first.stem, *texts)}


def test_a_notebook_as_it_should_be_passes(outcomes):
    assert outcomes["small"] == ["PASSED"] * 2


@pytest.mark.parametrize("fault", [*FAULTS, COURSE])
def test_a_planted_fault_turns_the_tests_red(outcomes, fault):
    assert "FAILED" in outcomes[fault]


def test_the_first_notebook_passes_from_its_own_folder_whatever_that_is_called(outcomes):
    assert outcomes[NOTEBOOKS[0].stem] == ["PASSED"] * len(cells(NOTEBOOKS[0]))
