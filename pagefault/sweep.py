"""The same experiment at many settings, on as many processors or machines as there are: equal results each way."""

import itertools
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from .errors import Deadlock, Livelock, whole
from .progress import progress_bar


def grid_of(**values):
    """Every combination of some settings, as a list of dicts.

    >>> grid_of(workers=[64, 128], watermark=[0.0])
    [{'workers': 64, 'watermark': 0.0}, {'workers': 128, 'watermark': 0.0}]
    """
    return [dict(zip(values, point)) for point in itertools.product(*values.values())]


def sweep(run, grid, executor=None, progress=None):
    """Call run(**point) for each point of a grid; returns a frame with a row a point, in the order of the grid.

    run: a function that gives a dict of figures, such as serve. grid: dicts, or a dict of lists for every combination.
    executor: None for this process, a number of processes, or any concurrent.futures.Executor, to which run and the points
    are sent (Dask's client.get_executor(), MPI's, Ray's); for other processes run is a function of a module. The column
    `outcome` says finished, livelock or deadlock; the figures of what didn't finish are missing. Any other error is raised.
    progress: a bar, True or False, or None to show it in a terminal.
    """
    grid = grid_of(**grid) if isinstance(grid, dict) else list(grid)
    if not (executor is None or isinstance(executor, Executor)):
        pool = ProcessPoolExecutor(whole("executor", executor, 1), get_context("spawn"))
    else:
        pool = nullcontext(executor)
    with pool as pool, progress_bar(len(grid), "runs", progress) as bar:
        if pool is None:
            found = []
            for point in grid:
                found.append(_outcome(run, point))
                bar.update()
        else:
            futures = [pool.submit(_outcome, run, point) for point in grid]
            for future in futures:
                future.add_done_callback(lambda _: bar.update())
            found = [future.result() for future in futures]
    return pd.DataFrame([point | figures for point, figures in zip(grid, found)])


def _outcome(run, point):
    try:
        return {"outcome": "finished"} | run(**point)
    except (Livelock, Deadlock) as error:
        return {"outcome": type(error).__name__.lower()}


def write_results(frame, path, command):
    """Write a frame as CSV, with the command that made it as its last column; the same bytes on every machine."""
    frame.assign(command=command).to_csv(Path(path), index=False, encoding="utf-8", lineterminator="\n", float_format="%.12g")


def read_results(path):
    """The frame in a file of write_results, without the command."""
    return pd.read_csv(path, encoding="utf-8").drop(columns="command")
