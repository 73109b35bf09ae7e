"""The experiments behind notebook 4, as functions for sweep(), and their recorded results."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from .costs import GPUS, SERVED, ConstantCost, RooflineCost
from .jobs import published_requests, trace_requests, with_arrivals
from .policies import VICTIMS, decaying, optimistic, watermark
from .requests import Request
from .serve import STEP_NS, serve
from .simulator import simulate
from .sweep import read_results, sweep
from .traffic import synthetic_trace
from .workload import poisson_arrivals

RECORDED = Path(__file__).parent / "recorded_sweeps"  # written by tests/bench_serving.py
# Lengths of prompts and outputs, drawn evenly between bounds; "long answers" as in vLLM's pull request 44594.
ANSWERS = {"long answers": ((800, 1200), (4000, 6000)), "answers": ((200, 400), (800, 1200))}
LONGEST = {"azure-conv": 8192, "azure-code": 8192, "mooncake-conv": 32_768}


def engine_requests(traffic, num_requests, seed, system_tokens=0):
    """Requests for an engine, all there at the start: synthetic_trace's kinds, those of ANSWERS, or "chats", short ones
    behind system_tokens tokens that they have in common."""
    if traffic in LONGEST:
        return with_arrivals(trace_requests(synthetic_trace(traffic, num_requests, seed), max_len=LONGEST[traffic]), 0)
    if traffic not in (*ANSWERS, "chats"):
        raise ValueError(f"traffic = {traffic!r}, there are {', '.join((*LONGEST, *ANSWERS, 'chats'))}")
    random = np.random.RandomState(seed)
    bounds = ANSWERS.get(traffic, ((20, 200), (50, 400)))
    prompts, outputs = (random.randint(lo, hi + 1, num_requests).tolist() for lo, hi in bounds)
    if traffic != "chats":
        return [Request(*each) for each in zip(prompts, outputs)]
    common = tuple(range(system_tokens))
    ids = [common + tuple(range(10**6 * i, 10**6 * i + n)) for i, n in enumerate(prompts, 1)]
    return [Request(len(tokens), n, tokens=tokens) for tokens, n in zip(ids, outputs)]


def serve_engine(traffic="azure-conv", num_requests=600, seed=0, rate=None, model="llama-3-8b", gpu="a100", num_blocks=9536,
                 victim="newest", preemption="keep", share=0.0, reserved=None, bus_rate=None, piece_ns=0, system_tokens=0,
                 workers=256, token_budget=2048, **options):
    """Figures of an engine whose steps take what a GPU's memory and arithmetic allow.

    The defaults are Llama-3-8B on an A100 with 40 GB, 20 GB of them for the cache. rate: requests a second, at random
    times; None for all at once. bus_rate: bytes a second to where blocks are swapped to, instead of the GPU's own. The
    others are engine_requests', RooflineCost's and simulate's. longest_step_ms: the longest wait between two tokens.
    """
    requests = engine_requests(traffic, num_requests, seed, system_tokens)
    if rate is not None:
        requests = with_arrivals(requests, poisson_arrivals(len(requests), rate, seed))
    gpu = GPUS[gpu] if bus_rate is None else replace(GPUS[gpu], bus_rate=bus_rate)
    result = simulate(requests, num_blocks, cost=RooflineCost(SERVED[model], gpu, piece_ns=piece_ns), workers=workers,
                      admission=watermark(share) if share else optimistic, victim=VICTIMS[victim], preemption=preemption,
                      reserve=reserved, token_budget=token_budget,
                      swap_blocks=4 * num_blocks if preemption == "swap" else 0, **options)
    return result.summary | {"longest_step_ms": int(result.steps.ns.max()) / 1e6}


def serve_priced(prompt_ns=0, gpu=None, **setting):
    """serve(), where a token of a prompt, fed again after a preemption too, takes prompt_ns besides the step's 1 ms; or with
    the steps of Llama-3-8B on a gpu of GPUS."""
    cost = RooflineCost(SERVED["llama-3-8b"], GPUS[gpu]) if gpu else ConstantCost(STEP_NS, prompt_ns)
    return serve(**setting, **dict(cost=cost, jump=False) if gpu or prompt_ns else {})


def serve_estimating(start=None, floor=None, **setting):
    """serve_priced() with the admission rule decaying(start, floor), or as it is if there is no start."""
    return serve_priced(**setting, **{} if start is None else {"admission": decaying(start, floor)})


def serve_apart(machines, jobs, seed, victim, patience, num_blocks=4096, workers=128):
    """The published mix dealt out in turn to machines that share the pool and the workers out among themselves.

    steps: of the machine that ends last; mean_steps: of all of them.
    """
    requests, rules = published_requests(jobs, seed), dict(victim=VICTIMS[victim], patience=patience, like_threads=True, jump=True)
    found = [simulate(requests[i::machines], num_blocks // machines, workers=workers // machines, **rules).summary
             for i in range(machines)]
    steps = [f["steps"] for f in found]
    return {"steps": max(steps), "mean_steps": sum(steps) / machines, "preemptions": sum(f["preemptions"] for f in found)}


STEPS = ("steps", "preemptions")
TIMES = ("seconds", "preemptions", "mean_running", "tokens_per_second", "recompute_tax")
SWEEPS = {  # the function, and the figures that are recorded
    "cliff": (serve, STEPS), "run_length": (serve, STEPS), "causes": (serve_priced, ("seconds", *STEPS)),
    "prices": (serve_priced, ("seconds", *STEPS, "recompute_tax")), "contest": (serve_priced, ("seconds", *STEPS)),
    "estimating": (serve_estimating, ("seconds", *STEPS)), "machines": (serve_apart, ("mean_steps", *STEPS)),
    "reserve": (serve_engine, TIMES),
    "load": (serve_engine, (*TIMES, "ttft_p50_ms", "ttft_p99_ms")),
    "chunks": (serve_engine, (*TIMES, "ttft_p50_ms", "ttft_p99_ms", "longest_step_ms")),
    "prefixes": (serve_engine, (*TIMES, "ttft_p50_ms", "shared_tokens")), "swap": (serve_engine, (*TIMES, "swapped_blocks")),
}


def recorded_sweep(name):
    """The recorded frame of a sweep in SWEEPS: its settings, then the outcome, then figures."""
    return read_results(RECORDED / f"{name}.csv")


def over_reserving(frame):
    """The rows in pages of a recorded sweep, with a column `times`: throughput over that of the server that reserves, for the
    same jobs, seed, price of prompts and GPU."""
    keys = [name for name in ("jobs", "seed", "prompt_ns", "gpu") if name in frame]
    frame = frame.fillna({"gpu": "none"})
    figure = "seconds" if "seconds" in frame else "steps"
    naive, paged = frame[frame.reserved.notna()].set_index(keys)[figure], frame[frame.reserved.isna()]
    return paged.assign(times=naive.loc[list(zip(*(paged[name] for name in keys)))].to_numpy() / paged[figure].to_numpy())


def run_again(name, row):
    """Run the setting of a recorded sweep's row; returns the row as it is now, and raises ValueError where it differs.

    >>> row = recorded_sweep("cliff").query("seed == 42 and workers == 80 and reserved > 0").iloc[0]
    >>> int(run_again("cliff", row)["steps"])
    24613
    """
    function, figures = SWEEPS[name]
    names = list(row.index)
    setting = {key: row[key] for key in names[: names.index("outcome")] if row[key] == row[key]}
    for key, value in setting.items():
        if not isinstance(value, (str, bool)):
            setting[key] = int(value) if value == int(value) else float(value)
    now = sweep(function, [setting]).iloc[0]
    for figure in ("outcome", *figures):
        old, new = row[figure], now.get(figure, np.nan)
        if old == old and (abs(new / old - 1) > 1e-11 if isinstance(old, float) and old else new != old):
            raise ValueError(f"{name}, {setting}: {figure} is {new}, and was recorded as {old}")
    return now
