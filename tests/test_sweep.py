import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from pagefault.progress import progress_bar
from pagefault.serve import serve
from pagefault.sweep import grid_of, read_results, sweep, write_results

GRID = dict(jobs=[48], num_blocks=[300], share=[0.0, 0.1], victim=["newest", "oldest"], patience=[0, 8])


@pytest.fixture(scope="module")
def one_core():
    return sweep(serve, GRID)


def test_a_row_a_point_in_the_order_of_the_grid(one_core):
    points = [(share, victim, patience) for share in (0.0, 0.1) for victim in ("newest", "oldest") for patience in (0, 8)]
    assert list(one_core[["share", "victim", "patience"]].itertuples(index=False, name=None)) == points
    assert grid_of(**GRID)[0] == dict(jobs=48, num_blocks=300, share=0.0, victim="newest", patience=0)
    assert_frame_equal(sweep(serve, grid_of(**GRID)[:3]), one_core[:3], check_dtype=False)


def test_what_does_not_finish_is_a_row_too(one_core):
    assert set(one_core.outcome) == {"finished", "livelock"}
    stuck = one_core[one_core.outcome == "livelock"]
    assert set(stuck.victim) == {"oldest"} and stuck.steps.isna().all() and one_core.steps.notna().any()


@pytest.mark.parametrize("executor", [
    2, partial(ThreadPoolExecutor, 3), partial(ProcessPoolExecutor, 2, get_context("spawn"))],
    ids=["two processes", "threads", "a process pool of one's own"])
def test_every_executor_gives_the_same(one_core, executor):
    executor = executor if isinstance(executor, int) else executor()
    assert_frame_equal(sweep(serve, GRID, executor), one_core)


def test_dasks_executor_gives_the_same(one_core):
    distributed = pytest.importorskip("distributed", reason="Dask isn't installed: pip install distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            assert_frame_equal(sweep(serve, GRID, client.get_executor()), one_core)


def test_an_error_is_not_an_outcome():
    with pytest.raises(KeyError):
        sweep(serve, dict(victim=["nobody"]))
    with pytest.raises(ValueError, match="executor = 0"):
        sweep(serve, GRID, 0)


def test_results_go_to_a_file_and_come_back_with_the_command_that_made_them(one_core, tmp_path):
    write_results(one_core, tmp_path / "a.csv", "python tests/bench_policies.py")
    assert_frame_equal(read_results(tmp_path / "a.csv"), one_core, rtol=1e-11)
    assert set(pd.read_csv(tmp_path / "a.csv", encoding="utf-8").command) == {"python tests/bench_policies.py"}
    assert b"\r" not in (tmp_path / "a.csv").read_bytes()


@pytest.mark.parametrize("terminal, wanted, shown", [(True, None, True), (False, None, False), (False, True, True),
                                                    (True, False, False)])
def test_a_bar_is_shown_in_a_terminal_or_if_asked_for(terminal, wanted, shown, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with progress_bar(3, "runs", wanted) as bar:
        bar.update(3)
    captured = capsys.readouterr()
    assert bool(captured.err) == shown and not captured.out
