"""Throwing a running sequence out: its part of the step is undone, its blocks are given back, and it stands in line again."""

from .errors import Livelock


def preempt(scheduler, seq, batch):
    """Take a sequence's blocks and put it back in line: to start over, with its tokens kept, or with its blocks on the host."""
    copied = _undo_step(scheduler, seq, batch)
    swapped_in = [part for part in batch.swap_in if part[0] is seq]
    if swapped_in:  # its blocks are still on the host, and stay there
        batch.swap_in = [part for part in batch.swap_in if part[0] is not seq]
        seq.host_blocks = swapped_in[0][1]
        scheduler.host_done = [block for block in scheduler.host_done if block not in seq.host_blocks]
        scheduler.swapped_blocks -= len(seq.host_blocks)
    elif scheduler.host and seq.fed and not copied and scheduler.preemption == "swap" \
            and seq.num_blocks <= scheduler.host.num_free:
        seq.host_blocks = scheduler.host.allocate(seq.num_blocks)
        batch.swap_out.append((seq, seq.table.blocks.copy(), seq.host_blocks))
        scheduler.swapped_blocks += seq.num_blocks
        seq.start_tokens = seq.num_tokens
    else:
        scheduler.redone_tokens += seq.fed
        scheduler.lost_tokens += seq.generated if seq.restarts else 0
        seq.start_tokens = seq.prompt_tokens if seq.restarts else max(seq.num_tokens, seq.prompt_tokens)
    _free(scheduler, seq, batch)
    scheduler.to_fork -= seq.to_fork
    scheduler.preemptions += 1
    scheduler.last_preemption = scheduler.steps
    seq.active, seq.plain, seq.stalled, seq.preemptions = False, False, 0, seq.preemptions + 1
    batch.preempted.append(seq)
    stand_in_line(scheduler.waiting, seq, scheduler.like_threads)


def _undo_step(scheduler, seq, batch):
    """Take a sequence out of what the batch does; says whether a block of its was to be a copy."""
    if seq in batch.decode:
        batch.decode.remove(seq)
        seq.table.truncate(seq.num_tokens - 1)
    for part, start, end in batch.prefill:
        if part is seq:
            seq.to_prefill += end - start
    batch.prefill = [part for part in batch.prefill if part[0] is not seq]
    scheduler.prefilled = [other for other in scheduler.prefilled if other is not seq]
    scheduler.forking = [other for other in scheduler.forking if other is not seq]
    return any(target in seq.table.blocks for _, target in batch.copies)


def _free(scheduler, seq, batch):
    if batch.copies:
        own = set(seq.table.blocks)
        batch.copies = [copy for copy in batch.copies if copy[1] not in own]
        pins = [source for source, _ in batch.copies if source in own]  # nobody writes there before the copies are made
        scheduler.pool.share(pins)
        scheduler.pins += pins
    seq.table.free()


def stand_in_line(line, seq, at_front=False):
    """Put a preempted sequence back in a line: in order of arrival, or at the very front."""
    place = 0
    if not at_front:
        while place < len(line) and (line[place].number, line[place].sample) < (seq.number, seq.sample):
            place += 1
    line.insert(place, seq)


def deadline(rules, steps, last_finish, begun, all_tokens):
    """The step at which to look again for a livelock. Raises Livelock if nothing was finished while the sequences that are
    begun could have run one after another, or if that is true of all requests, or if there were max_steps."""
    patient = last_finish + sum(seq.total_tokens for seq in begun) + 1
    most = all_tokens + 1 if rules.max_steps is None else rules.max_steps
    if begun and steps >= min(patient, most):
        if steps >= patient:
            what = (f"no sequence was finished in {steps - last_finish:,} steps, in which the {len(begun)} that are begun could "
                    f"have run one after another")
        else:
            longer = "more than all requests take one after another" if rules.max_steps is None else "as many as are allowed"
            what = f"{steps:,} steps, {longer}, and {len(begun)} sequences are still at it"
        raise Livelock(f"{what}: victim {rule_name(rules.victim)}, patience {rules.patience}, {rules.preemption}, "
                       f"admission {rule_name(rules.admission)}")
    return max(steps + 1, min(patient, most))


def deadlock_text(step, running):
    """What is said when all wait for each other."""
    return (f"step {step:,}: each of {running} running sequences waits for a block, none is free, and with patience = None "
            f"nobody gives way")


def rule_name(rule):
    """What an error calls a rule."""
    return getattr(rule, "__name__", repr(rule))
