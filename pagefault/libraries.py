"""Attention of other libraries on the same inputs, timed as ours is: PyTorch's, where it is installed."""

import time

from .benchmark import BURST_MS, PAUSE_MS, check, row

BACKENDS = {"cudnn_sdpa": "CUDNN_ATTENTION", "flash_sdpa": "FLASH_ATTENTION"}


class Result:
    """A library's call in the shape of a Launch, for benchmark.check."""

    def __init__(self, name, call, out):
        self.call, self.out, self.kernel = call, out, type("Named", (), {"name": name})

    def __call__(self):
        self.call()
        return self.out


def measure_libraries(work, prepared, repeats=9):
    """Rows of the recorded table for what PyTorch has: equal lengths over a contiguous cache; none if it isn't installed.

    prepared: of benchmark.prepare. Returns the rows, and why a backend is missing: [(kernel, reason)].
    """
    try:
        import cupy
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return [], [(kernel, "PyTorch is not installed") for kernel in BACKENDS]
    rows, missing, (data, exact) = [], [], prepared
    tensors = [[torch.from_dlpack(x) for x in d] for d in data]
    tensors = [(q[:, :, None], k.transpose(1, 2), v.transpose(1, 2)) for q, k, v in tensors]
    for kernel, backend in BACKENDS.items():
        out = cupy.empty_like(data[0][0])

        def call(t=tensors[0], backend=backend):
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(*t, enable_gqa=True)

        def checked(call=call, out=out):
            out[:] = cupy.from_dlpack(call()[:, :, 0].contiguous())

        try:
            error = check(work, Result(kernel, checked, out), exact[0], tolerance=2e-3)
            times = _time_torch(torch, [lambda t=t, call=call: call(t) for t in tensors], repeats)
        except Exception as e:  # whatever it raises, or a result that isn't ours: our own times stay
            missing.append((kernel, str(e).split("\n")[0]))
            continue
        rows.append(row(work, kernel, times, error, to_contiguous=float("nan")))
    return rows, missing


def _time_torch(torch, calls, repeats):
    """benchmark.take_turns for PyTorch, whose calls allocate: seconds a call, sorted, of a CUDA graph's replays."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def seconds(replays):
        time.sleep(PAUSE_MS / 1e3)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / replays / len(calls)

    replays = max(2, int(BURST_MS / 1e3 / max(seconds(1) * len(calls), 1e-6)))
    seconds(replays)
    return sorted(seconds(replays) for _ in range(repeats))
