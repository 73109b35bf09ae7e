"""How long the naive kernel takes on the CPU, against NumPy in float32.  python tests/bench_cpu.py"""

import statistics
import time

import numpy as np

from pagefault import mixed_lengths, naive_attention, on_cpu


def timed(call, repeats=21):
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def numpy_attention(q, k, v, seq_lens):
    out = np.empty_like(q)
    for seq, n in enumerate(seq_lens):
        scores = k[seq, :n, 0] @ q[seq, 0] * np.float32(0.125)
        weights = np.exp(scores - scores.max())
        out[seq, 0] = (weights / weights.sum()) @ v[seq, :n, 0]
    return out


if __name__ == "__main__":
    random, seq_lens = np.random.default_rng(0), mixed_lengths(32, 42)
    q, k, v = (random.standard_normal(shape, np.float32) for shape in ((32, 1, 64), *[(32, 2048, 1, 64)] * 2))
    numpy_ms = timed(lambda: numpy_attention(q, k, v, seq_lens))
    kernel_ms = timed(lambda: naive_attention(q, k, v, seq_lens))
    with on_cpu(checked=True):
        checked_ms = timed(lambda: naive_attention(q, k, v, seq_lens), 5)
    print(f"32 mixed sequences, {seq_lens.sum():,} tokens, one head of 64, float32; medians")
    print(f"NumPy {numpy_ms:.2f} ms; naive_attention {kernel_ms:.2f} ms, {kernel_ms / numpy_ms:.1f} times as long; "
          f"with every access checked {checked_ms:.1f} ms")
