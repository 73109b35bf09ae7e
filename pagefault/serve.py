"""The published serving experiment with one setting changed or another: plain arguments in, plain figures out."""

from pathlib import Path

from .costs import ConstantCost
from .jobs import published_requests
from .policies import VICTIMS, optimistic, watermark
from .simulator import simulate
from .sweep import grid_of, read_results

SEEDS = (42, 7, 1, 2, 3, 4, 5, 6)
RECORDED_POLICIES = Path(__file__).parent / "recorded_policies.csv"  # written by tests/bench_policies.py
STEP_NS = 1_000_000


def serve(jobs=512, seed=42, workers=128, reserved=None, share=0.0, victim="requester", patience=32, preemption="restart",
          swap_rate=None, num_blocks=4096, like_threads=True, **options):
    """Figures of one run of the published mix, in steps of 1 ms: a function for sweep(). The defaults are the published
    setting.

    reserved: tokens reserved for each, as without paging; share: the watermark; victim: a name in policies.VICTIMS, or a
    rule; swap_rate: blocks that move to or from the host in the time of a step, beside the steps; options: simulate's.

    >>> serve(share=0.05)["preemptions"]
    24
    """
    if preemption == "swap":
        options = dict(swap_blocks=4 * num_blocks, overlap_swap=True, cost=ConstantCost(STEP_NS, 0, STEP_NS // swap_rate)) | options
    options = {"jump": preemption != "swap", "admission": watermark(share) if share else optimistic} | options
    return simulate(published_requests(jobs, seed), num_blocks, workers=workers, reserve=reserved, patience=patience,
                    victim=VICTIMS[victim] if isinstance(victim, str) else victim, preemption=preemption,
                    like_threads=like_threads, **options).summary


def policy_grid(jobs=2048, seeds=SEEDS):
    """Points for sweep(serve, ...): victims, patience and swap at five watermarks, and the server that reserves."""
    common = dict(jobs=[jobs], seed=list(seeds), max_steps=[200_000])
    rules = [("requester", 32), ("requester", 0), ("newest", 32), ("newest", 0), ("least-lost", 0), ("most-remaining", 0),
             ("oldest", 0)]
    shares = dict(share=[0.0, 0.02, 0.05, 0.1, 0.3])
    grid = grid_of(**common, reserved=[2048])
    for victim, patience in rules:
        grid += grid_of(**common, victim=[victim], patience=[patience], **shares)
    return grid + grid_of(**common, victim=["requester"], patience=[0], preemption=["swap"], swap_rate=[1, 4, 16], **shares)


def policy_table(frame):
    """Throughput over the reserving server's: a row a policy, a column a watermark, the mean of the seeds; NaN where a seed
    ends in a livelock.

    frame: of sweep(serve, policy_grid()), or the recorded one, which is read_results(RECORDED_POLICIES).
    """
    naive = frame[frame.reserved.notna()].set_index("seed").seconds
    paged = frame[frame.reserved.isna()].copy()
    paged["times"] = paged.seed.map(naive) / paged.seconds
    keys = ["victim", "patience", "swap_rate"]
    paged[keys[1:]] = paged[keys[1:]].fillna(0).astype(int)  # 0 blocks a step: no swap
    return paged.groupby([*keys, "share"], sort=False).times.agg(lambda times: times.mean(skipna=False)).unstack("share")


def recorded_policies():
    """The recorded results of policy_grid()."""
    return read_results(RECORDED_POLICIES)
