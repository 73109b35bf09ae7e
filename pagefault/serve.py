"""The published serving experiment with one setting changed or another: plain arguments in, plain figures out."""

from .jobs import published_requests
from .policies import VICTIMS, optimistic, watermark
from .simulator import simulate


def serve(jobs=512, seed=42, workers=128, reserved=None, share=0.0, victim="requester", patience=32, preemption="restart",
          num_blocks=4096, like_threads=True, jump=True, **options):
    """Figures of one run of the published mix: a function for sweep(). The defaults are the published setting.

    reserved: tokens reserved for each, as without paging; share: the watermark; victim: a name in policies.VICTIMS;
    options: simulate's.

    >>> serve(share=0.05)["preemptions"]
    24
    """
    return simulate(published_requests(jobs, seed), num_blocks, jump=jump, workers=workers, reserve=reserved, patience=patience,
                    admission=watermark(share) if share else optimistic, victim=VICTIMS[victim], preemption=preemption,
                    like_threads=like_threads, **options).summary
