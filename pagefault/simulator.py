"""A clock for the scheduler: what its decisions cost, by step and by request."""

from .blocks import BlockPool
from .costs import ConstantCost
from .jump import JumpingRun
from .prefix import PrefixCache
from .progress import progress_bar
from .result import make_result
from .scheduler import Scheduler


def simulate(requests, num_blocks=4096, block_size=16, cost=None, jump=False, prefix_caching=False, progress=False, **rules):
    """Play requests on a clock, through a Scheduler with these rules (its arguments); returns a Result.

    cost: a ConstantCost (1 ms a step, unless given), a RooflineCost, or anything with their two methods. A step's swaps
    add to its time; with overlap_swap=True they run beside the steps, one after another. jump: go from event to event
    instead of step by step: equal, several times as quick, without a frame of steps, and only for a ConstantCost.
    Raises RequestTooLarge before anything is played if a request could never be finished.

    >>> from pagefault.jobs import published_requests
    >>> simulate(published_requests(32)).summary["steps"]
    1679
    """
    requests = sorted(requests, key=lambda request: request.arrival_ns)
    cost = ConstantCost() if cost is None else cost
    pool = BlockPool(num_blocks, block_size)
    scheduler = Scheduler(pool, prefix_cache=PrefixCache(pool) if prefix_caching else None, **rules)
    for request in requests:
        scheduler.check(request)
    if not jump:
        with progress_bar(len(requests), "requests", progress) as bar:
            return _step_by_step(requests, scheduler, cost, bar)
    if not isinstance(cost, ConstantCost) or cost.prefill_token_ns:
        raise ValueError("a jumping run takes a ConstantCost whose prompts are free: other costs change with every step")
    return _jump(requests, scheduler, cost.step_ns)


def _step_by_step(requests, scheduler, cost, bar):
    clock = link = submitted = fed = decoded = running_steps = peak = 0
    rows, in_transit, silent = [], {}, set()  # silent: admitted, and without a token so far
    admitted, first, finished, to_finish = ([None] * len(requests) for _ in range(4))
    preemptions = [0] * len(requests)
    while submitted < len(requests) or scheduler.unfinished:
        if not scheduler.unfinished:
            clock = max(clock, requests[submitted].arrival_ns)
        while submitted < len(requests) and requests[submitted].arrival_ns <= clock:
            to_finish[submitted] = requests[submitted].samples
            scheduler.submit(requests[submitted])
            submitted += 1
        in_transit = {seq: ready for seq, ready in in_transit.items() if ready > clock}
        if in_transit and len(in_transit) == scheduler.unfinished:
            clock = min(in_transit.values())  # nothing to do until a transfer is done
            continue
        batch = scheduler.step(in_transit)
        start, ns, moved = clock, cost.compute_ns(batch), batch.swapped_blocks
        for seq, blocks, _ in batch.swap_out + batch.swap_in if scheduler.overlap_swap else ():
            link = in_transit[seq] = max(link, clock) + cost.transfer_ns(len(blocks), scheduler.block_size)
        if moved and not scheduler.overlap_swap:
            ns += cost.transfer_ns(moved, scheduler.block_size)
        clock += ns
        for seq in batch.admitted:
            if admitted[seq.number] is None:
                admitted[seq.number] = start
                silent.add(seq.number)
        for seq in batch.decode if silent else ():
            if seq.number in silent:
                first[seq.number] = clock
                silent.remove(seq.number)
        for seq in batch.preempted:
            preemptions[seq.number] += 1
        for seq in batch.finished:
            to_finish[seq.number] -= 1
            if not to_finish[seq.number]:
                finished[seq.number] = clock
                bar.update()
        prefill, decoding = batch.prefill_tokens, len(batch.decode)
        running = len(scheduler.running) + len(batch.finished) + len(batch.preempted)
        fed, decoded = fed + prefill + decoding, decoded + decoding
        running_steps, peak = running_steps + running, max(peak, running)
        rows.append((start, ns, running, len(scheduler.waiting), decoding, len(batch.stalled), prefill, len(batch.admitted),
                     len(batch.preempted), len(batch.finished), moved, scheduler.num_free))
    scheduler.settle()
    counters = {name: getattr(scheduler, name) for name in
                ("steps", "preemptions", "lost_tokens", "redone_tokens", "shared_tokens", "swapped_blocks")}
    counters |= dict(fed_tokens=fed, decoded_tokens=decoded, running_steps=running_steps, peak_running=peak)
    return make_result(rows, [(r.arrival_ns, r.prompt_tokens, r.output_tokens, *times) for r, *times in
                              zip(requests, admitted, first, finished, preemptions)], counters, clock)


def _jump(requests, scheduler, step_ns):
    run = JumpingRun(requests, scheduler).run()
    counters = {name: getattr(run, name) for name in
                ("steps", "preemptions", "lost_tokens", "redone_tokens", "running_steps", "peak_running")}
    counters |= dict(decoded_tokens=run.decoded, shared_tokens=0, swapped_blocks=0,
                     fed_tokens=run.redone_tokens + sum(r.total_tokens - 1 for r in requests))
    rows = [(0, r.prompt_tokens, r.output_tokens, (seq.admitted - 1) * step_ns, seq.first * step_ns, seq.finished * step_ns,
             seq.preemptions) for r, seq in zip(requests, run.sequences)]
    return make_result(None, rows, counters, run.steps * step_ns)
