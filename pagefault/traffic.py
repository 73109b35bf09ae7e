"""Synthetic traffic with the published statistics of real request traces, so that nothing has to be downloaded."""

import numpy as np
import pandas as pd

from .traces import Trace
from .workload import bursty_arrivals, stream

# Statistics of public request traces: lengths in tokens, requests a second, the coefficient of variation of the gaps
# between them, the most in one second. azure-*: Azure/AzurePublicDataset, Patel et al., Splitwise, ISCA 2024; mooncake-conv:
# kvcache-ai/Mooncake, Qin et al., Mooncake, FAST 2025.
PUBLISHED_TRAFFIC = {
    "azure-conv": {
        "prompt mean": 1155, "prompt p50": 1020, "prompt p90": 2734, "prompt p99": 4142, "prompt max": 14050,
        "output mean": 211, "output p50": 129, "output p99": 601, "rate": 5.53, "gap cv": 1.09,
    },
    "azure-code": {
        "prompt mean": 2048, "prompt p50": 1469, "prompt p90": 5188, "prompt p99": 7436, "prompt max": 7437,
        "output mean": 28, "output p50": 13, "output p99": 251, "rate": 2.57, "gap cv": 13.2, "peak": 67,
    },
    "mooncake-conv": {
        "prompt mean": 12035, "prompt p50": 6909, "prompt p90": 27367, "prompt p99": 85400, "prompt max": 126195,
        "output mean": 343, "output p50": 350, "output p99": 1119, "rate": 3.40, "gap cv": 3.03,
    },
}
# Fitted to them: how far the curves of prompts and outputs are bent (to give the means), requests a second within a burst
# (to give the peak).
FITTED = {"azure-conv": (3.02, 1.21, None), "azure-code": (2.09, 12.92, 49), "mooncake-conv": (2.61, 3.96, None)}


def synthetic_trace(kind, num_requests, seed):
    """Traffic with the statistics of PUBLISHED_TRAFFIC[kind], as a Trace without hash_ids.

    A length is a curve's height at a random share of the requests. The curve passes through 1 token, the published
    percentiles and the published maximum (outputs have none: twice their p99). Between two of these it rises from lo to hi as
    lo + (hi - lo) v / (v + bend (1 - v)), v from 0 to 1: plain arithmetic, with the one bend that gives the published mean.
    Arrivals are bursty_arrivals with the published rate and cv; with pauses where a peak is published, which gamma gaps
    miss by far. Prompts, outputs and gaps are drawn apart (prompts and outputs of the real traces correlate by -0.11 to 0.07).

    >>> synthetic_trace("azure-conv", 4, seed=0).prompt_tokens.tolist()
    [9, 1402, 3, 3062]
    """
    if kind not in PUBLISHED_TRAFFIC:
        raise ValueError(f"kind = {kind!r}, there are {', '.join(PUBLISHED_TRAFFIC)}")
    known, (prompt_bend, output_bend, burst_rate) = PUBLISHED_TRAFFIC[kind], FITTED[kind]
    arrival_ns = bursty_arrivals(num_requests, known["rate"], known["gap cv"], seed, burst_rate)
    longest = known["prompt max"]
    prompt = {0: 1, 0.5: known["prompt p50"], 0.9: known["prompt p90"], 0.99: known["prompt p99"], 1: longest}
    output = {0: 1, 0.5: known["output p50"], 0.99: known["output p99"], 1: 2 * known["output p99"]}
    prompt_tokens = _on_curve(stream(seed, 2).random_sample(num_requests), prompt, prompt_bend)
    output_tokens = _on_curve(stream(seed, 3).random_sample(num_requests), output, output_bend)
    return Trace(kind, arrival_ns, prompt_tokens, output_tokens)


def _on_curve(share, curve, bend):
    shares, heights = np.array(list(curve)), np.array(list(curve.values()))
    i = np.searchsorted(shares, share, side="right") - 1
    v = (share - shares[i]) / (shares[i + 1] - shares[i])
    return np.rint(heights[i] + (heights[i + 1] - heights[i]) * (v / (v + bend * (1 - v)))).astype(np.int64)


def trace_statistics(trace):
    """What a Trace looks like: {statistic: number}, with the names and units of PUBLISHED_TRAFFIC."""
    if len(trace.arrival_ns) < 2 or trace.arrival_ns[-1] == 0:
        raise ValueError(f"{trace.name}: two requests at different times are needed, to speak of gaps")
    found = {}
    for what, tokens in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        found[f"{what} mean"] = float(tokens.mean())
        found |= {f"{what} p{p}": float(np.percentile(tokens, p)) for p in (50, 90, 99)}
        found[f"{what} max"] = int(tokens.max())
    gaps = np.diff(trace.arrival_ns) / 1e9
    peak = int(np.unique(trace.arrival_ns // 10**9, return_counts=True)[1].max())
    return found | {"rate": float(1 / gaps.mean()), "gap cv": float(gaps.std() / gaps.mean()), "peak": peak}


def traffic_fit(kind, num_requests=20_000, seed=0):
    """How near synthetic traffic comes to what is published: a frame with a row a statistic, difference in percent."""
    found = trace_statistics(synthetic_trace(kind, num_requests, seed))
    fit = pd.DataFrame([(name, known, found[name]) for name, known in PUBLISHED_TRAFFIC[kind].items()],
                       columns=["statistic", "published", "synthetic"])
    return fit.assign(difference=100 * (fit.synthetic / fit.published - 1))
