"""Token-steps a second of the scheduler and of its jumping run, beside the plain loop: python tests/bench_scheduler.py"""

import statistics
import time

from published import play, published_jobs, run

from pagefault import BlockPool
from pagefault.jobs import published_requests
from pagefault.jump import JumpingRun
from pagefault.policies import newest, requester, watermark
from pagefault.scheduler import Scheduler

SETTINGS = {
    "reserved": (dict(reserve=2048), dict(reserve=2048)),
    "published rule, 5%": (dict(watermark=0.05), dict(admission=watermark(0.05), victim=requester, patience=32, like_threads=True)),
    "published rule, 0%": (dict(), dict(admission=watermark(0), victim=requester, patience=32, like_threads=True)),
    "newest, no wait": (None, dict(admission=watermark(0), victim=newest)),
}


def rate(call, repeats=5):
    """Millions of tokens decoded a second: the median, and the best, of some runs."""
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        tokens = call()
        rates.append(tokens / (time.perf_counter() - start) / 1e6)
    return f"{statistics.median(rates):5.2f} (best {max(rates):5.2f})"


if __name__ == "__main__":
    jobs, requests = published_jobs(512, 42), published_requests()
    print("512 jobs, seed 42; million token-steps a second, median of 5")
    for name, (plain, rules) in SETTINGS.items():
        loop = rate(lambda plain=plain: play(jobs, **plain)[2]) if plain is not None else ""
        stepped = rate(lambda rules=rules: run(jobs, **rules)[2])
        jumped = rate(lambda rules=rules: JumpingRun(requests, Scheduler(BlockPool(4096, 16), **rules)).run().decoded)
        print(f"{name:20} loop {loop:20} scheduler {stepped:20} jumping {jumped}", flush=True)
