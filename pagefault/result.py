"""What a simulation found: a row a step, a row a request, and a summary of them in plain numbers."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

PERCENTILES = (50, 90, 99)
METHOD = "inverted_cdf"  # NumPy's name for the nearest rank: a percentile is always a value that occurred
STEP_COLUMNS = ("start_ns", "ns", "running", "waiting", "decoding", "stalled", "prefill_tokens", "admitted", "preempted",
                "finished", "swapped_blocks", "free_blocks")
REQUEST_COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "admitted_ns", "first_token_ns", "finished_ns",
                   "preemptions")
TIMES = {"wait": "admitted_ns", "ttft": "first_token_ns", "end_to_end": "finished_ns"}  # each since the arrival


@dataclass(frozen=True, eq=False)
class Result:
    """steps: a frame with a row a step, None of a jumping run. requests: a frame with a row a request, in order of arrival,
    whose times are in whole nanoseconds. summary: a dict; times in milliseconds, percentiles by nearest rank."""

    steps: pd.DataFrame | None
    requests: pd.DataFrame
    summary: dict


def make_result(step_rows, request_rows, counters, ns):
    """A Result of rows of STEP_COLUMNS (or None), rows of REQUEST_COLUMNS, counters of the run, and how long it took."""
    requests = pd.DataFrame(request_rows, columns=REQUEST_COLUMNS, dtype=np.int64)
    requests.index.name = "request"
    for name, column in TIMES.items():
        requests[f"{name}_ns"] = requests[column] - requests.arrival_ns
    later = requests.output_tokens - 1  # tokens after the first
    requests["per_token_ns"] = (requests.finished_ns - requests.first_token_ns) // np.maximum(later, 1)
    steps = None if step_rows is None else pd.DataFrame(step_rows, columns=STEP_COLUMNS, dtype=np.int64)
    return Result(steps, requests, _summary(requests, counters, ns))


def _summary(requests, counters, ns):
    n, fed = counters["steps"], counters["fed_tokens"] - counters["redone_tokens"]
    tokens = counters["decoded_tokens"] - counters["lost_tokens"]
    found = {"requests": len(requests), "steps": n, "seconds": ns / 1e9, "output_tokens": tokens,
             "tokens_per_second": tokens * 1e9 / ns if ns else 0.0,
             "mean_decoding": counters["decoded_tokens"] / n if n else 0.0,
             "mean_running": counters["running_steps"] / n if n else 0.0, "peak_running": counters["peak_running"],
             "preemptions": counters["preemptions"], "lost_tokens": counters["lost_tokens"],
             "recompute_tax": counters["redone_tokens"] / fed if fed else 0.0,
             "shared_tokens": counters["shared_tokens"], "swapped_blocks": counters["swapped_blocks"]}
    for name in ("wait", "ttft", "per_token", "end_to_end"):
        times = requests[f"{name}_ns"].to_numpy()
        if name == "per_token":
            times = times[requests.output_tokens > 1]
        found[f"{name}_mean_ms"] = sum(times.tolist()) / len(times) / 1e6 if len(times) else 0.0
        for p in PERCENTILES:
            found[f"{name}_p{p}_ms"] = int(np.percentile(times, p, method=METHOD)) / 1e6 if len(times) else 0.0
    return found
