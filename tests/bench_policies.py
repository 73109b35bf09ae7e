"""The table of policies, 408 runs, as pagefault/recorded_policies.csv: python tests/bench_policies.py"""

import os
import time

from pagefault.serve import RECORDED_POLICIES, policy_grid, policy_table, serve
from pagefault.sweep import sweep, write_results

KEEP = ["jobs", "seed", "max_steps", "reserved", "victim", "patience", "share", "preemption", "swap_rate", "outcome", "steps",
        "seconds", "preemptions", "mean_decoding", "lost_tokens", "swapped_blocks"]

if __name__ == "__main__":
    start = time.perf_counter()
    frame = sweep(serve, policy_grid(), os.cpu_count())[KEEP]
    write_results(frame, RECORDED_POLICIES, "python tests/bench_policies.py")
    print(policy_table(frame).to_string(float_format="{:.2f}".format))
    print(f"{len(frame)} runs in {time.perf_counter() - start:.0f} s")
