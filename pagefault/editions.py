"""Notebooks for a class: from one source the students', the solved, and an nbgrader assignment."""

import copy
import json
import re
from pathlib import Path

EDITIONS = ("students", "solved", "nbgrader")
SOLUTION = re.compile(r"```python\n(.*?)\n?```", re.S)
IMPORT = re.compile(r"^from pagefault\.checks import \w+ as checks$", re.M)
CONFIG = """c = get_config()
c.CourseDirectory.course_id = "pagefault"
c.ClearSolutions.enabled = False  # the exercise cells are the students' already; the solved edition has the solutions
c.Execute.timeout = 120  # seconds a cell; a check ends by itself
"""


def edition(notebook, kind, seed=None, install=None):
    """A notebook's edition for a class, as a new dict in the notebook format, without outputs.

    notebook: the course's, whose cells are tagged exercise, check and solution, one after another. kind: "students" is
    without solutions; "solved" has them in the exercises, and each check must give all points; "nbgrader" has grade cells
    that are locked and worth the points of their exercise. seed: the class seed, None for the course's own numbers.
    install: what a first cell gives to pip, for notebooks that are hosted where the course isn't installed.
    Raises ValueError if cells don't belong together.
    """
    if kind not in EDITIONS:
        raise ValueError(f"edition {kind!r}, there are {', '.join(EDITIONS)}")
    notebook = copy.deepcopy(notebook)
    imported = next(iter(IMPORT.findall("\n".join(map(_text, notebook["cells"])))), "")
    for exercise, check, solution in exercises(notebook):
        name, points = check["metadata"]["pagefault"]["exercise"], check["metadata"]["pagefault"]["points"]
        call = _text(check).strip()
        if kind == "solved":
            exercise["source"] = SOLUTION.search(_text(solution))[1]
            check["source"] = f"score = {call}\nassert score == {points}, score\nscore"
        if kind == "nbgrader":  # which takes the cell's value for the grade, and for full marks what isn't a number
            check["source"] = f"{imported}\n\nscore = {call}\ndisplay(score)\nscore.points"
            grade_id = f"exercise-{name.replace('.', '-')}"
            exercise["metadata"]["nbgrader"] = _nbgrader(grade_id, solution=True)
            check["metadata"]["nbgrader"] = _nbgrader(f"{grade_id}-check", grade=True, locked=True, points=points)
    cells = [cell for cell in notebook["cells"] if "solution" not in _tags(cell)]
    first = next(i for i, cell in enumerate(cells) if cell["cell_type"] == "code")
    if seed is not None:
        source = f"from pagefault.checks.base import use_class_seed\n\nuse_class_seed({seed})  # your class has numbers of its own"
        cells.insert(first + 1, _locked("class-seed", source, kind))
    if install:
        cells.insert(first, _locked("install", f"%pip install --quiet {install}", kind))
    for cell in cells:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return notebook | {"cells": cells}


def exercises(notebook):
    """[exercise, check and solution cell] of each exercise of a notebook; raises ValueError if one lacks a cell."""
    found = []
    for cell in notebook["cells"]:
        kind = _tags(cell) & {"exercise", "check", "solution"}
        if "exercise" in kind:
            found.append([cell])
        elif kind:
            if not found or kind != {("exercise", "check", "solution")[len(found[-1]) % 3]}:
                raise ValueError(f"a {kind.pop()} cell stands where another is expected: {_text(cell)[:60]!r}")
            found[-1].append(cell)
    for cells in found:
        if len(cells) < 3 or not SOLUTION.search(_text(cells[2])):
            raise ValueError(f"an exercise has no check or no solution: {_text(cells[0])[:60]!r}")
    return found


def write_editions(folder, kind, destination, **options):
    """Write an edition() of all notebooks in a folder; returns the files. Nothing is overwritten: raises FileExistsError."""
    sources = sorted(Path(folder).glob("*.ipynb"))
    if not sources:
        raise FileNotFoundError(f"there are no notebooks in {folder}")
    texts = {}
    for source in sources:
        made = edition(json.loads(source.read_text(encoding="utf-8")), kind, **options)
        place = Path("source", source.stem, source.name) if kind == "nbgrader" else Path(source.name)
        texts[Path(destination, place)] = json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if kind == "nbgrader":
        texts[Path(destination, "nbgrader_config.py")] = CONFIG
    if there := [str(file) for file in texts if file.exists()]:
        raise FileExistsError(f"{there[0]} is there already; choose another folder")
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return list(texts)


def _locked(name, source, kind):
    """A cell that a class isn't meant to change."""
    metadata = {"nbgrader": _nbgrader(name, locked=True)} if kind == "nbgrader" else {}
    return dict(cell_type="code", id=name, metadata=metadata, source=source, outputs=[], execution_count=None)


def _nbgrader(grade_id, grade=False, solution=False, locked=False, **more):
    return dict(schema_version=3, grade_id=grade_id, grade=grade, solution=solution, locked=locked, task=False, **more)


def _tags(cell):
    return set(cell["metadata"].get("tags", []))


def _text(cell):
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
