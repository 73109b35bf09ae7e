"""How much longer a profile and a check take than a launch, on the CPU.  python tests/bench_profile.py"""

import numpy as np
from bench_cpu import timed

from pagefault import Kernel
from pagefault.translate import KERNELS

if __name__ == "__main__":
    random, seq_lens = np.random.default_rng(0), np.linspace(32, 2048, 32).astype(np.int32)
    q, k, v = (random.standard_normal(shape, np.float32) for shape in ((32, 1, 64), *[(32, 2048, 1, 64)] * 2))
    kernel = Kernel(KERNELS / "naive_attention.cu", "naive_attention<float>")
    launch = (32, 1), (128,), (q, k, v, seq_lens, np.empty_like(q), 2048, 1, 64, 0.125)
    plain = timed(lambda: kernel(*launch, shared_mem=4 * (128 + 2048)), 11)
    print(f"32 sequences, {seq_lens.sum():,} tokens, one head of 64, float32; medians")
    print(f"launch {plain:.1f} ms")
    for name, call in (("profile", kernel.profile), ("check", kernel.check)):
        ms = timed(lambda call=call: call(*launch, shared_mem=4 * (128 + 2048)), 3)
        print(f"{name} {ms:.0f} ms, {ms / plain:.0f} times as long")
