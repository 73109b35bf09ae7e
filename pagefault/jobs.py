"""Requests to serve: a published experiment's, a trace's, and any of them at other times."""

from dataclasses import replace

import numpy as np

from .errors import whole
from .requests import Request
from .workload import mixed_lengths


def published_requests(num_jobs=512, seed=42):
    """The jobs of a published experiment, all there at the start: a quarter of each length is its prompt, at most 320.

    >>> published_requests(2)[1]
    Request(prompt_tokens=286, output_tokens=859, arrival_ns=0, tokens=None, samples=1)
    """
    lengths = mixed_lengths(num_jobs, seed).tolist()
    return [Request(min(total // 4, 320), total - min(total // 4, 320)) for total in lengths]


def trace_requests(trace, num_requests=None, max_len=None):
    """Requests of a Trace: the first num_requests of those of at most max_len tokens, the first of them at 0.

    Each has a token of prompt and one of output at least. The ids of a prompt's blocks, if the trace has them, become
    token ids that are equal where the ids are.
    """
    lengths = np.maximum(trace.prompt_tokens, 1), np.maximum(trace.output_tokens, 1)
    fits = sum(lengths) <= (np.inf if max_len is None else whole("max_len", max_len, 1))
    chosen = np.flatnonzero(fits)[: None if num_requests is None else whole("num_requests", num_requests)].tolist()
    prompts, outputs, arrivals = (x.tolist() for x in (*lengths, trace.arrival_ns))
    ids = trace.hash_ids or [()] * len(prompts)
    size = max((-(-prompts[i] // len(ids[i])) for i in chosen if ids[i]), default=1)
    requests = []
    for i in chosen:
        tokens = [block * size + j for block in ids[i] for j in range(size)][: prompts[i]]
        tokens = tuple(tokens) if len(tokens) == prompts[i] else None
        requests.append(Request(prompts[i], outputs[i], arrivals[i] - arrivals[chosen[0]], tokens))
    return requests


def with_arrivals(requests, arrival_ns):
    """The same requests at these times, as poisson_arrivals or bursty_arrivals draw them; 0 for all of them at once."""
    times = np.broadcast_to(arrival_ns, len(requests)).tolist()
    return [replace(request, arrival_ns=time) for request, time in zip(requests, times)]


def least_steps(requests, num_blocks, block_size=16):
    """Steps that no scheduler can do without: the blocks that each request holds in each of its steps, over the pool's.

    >>> least_steps([Request(4, 4), Request(1, 2)], num_blocks=2, block_size=4)
    5.0
    """
    held = 0
    for request in requests:
        whole_blocks = [tokens // block_size for tokens in (request.prompt_tokens, request.total_tokens)]
        full = [block_size * n * (n + 1) // 2 + (tokens - n * block_size) * (n + 1)  # of lengths 1 to tokens
                for n, tokens in zip(whole_blocks, (request.prompt_tokens, request.total_tokens))]
        held += full[1] - full[0]
    return held / num_blocks
