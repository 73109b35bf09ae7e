"""Who may start: what could never be finished, the first in line, and the samples of a prompt that is stored."""

from .errors import RequestTooLarge
from .requests import Request, Sequence


def check(scheduler, request):
    """Raise RequestTooLarge for a request that could never be finished, however long it waits."""
    if not isinstance(request, Request):
        raise TypeError(f"a Request is needed, not a {type(request).__name__}")
    if scheduler.reserve and request.total_tokens > scheduler.reserve:
        raise RequestTooLarge(f"a request of {request.total_tokens:,} tokens, and {scheduler.reserve:,} are reserved for each")
    total, size = max(request.total_tokens, scheduler.reserve or 0), scheduler.block_size
    if -(-total // size) > scheduler.num_blocks:
        raise RequestTooLarge(f"{total:,} tokens need {-(-total // size):,} blocks of {size:,}, and the pool has "
                              f"{scheduler.num_blocks:,}")
    if request.samples > scheduler.workers:
        raise RequestTooLarge(f"{request.samples:,} samples, and {scheduler.workers:,} sequences run at once")
    if request.samples > 1 and scheduler.reserve:
        raise ValueError("samples share the blocks of their prompt: without paging, submit a request for each")


def admit(scheduler, batch, in_transit):
    """Start sequences from the head of the line, as long as the admission rule, the workers and the budget allow."""
    left = scheduler.token_budget - sum(seq.to_prefill + 1 for seq in scheduler.running) if scheduler.token_budget else float("inf")
    away = sum(not seq.active for seq in in_transit)  # on their way to the host: begun, and their workers wait for them
    while scheduler.waiting and left > 0:
        seq = next((seq for seq in scheduler.waiting if seq not in in_transit), None) if away else scheduler.waiting[0]
        if seq is None or len(scheduler.running) + scheduler.to_fork + away + 1 + seq.to_fork > scheduler.workers:
            break
        if scheduler.prefix_cache is not None and seq.request.tokens and not seq.host_blocks:
            seq.table = scheduler.prefix_cache.match(seq.request.tokens)
        if scheduler.blocks_to_start(seq) > scheduler.num_free or (scheduler.running and not scheduler.admission(seq, scheduler)):
            seq.table.free()
            break
        scheduler.waiting.remove(seq)
        _start(scheduler, seq, batch)
        left -= seq.to_prefill + 1


def _start(scheduler, seq, batch):
    shared = seq.table.num_tokens
    seq.table.append((scheduler.reserve or seq.start_tokens) - shared)
    seq.table.num_tokens = seq.start_tokens
    scheduler.running.append(seq)
    batch.admitted.append(seq)
    seq.active, scheduler.to_fork = True, scheduler.to_fork + seq.to_fork
    if seq.host_blocks:
        batch.swap_in.append((seq, seq.host_blocks, seq.table.blocks.copy()))
        scheduler.host_done += seq.host_blocks
        scheduler.swapped_blocks += len(seq.host_blocks)
        seq.host_blocks = None
    else:
        seq.shared_tokens, seq.to_prefill = shared, seq.start_tokens - 1 - shared
        scheduler.shared_tokens += shared
        if seq.to_fork:
            seq.table.truncate(seq.start_tokens - 1)  # each sample stores the last token of the prompt itself


def fork(scheduler, seq):
    """The prompt is stored: from now on each sample is a sequence of its own."""
    samples = [Sequence(seq.number, seq.request, scheduler.pool, seq.restarts, i + 1) for i in range(seq.to_fork)]
    for other in samples:
        other.table, other.active, other.shared_tokens = seq.table.fork(), True, seq.num_tokens
    place = scheduler.running.index(seq) + 1
    scheduler.running[place:place] = samples
    scheduler.to_fork -= seq.to_fork
    seq.to_fork = 0
