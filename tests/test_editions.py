"""From one source of notebooks: the students', the solved (with full points), and an nbgrader assignment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagefault.editions import EDITIONS, edition, exercises

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SETUP = "import numpy as np\n\nimport pagefault as pf\n{}\n"


def cell(kind, source, **metadata):
    code = dict(outputs=[], execution_count=None) if kind == "code" else {}
    return dict(cell_type=kind, id=f"c{hash(source) % 10**6}", metadata=metadata, source=source, **code)


def one_exercise(key="1.2", points=2):
    return [
        cell("code", "model = checks.a_model()\nbytes_per_token = ...\nchats = ...", tags=["exercise"]),
        cell("code", "checks.bytes_and_chats(bytes_per_token, chats)", tags=["check"], pagefault=dict(exercise=key, points=points)),
        cell("markdown", """<details>\n\n```python
model = checks.a_model()
bytes_per_token = model.num_layers * 2 * model.num_kv_heads * model.head_dim * model.dtype_bytes
chats = model.memory_gb * 10**9 // (bytes_per_token * model.tokens)
```\n</details>""", tags=["solution"]),
    ]


def small():
    metadata = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
                "language_info": {"name": "python"}}
    setup = cell("code", SETUP.format("from pagefault.checks import naive_cache as checks"))
    return dict(cells=[cell("markdown", "# Small"), setup, *one_exercise()], metadata=metadata, nbformat=4, nbformat_minor=5)


def source_of(path):
    return json.loads(path.read_text(encoding="utf-8"))


def text(cell):
    return "".join(cell["source"])


def tagged(notebook, tag):
    return [c for c in notebook["cells"] if tag in c["metadata"].get("tags", [])]


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_the_solutions_have_full_points_and_need_no_other_cell(path, seed, monkeypatch):
    monkeypatch.setattr("pagefault.checks.base._class_seed", [])
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # no exercise draws
    solved = edition(source_of(path), "solved", seed)
    assert not tagged(solved, "solution")
    imports = next(text(c) for c in solved["cells"] if c["cell_type"] == "code").splitlines()
    run = {}
    exec("\n".join(line for line in imports if "import" in line and "plots" not in line), run)
    for c in solved["cells"]:
        if c["id"] == "class-seed" or {"exercise", "check"} & set(c["metadata"].get("tags", [])):
            exec(text(c), run)
    assert len(tagged(solved, "check")) == len(exercises(source_of(path)))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_students_get_no_solution_and_no_output(path):
    made = edition(source_of(path), "students")
    assert all(c.get("outputs", []) == [] and c.get("execution_count") is None for c in made["cells"])
    assert not tagged(made, "solution") and len(tagged(made, "exercise")) == len(exercises(source_of(path)))
    assert all("One solution" not in text(c) for c in made["cells"])
    kept = [c for c in source_of(path)["cells"] if "solution" not in c["metadata"].get("tags", [])]
    assert [text(c) for c in made["cells"]] == list(map(text, kept))


def test_the_seed_stands_behind_the_imports_and_changes_what_students_see(capsys, monkeypatch):
    monkeypatch.setattr("pagefault.checks.base._class_seed", [])
    printed = set()
    for seed in (None, 1, 2):
        made = edition(small(), "students", seed)
        assert [c["id"] for c in made["cells"]].count("class-seed") == (seed is not None)
        run = {}
        for c in made["cells"][1:-1]:
            exec(text(c), run)
        printed.add(capsys.readouterr().out)
    assert len(printed) == 3


@pytest.mark.parametrize("kind", EDITIONS)
def test_a_hosted_notebook_installs_the_course_first(kind):
    made = edition(small(), kind, seed=1, install="pagefault")
    code = [c for c in made["cells"] if c["cell_type"] == "code"]
    assert text(code[0]) == "%pip install --quiet pagefault" and "import pagefault" in text(code[1])
    assert code[2]["id"] == "class-seed"
    assert [c["metadata"].get("nbgrader", {}).get("locked") for c in code[:3:2]] == [True if kind == "nbgrader" else None] * 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_an_assignment_has_a_locked_grade_cell_for_each_exercise(path):
    made = edition(source_of(path), "nbgrader", 3)
    ids = [c["metadata"]["nbgrader"]["grade_id"] for c in made["cells"] if "nbgrader" in c["metadata"]]
    assert len(set(ids)) == len(ids) == 2 * len(tagged(made, "check")) + 1 and "class-seed" in ids
    for check in tagged(made, "check"):
        meta = check["metadata"]["nbgrader"]
        assert meta["grade"] and meta["locked"] and not meta["solution"]
        assert meta["points"] == check["metadata"]["pagefault"]["points"]
        assert text(check).startswith("from pagefault.checks import ") and text(check).endswith("display(score)\nscore.points")
    for exercise in tagged(made, "exercise"):
        assert exercise["metadata"]["nbgrader"]["solution"] and not exercise["metadata"]["nbgrader"]["locked"]


def test_cells_that_do_not_belong_together_are_refused():
    lacks, another = "no check or no solution", "another is expected"
    for spoil, problem in ((lambda cells: cells[:4], lacks), (lambda cells: [*cells[:2], *cells[3:]], another),
                           (lambda cells: [*cells[:4], cells[3], cells[4]], another),
                           (lambda cells: cells[:4] + [cell("markdown", "no code", tags=["solution"])], lacks)):
        notebook = small()
        notebook["cells"] = spoil(notebook["cells"])
        with pytest.raises(ValueError, match=problem):
            edition(notebook, "students")
    with pytest.raises(ValueError, match="edition 'teachers', there are students, solved, nbgrader"):
        edition(small(), "teachers")


def write_small(folder):
    folder.mkdir()
    (folder / "1_small.ipynb").write_text(json.dumps(small()), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", EDITIONS)
def test_one_command_writes_an_edition_and_overwrites_nothing(kind, tmp_path, run_command):
    folder = write_small(tmp_path / "my notebooks")
    options = f"{kind} '{tmp_path / 'class'}' --seed 7 --notebooks '{folder}'"
    files = [Path(line) for line in run_command("class", options).splitlines()]
    assert all(file.exists() for file in files) and len(files) == 1 + (kind == "nbgrader")
    import nbformat

    nbformat.validate(nbformat.read(files[0], 4))
    before = files[0].read_bytes()
    other = f"{kind} {tmp_path / 'other'}"
    for wrong in (options, f"{other} --notebooks {tmp_path / 'nowhere'}", f"{other} --seed -1"):
        with pytest.raises(SystemExit):
            run_command("class", wrong)
    assert files[0].read_bytes() == before and not (tmp_path / "other").exists()


def test_nbgrader_gives_the_points_of_the_checks(tmp_path, run_command):
    pytest.importorskip("nbgrader", reason="nbgrader isn't installed (pip install nbgrader)")
    folder, course = write_small(tmp_path / "notebooks"), tmp_path / "course"
    run_command("class", f"nbgrader {course} --notebooks {folder}")

    def nbgrader(*arguments):
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where nbgrader looks for alembic
        run = subprocess.run([sys.executable, "-m", "nbgrader", *arguments], cwd=course, env=dict(os.environ, PATH=path),
                             capture_output=True, encoding="utf-8")
        assert run.returncode == 0, run.stderr[-2000:]

    nbgrader("generate_assignment", "1_small")
    released = json.loads((course / "release" / "1_small" / "1_small.ipynb").read_text(encoding="utf-8"))
    right = text(tagged(edition(small(), "solved"), "exercise")[0])
    answers = {"blank": None, "full": right, "partial": right + "\nchats = 122.5",
               "tampering": "float = lambda score: 2.0\nchecks = float\nbytes_per_token = chats = 5"}
    for student, answer in answers.items():
        file = course / "submitted" / student / "1_small" / "1_small.ipynb"
        file.parent.mkdir(parents=True)
        notebook = json.loads(json.dumps(released))
        if answer is not None:
            tagged(notebook, "exercise")[0]["source"] = answer
        if student == "tampering":
            tagged(notebook, "check")[0]["source"] = "2.0"
        file.write_text(json.dumps(notebook), encoding="utf-8")
    nbgrader("autograde", "1_small")
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        scores = {student: book.find_submission_notebook("1_small", "1_small", student).score for student in answers}
    assert scores == {"blank": 0, "full": 2, "partial": 1, "tampering": 0}
