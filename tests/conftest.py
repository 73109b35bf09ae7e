import json
import shlex
import sys

import numpy as np
import pytest

from pagefault import gpu_available, on_cpu
from pagefault.__main__ import main

NO_GPU = "needs an NVIDIA GPU and CuPy, and there is none here"
MACHINES = {
    "cpu": dict(checked=False),
    "cpu, last thread first": dict(checked=False, backwards=True),
    "cpu, every access checked": dict(checked=True),
}


def pytest_collection_modifyitems(items):
    if not gpu_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.fixture(params=[*MACHINES, pytest.param("gpu", marks=pytest.mark.gpu)])
def xp(request):
    """NumPy or CuPy, to run a test's kernels in every way there is."""
    if request.param == "gpu":
        import cupy

        yield cupy
    else:
        with on_cpu(**MACHINES[request.param]):
            yield np


@pytest.fixture
def run_command(monkeypatch, capsys):
    """run_command("calc", "--seqs 32") runs python -m pagefault calc and gives what it prints; of --json the object."""
    def run(command, options, *more):
        monkeypatch.setattr(sys, "argv", ["pagefault", command, *shlex.split(options), *more])
        main()
        out = capsys.readouterr().out
        return json.loads(out) if "--json" in options else out
    return run


@pytest.fixture
def cpu_cache(tmp_path, monkeypatch):
    """An empty folder for compiled kernels."""
    monkeypatch.setenv("PAGEFAULT_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"
