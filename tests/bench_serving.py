"""The sweeps of notebook 4, as pagefault/recorded_sweeps/NAME.csv: python tests/bench_serving.py [NAME ...]"""

import os
import sys
import time

from pagefault.experiments import RECORDED, SWEEPS
from pagefault.serve import SEEDS
from pagefault.sweep import grid_of, sweep, write_results

PUBLISHED, NEWEST, THREE = dict(victim="requester", patience=32), dict(victim="newest", patience=0), (0, 1, 2)


def grid(*fixed, **values):
    """Every combination of values, for each of some fixed settings."""
    return [settings | point for settings in fixed for point in grid_of(**values)]


MANY = dict(jobs=2048)
NAIVE = MANY | dict(reserved=2048)
REAL = dict(traffic="long answers", num_requests=450, model="qwen-2.5-7b", gpu="gb200", num_blocks=18_724, workers=128,
            token_budget=8192)
LONG_PROMPTS = dict(traffic="mooncake-conv", num_requests=300, gpu="h200", num_blocks=47_000, rate=2)
POOLS = [dict(traffic="answers", num_requests=300, block_size=size, num_blocks=65_536 // size)
         for size in (8, 16, 32, 64, 128, 256)]
GRIDS = {
    "cliff": grid({"reserved": 2048}, PUBLISHED, NEWEST, jobs=[2048], seed=SEEDS,
                  workers=[8, 16, 32, 48, 64, 72, 80, 84, 88, 92, 96, 112, 128, 192, 256]),
    "run_length": [point for jobs in (128, 512, 2048, 8192, 20_000) for point in
                   grid(dict(jobs=jobs, reserved=2048), seed=SEEDS)
                   + grid(PUBLISHED | dict(jobs=jobs), seed=SEEDS, share=[0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5])],
    "causes": grid(NAIVE, seed=SEEDS, prompt_ns=[0, 5000])
    + grid(MANY | dict(max_steps=200_000), seed=SEEDS, prompt_ns=[0, 5000], victim=["requester", "newest"], patience=[32, 0],
           preemption=["restart", "keep"]),
    "prices": [point for clock in (dict(prompt_ns=0), dict(prompt_ns=1000), dict(prompt_ns=5000), dict(prompt_ns=0, gpu="h200"))
               for point in grid(NAIVE | clock, seed=SEEDS)
               + grid(MANY | clock | PUBLISHED, MANY | clock | NEWEST, MANY | clock | NEWEST | dict(preemption="keep"),
                      seed=SEEDS, share=[0, 0.02, 0.05, 0.1])],
    "contest": grid(NAIVE, seed=SEEDS, prompt_ns=[5000])
    + grid(*(MANY | dict(victim=victim, patience=0, max_steps=30_000) for victim in ("newest", "least-lost", "most-remaining",
                                                                                    "oldest", "requester")),
           MANY | PUBLISHED | dict(max_steps=30_000), seed=SEEDS, prompt_ns=[5000], share=[0, 0.05]),
    "estimating": grid(NAIVE, seed=SEEDS, prompt_ns=[0, 5000])
    + grid(MANY | PUBLISHED, MANY | NEWEST, seed=SEEDS, prompt_ns=[0], share=[0, 0.05, 0.1])
    + grid(MANY | PUBLISHED, MANY | NEWEST, seed=SEEDS, prompt_ns=[0], start=[0.3, 0.5, 0.7, 1], floor=[0.1, 0.3])
    + grid(MANY | NEWEST, seed=SEEDS, prompt_ns=[5000], share=[0, 0.05, 0.1])
    + grid(MANY | NEWEST, seed=SEEDS, prompt_ns=[5000], start=[0.3, 0.5, 0.7, 1], floor=[0.1, 0.3]),
    "machines": grid(MANY | PUBLISHED, MANY | NEWEST, seed=SEEDS, workers=[128], machines=[1, 2, 4, 8])
    + [point | dict(workers=128 * point["machines"]) for point in grid(MANY | NEWEST, seed=SEEDS, machines=[2, 4, 8])],
    "reserve": grid(REAL, seed=THREE, share=[0, 0.02, 0.05, 0.1, 0.15]),
    "load": [point for traffic, num_requests, reserved in (("azure-conv", 2400, (8192,)), ("answers", 1200, (2048, 1600)))
             for point in grid(*(dict(traffic=traffic, num_requests=num_requests) | rules for rules in
                                 (*(dict(reserved=most) for most in reserved), dict(victim="newest", share=0),
                                  dict(victim="newest", share=0.05), PUBLISHED | dict(share=0))),
                               seed=THREE, rate=[1, 2, 3, 4, 5, 6, 7, 8, 10, 12])],
    "chunks": grid(LONG_PROMPTS, seed=THREE, token_budget=[257, 512, 1024, 2048, 4096, 8192, 16_384, 200_000])
    + grid(LONG_PROMPTS | dict(num_requests=900), seed=THREE, token_budget=[257, 2048]),
    "prefixes": grid(dict(traffic="chats", num_requests=400), seed=THREE, system_tokens=[0, 80, 341, 1024, 4096],
                     prefix_caching=[False, True]),
    "swap": grid(*(pool | dict(preemption="keep") for pool in POOLS), seed=THREE)
    + grid(*(pool | dict(preemption="swap") for pool in POOLS), seed=THREE, piece_ns=[0, 1000, 5000])
    + grid(POOLS[1] | dict(preemption="swap"), seed=THREE, bus_rate=[45e9, 25e9, 12.5e9, 6e9, 3e9, 1.2e9]),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or GRIDS:
        start = time.perf_counter()
        frame = sweep(SWEEPS[name][0], GRIDS[name], os.cpu_count())
        settings = [column for column in frame.columns if any(column in point for point in GRIDS[name])]
        write_results(frame[[*settings, "outcome", *SWEEPS[name][1]]], RECORDED / f"{name}.csv",
                      f"python tests/bench_serving.py {name}")
        print(f"{name}: {len(frame)} runs in {time.perf_counter() - start:.0f} s", flush=True)
