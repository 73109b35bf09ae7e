"""Checks of notebook 4's exercises."""

from functools import cache
from inspect import signature
from types import SimpleNamespace

import numpy as np

from ..errors import RequestTooLarge
from ..requests import Request
from .base import Wrong, class_seed, compare, draws, exercise, same
from .contest import Lab, setting, victim
from .running import Raises, call
from .values import close, is_any, number, show, truth, whole_numbers

__all__ = ["Lab", "a_swap", "a_trace", "may_start", "play", "setting", "swap_rate", "trace", "victim"]
ROWS = 6  # steps that exercise 4.1 asks for
def play(requests, steps, patience=2, keeps_tokens=False, kept_pages=0, late=False, num_blocks=8, size=4):
    """Tokens of each request (0: it waits in the line) and free pages after each step, as exercise 4.1 says it; or with a mistake:
    who is preempted keeps its tokens or some pages, or pages that are given back serve in the next step."""
    seqs = [SimpleNamespace(i=i, prompt=r.prompt_tokens, total=r.total_tokens, start=r.prompt_tokens, tokens=0)
            for i, r in enumerate(requests)]
    line, running, free, rows = list(seqs), [], num_blocks, []
    for _ in range(steps):
        given_back = 0
        while line and -(-line[0].start // size) <= free:
            seq = line.pop(0)
            seq.tokens, seq.stalled, free = seq.start, 0, free - -(-seq.start // size)
            running.append(seq)
        for seq in list(running):
            if seq.tokens % size or free:
                free -= seq.tokens % size == 0
                seq.tokens, seq.stalled = seq.tokens + 1, 0
            elif seq.stalled < patience:
                seq.stalled += 1
                continue
            if seq.tokens == seq.total or seq.stalled == patience and seq.tokens % size == 0:
                back = -(-seq.tokens // size)
                running.remove(seq)
                if seq.tokens < seq.total:
                    back -= kept_pages
                    seq.start = seq.tokens if keeps_tokens else seq.prompt
                    line.insert(0, seq)
                free, given_back = free + back * (not late), given_back + back * late
                seq.tokens = 0
        free += given_back
        rows.append([*(seq.tokens for seq in seqs), free])
    return rows


@cache
def _trace(seed):
    """Three requests, and the step after which the six asked for begin: somebody is preempted in them, nobody is done."""
    random = draws("4.1")
    while True:
        requests = [Request(int(random.randint(1, 9)), int(random.randint(6, 13))) for _ in range(3)]
        requests = [Request(r.prompt_tokens, min(r.output_tokens, 16 - r.prompt_tokens)) for r in requests]
        rows = play(requests, 16)
        out = [i for i in range(1, 15) if any(a and not b for a, b in zip(rows[i - 1][:3], rows[i][:3]))]
        if sum(-(-r.prompt_tokens // 4) for r in requests) > 7 or not out or out[0] < 5 or out[0] > 11:
            continue
        first = out[0] - 3
        seen = rows[first : first + ROWS]
        same_steps = all(play(requests, 16, **mistake)[first : first + ROWS] != seen for mistake in MISTAKES.values())
        left = [r for r, n in zip(requests, rows[out[0] - 1][:3]) if n and n == r.total_tokens - 1]
        if same_steps and not left and any(row[:3] != seen[-1][:3] for row in seen[3:5]):
            return requests, first


MISTAKES = {
    "Who stalls keeps its pages, and tries again in the next step.": dict(patience=0),
    "It is thrown out when it fails for the third time, after two steps of waiting.": dict(patience=1),
    "Who is thrown out gives back all of its pages.": dict(kept_pages=1),
    "Who is thrown out forgets what it produced, and starts over from its prompt.": dict(keeps_tokens=True),
    "A page that is given back serves those who come later in the same step.": dict(late=True),
    "It waits two steps, and is thrown out in the third.": dict(patience=3),
}


def a_trace():
    """Print the requests of exercise 4.1, and where they are before the steps that are asked for; also returns them."""
    requests, first = _trace(class_seed())
    for name, r in zip("ABC", requests):
        print(f"{name}: {r.prompt_tokens} -> {r.total_tokens} tokens", end="; ")
    print("8 pages of 4")
    *tokens, free = play(requests, first)[-1]
    print(f"after step {first}: A, B, C have {tokens} tokens, free pages: {free};",
          f"the next steps are {first + 1} to {first + ROWS}")
    return SimpleNamespace(requests=requests, first=first)


@exercise()
def trace(answer):
    """Exercise 4.1: six steps of a scheduler, by hand."""
    requests, first = _trace(class_seed())
    right = play(requests, first + ROWS)[first:]
    wrong = {hint: play(requests, first + ROWS, **mistake)[first:] for hint, mistake in MISTAKES.items()}

    def part(rows, title):
        def run():
            if not is_any(answer, (list, tuple, np.ndarray)) or len(answer) != ROWS:
                raise Wrong(expected=f"{ROWS} rows: A, B, C, free pages", got=answer)
            for i in rows:
                before = f"step {first + 1 + i}, after {right[i - 1] if i else play(requests, first)[-1]}"
                slips = {hint: rows[i] for hint, rows in wrong.items() if rows[:i] == right[:i]}
                same(answer[i], right[i], before, lambda slips=slips: slips, whole_numbers)
        return 1, title, run

    return [part(range(2), "until somebody is thrown out"), part(range(4), "and the step after"),
            part(range(ROWS), "all six steps")]


def right_start(request, num_running, num_free, num_blocks, block_size, share):
    if -(-request.total_tokens // block_size) > num_blocks:
        raise RequestTooLarge
    left = num_free - -(-request.prompt_tokens // block_size)
    return left >= 0 and (num_running == 0 or left >= share * num_blocks)


@exercise()
def may_start(answer):
    """Exercise 4.2: who may start, and who can never."""
    random = draws("4.2")

    def slips(**changes):
        def slip(request, num_running, num_free, num_blocks, block_size, share):
            pages = (request.total_tokens if "total" in changes else request.prompt_tokens) / block_size
            left = num_free - (pages // 1 if "floor" in changes else pages if "parts" in changes else -(-pages // 1))
            kept = share * (num_free if "of_free" in changes else num_blocks)
            kept = 0 if "none" in changes else changes.get("rounded", float)(kept)
            enough = left > kept if "strict" in changes else left >= kept
            enough = num_free >= kept and left >= 0 if "before" in changes else enough
            return bool(enough or "lone" not in changes and num_running <= changes.get("few", 0) and left >= 0)
        return slip

    hints = {"With nothing running the reserve doesn't matter: a lone request would wait for ever.": slips(lone=True),
             "At first it takes the pages of its prompt; the others when it grows.": slips(total=True),
             "The reserve is a share of the pool, not of what is free.": slips(of_free=True),
             "Just as many free pages as the reserve are enough: >=.": slips(strict=True),
             "The reserve isn't rounded down: 2 free pages are fewer than 2.25.": slips(rounded=int),
             "The reserve isn't rounded: 2 free pages are fewer than 2.25.": slips(rounded=round),
             "A page that is begun is a page: round up.": slips(floor=True),
             "Pages are whole: a prompt takes all of a page that it begins.": slips(parts=True),
             "The reserve must still be free when the prompt has got its pages.": slips(before=True),
             "The reserve counts as soon as one runs: num_running is 0 if none does.": slips(few=1),
             "The reserve is missing: so many pages must be free afterwards.": slips(none=True),
             "With nothing running there must still be pages for its prompt.":
                 lambda request, num_running, *rest: num_running == 0 or right_start(request, num_running, *rest),
             "It is the other way round.": lambda *case: not right_start(*case)}

    def cases(count, running=True):
        found = []
        while len(found) < count:
            size, blocks = int(random.choice([4, 16])), 8 * int(random.randint(6, 15)) + 3 * (len(found) % 2)
            share = float(random.choice([0.125, 0.25, 0.375]))  # a reserve of whole pages, and next of some eighths more
            request = Request(size * int(random.randint(2, 6)) + int(random.randint(1, size)), int(random.randint(60, 120)))
            edge = -(-request.prompt_tokens // size) + int(share * blocks) + (-6, 0, 1, -1, 9)[len(found) % 5]
            free = max(0, min(edge, blocks)) if running else blocks
            if -(-request.total_tokens // size) <= blocks:
                found.append((request, int(random.randint(1, 9)) if running else 0, free, blocks, size, share))
        return found

    def lone():
        return [(Request(30, 10), 0, 10, 10, 4, 0.3), (Request(150, 10), 0, 10, 10, 16, 0.2),
                (Request(44, 10), 0, 10, 40, 4, 0.0), *cases(2, False)]

    def too_large():
        never = (Request(12, 29), 0, 10, 10, 4, 0.0), (Request(100, 61), 3, 2, 10, 16, 0.1), (Request(41, 1), 2, 0, 10, 4, 0.0)
        for case in never:
            given = ", ".join(f"{name} = {show(x)}" for name, x in zip(signature(right_start).parameters, case))
            try:
                got = call(answer, *case)
            except Raises as error:
                if type(error.error) is not RequestTooLarge:
                    raise Wrong(given, "pf.RequestTooLarge", str(error), "It would never fit, however long it waits.") from None
                continue
            if got is RequestTooLarge or is_any(got, (RequestTooLarge,)):
                raise Wrong(given, "pf.RequestTooLarge, raised", got, "Raise it: raise, not return.")
            raise Wrong(given, "pf.RequestTooLarge", got, "In the end it needs more pages than the pool has, free or not.")
        compare(answer, [(Request(12, 28), 1, 3, 10, 4, 0.0), (Request(20, 19), 2, 0, 10, 4, 0.1)], right_start,
                {"Too large is what never fits into the pool. This one waits: False.": lambda *case: True} | hints, truth)

    return [(1, "the reserve, beside running ones", lambda: compare(answer, cases(24), right_start, hints, truth)),
            (1, "a lone request", lambda: compare(answer, lone(), right_start, hints, truth)), (1, "what never fits", too_large)]


def a_swap():
    """Print the model and the GPU of exercise 4.4, and return them."""
    random = draws("4.4")
    swap = SimpleNamespace(
        bytes_per_token=2 * int(random.choice([28, 36, 48])) * int(random.choice([4, 8])) * 128 * 2,
        parameters=float(random.choice([7, 9, 14, 32])) * 1e9, flops=float(random.choice([200, 300, 500])) * 1e12,
        tokens=int(random.choice([1200, 2400, 3600])), batch=int(random.choice([16, 48, 64])))
    print(f"{swap.bytes_per_token:,} bytes a token, {swap.parameters / 1e9:.0f} billion parameters,",
          f"{swap.flops / 1e12:.0f} TFLOP a second;",
          f"the victim has {swap.tokens:,} tokens, {swap.batch} others run")
    return swap


@exercise()
def swap_rate(answer):
    """Exercise 4.4: the rate of the bus, in GB a second, at which moving takes as long as computing again."""
    s = a_swap()
    rate = s.bytes_per_token * s.flops / s.parameters / 1e9
    slips = {"Out and back: twice the bytes.": rate / 2, "Computing takes 2 FLOP for each parameter and token.": 2 * rate,
             "That is bits: a byte has 8.": 8 * rate, "Only the victim moves, and only it is computed again.": rate * s.batch,
             "Longer ones take longer to move and to compute: the tokens cancel.": rate * s.tokens,
             "That is the inverse: the more bytes and FLOP a second, the quicker the bus must be.": 1 / rate,
             "The tokens cancel.": rate / s.tokens, "That is in GiB; a GB is 10^9 bytes.": rate * 1e9 / 2**30,
             "In GB a second: divide by 10^9.": rate * 1e9}
    given = f"{s.bytes_per_token:,} bytes a token, {s.parameters:.3g} parameters, {s.flops:.3g} FLOP a second"

    def named():
        """Slips of numbers that are rounded a little, too, and an answer that is rounded too much."""
        mine = number(answer)
        found = {hint: mine for hint, slip in slips.items() if close(mine, slip, 0.01)}
        return {"Within 1%: give more digits.": mine} if close(mine, rate, 0.05) else found
    return [(2, "the rate, within 1%", lambda: same(answer, rate, given, named, number, rtol=0.01))]
