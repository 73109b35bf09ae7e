"""Checks of notebook 4's exercises."""

from functools import cache
from inspect import signature
from types import SimpleNamespace

import numpy as np

from ..errors import Deadlock, Livelock, RequestTooLarge, whole
from ..jobs import published_requests
from ..policies import requester, watermark
from ..requests import Request
from ..simulator import simulate
from .base import Wrong, class_seed, compare, draws, exercise, is_any, number, same, show, truth, what, whole_number, whole_numbers
from .running import Raises, call

ROWS = 6  # steps that exercise 4.1 asks for
LOOKED_AT = ("number", "prompt_tokens", "total_tokens", "num_tokens", "num_blocks", "generated", "remaining", "loss", "preemptions")


class Seen:
    """What a victim rule may look at of a sequence; it can't be changed."""

    __slots__ = ("_seq",)

    def __init__(self, seq):
        object.__setattr__(self, "_seq", seq)

    def __getattr__(self, name):
        if name not in LOOKED_AT:
            raise AttributeError(f"a sequence has {', '.join(LOOKED_AT)}, and not {name}")
        return getattr(self._seq, name)

    def __setattr__(self, name, value):
        raise AttributeError("a rule only chooses")


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
    """Print the requests of exercise 4.1, and where they are before the steps that are asked for."""
    requests, first = _trace(class_seed())
    for name, r in zip("ABC", requests):
        print(f"{name}: {r.prompt_tokens} -> {r.total_tokens} tokens", end="; ")
    print("8 pages of 4")
    print(f"after step {first}: A, B, C have {play(requests, first)[-1][:3]} tokens, {play(requests, first)[-1][3]} pages are free;",
          f"the next steps are {first + 1} to {first + ROWS}")


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
                same(answer[i], right[i], before, lambda i=i: {h: w[i] for h, w in wrong.items() if w[:i] == right[:i]}, whole_numbers)
        return 1, title, run

    return [part(range(2), "until somebody is thrown out"), part(range(4), "and the step after"), part(range(ROWS), "all six steps")]


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
            left = num_free - (pages // 1 if "floor" in changes else -(-pages // 1))
            kept = share * (num_free if "of_free" in changes else num_blocks)
            kept = 0 if "none" in changes else kept
            enough = left > kept if "strict" in changes else left >= kept
            return bool(enough or "lone" not in changes and num_running == 0 and left >= 0)
        return slip

    hints = {"With nothing running the reserve doesn't matter: a lone request would wait for ever.": slips(lone=True),
             "At first it takes the pages of its prompt; the others when it grows.": slips(total=True),
             "The reserve is a share of the pool, not of what is free.": slips(of_free=True),
             "Just as many free pages as the reserve are enough: >=.": slips(strict=True),
             "A page that is begun is a page: round up.": slips(floor=True),
             "The reserve is missing: so many pages must be free afterwards.": slips(none=True),
             "It is the other way round.": lambda *case: not right_start(*case)}

    def cases(count, running=True):
        found = []
        while len(found) < count:
            size, blocks, share = int(random.choice([4, 16])), 10 * int(random.randint(5, 12)), float(random.choice([0.1, 0.2, 0.3]))
            request = Request(size * int(random.randint(2, 6)) + int(random.randint(1, size)), int(random.randint(60, 120)))
            edge = -(-request.prompt_tokens // size) + round(share * blocks * (1 if running else 0)) + int(random.choice([-1, 0, 1, 9]))
            free = min(edge, blocks) if running else blocks
            if -(-request.total_tokens // size) <= blocks:
                found.append((request, int(random.randint(1, 9)) if running else 0, free, blocks, size, share))
        return found

    def lone():
        return [(Request(30, 10), 0, 10, 10, 4, 0.3), (Request(150, 10), 0, 10, 10, 16, 0.2), *cases(2, False)]

    def too_large():
        for case in ((Request(12, 29), 0, 10, 10, 4, 0.0), (Request(100, 61), 3, 2, 10, 16, 0.1), (Request(41, 1), 2, 0, 10, 4, 0.0)):
            given = ", ".join(f"{name} = {show(x)}" for name, x in zip(signature(right_start).parameters, case))
            try:
                got = call(answer, *case)
            except Raises as error:
                if type(error.error) is not RequestTooLarge:
                    raise Wrong(given, "pf.RequestTooLarge", str(error), "It would never fit, however long it waits.") from None
                continue
            raise Wrong(given, "pf.RequestTooLarge", got, "In the end it needs more pages than the pool has, free or not.")
        compare(answer, [(Request(12, 28), 1, 3, 10, 4, 0.0), (Request(20, 19), 2, 0, 10, 4, 0.1)], right_start,
                {"Too large is what never fits into the pool. This one waits: False.": lambda *case: True} | hints, truth)

    return [(1, "the reserve, beside running ones", lambda: compare(answer, cases(24), right_start, hints, truth)),
            (1, "a lone request", lambda: compare(answer, lone(), right_start, hints, truth)), (1, "what never fits", too_large)]


@exercise()
def victim(answer):
    """Exercise 4.3: a rule for who gives way that reaches 2.2 times the reserving server, on jobs that were not seen before."""
    seeds, known = draws("4.3").randint(100, 2**31, 3).tolist(), {}

    def rule_for(shown):
        def rule(needy, running):
            seen = [shown.setdefault(seq, Seen(seq)) for seq in running]
            chosen = answer(shown.setdefault(needy, Seen(needy)), list(seen))
            for seq, one in zip(running, seen):
                if chosen is one:
                    return seq
            raise TypeError(f"the rule returns one of running, and this is {what(chosen)}")
        return rule

    def times(seed):
        jobs, common = published_requests(2048, seed), dict(num_blocks=4096, workers=128, like_threads=True, jump=True)
        reserving = simulate(jobs, reserve=2048, **common).summary["steps"]
        given = f"2,048 jobs of seed {seed}, 4,096 pages of 16, 128 workers"
        rules = dict(victim=rule_for({}), patience=0, max_steps=reserving)
        try:
            steps = call(lambda: simulate(jobs, **rules, **common).summary["steps"], seconds=20)
        except Raises as error:
            if type(error.error) is Livelock:
                return given, 0, f"not done after {reserving:,} steps, which the reserving server needs"
            return given, 0, str(error)
        return given, reserving / steps, f"{reserving / steps:.2f} times"

    def reaches(least, some):
        def run():
            for seed in some:
                given, found, text = known[seed] = known.get(seed) or times(seed)
                if found < least:
                    raise Wrong(given, f"at least {least:g} times the reserving server" if least else "done", text,
                                "Whoever gives way has all it produced to do again: let that be little, and let somebody get on."
                                if found or "not done" in text else None)
        return run

    return [(1, "quicker than the server that reserves", reaches(1, seeds[:1])), (1, "2.2 times as quick", reaches(2.2, seeds[:1])),
            (1, "and on two more seeds", reaches(2.2, seeds))]


def a_swap():
    """Print the model and the GPU of exercise 4.4, and return them."""
    random = draws("4.4")
    swap = SimpleNamespace(
        bytes_per_token=2 * int(random.choice([28, 36, 48])) * int(random.choice([4, 8])) * 128 * 2,
        parameters=float(random.choice([7, 9, 14, 32])) * 1e9, flops=float(random.choice([200, 300, 500])) * 1e12,
        tokens=int(random.choice([1200, 2400, 3600])), batch=int(random.choice([16, 48, 64])))
    print(f"{swap.bytes_per_token:,} bytes a token, {swap.parameters / 1e9:.0f} billion parameters, {swap.flops / 1e12:.0f} TFLOP a second;",
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
             "The tokens cancel.": rate / s.tokens, "That is in GiB; a GB is 10^9 bytes.": rate * 1e9 / 2**30,
             "In GB a second: divide by 10^9.": rate * 1e9}
    given = f"{s.bytes_per_token:,} bytes a token, {s.parameters:.3g} parameters, {s.flops:.3g} FLOP a second"
    return [(2, "the rate, within 1%", lambda: same(answer, rate, given, lambda: slips, number, rtol=0.01))]


@cache
def _lab(seed):
    """The mix of exercise 4.5: shortest and longest output, longest prompt."""
    random = draws("4.5")
    return int(random.randint(20, 120)), int(random.randint(800, 1100)), int(random.randint(40, 80))


@cache
def _rate(seed, draw, share, workers):
    """Tokens a step that aren't thrown away: 400 requests, 1,024 pages of 16, the published rule."""
    low, high, prompt = _lab(seed)
    random = np.random.RandomState([seed, draw])
    jobs = [Request(int(p), int(n)) for p, n in zip(random.randint(10, prompt, 400), random.randint(low, high, 400))]
    tokens = sum(r.output_tokens for r in jobs)
    try:
        done = simulate(jobs, 1024, 16, victim=requester, patience=32, workers=workers, admission=watermark(share), jump=True,
                        like_threads=True, max_steps=tokens // 8)
    except (Livelock, Deadlock):
        return 0.0
    return tokens / done.summary["steps"]


class Lab:
    """A server for an unknown mix of requests; at most 12 runs can be had of it."""

    def __init__(self):
        self.runs = 0

    def run(self, share, workers):
        """Tokens a step with so large a reserve and so many workers, on two draws of 400 requests."""
        share, workers = float(number(share)), whole("workers", workers, 1, 512)
        if not 0 <= share < 1:
            raise ValueError(f"share = {share}, it is from 0 to below 1")
        if self.runs == 12:
            raise RuntimeError("12 runs are all there are: which setting was best?")
        self.runs += 1
        return sum(_rate(class_seed(), draw, share, workers) for draw in (1, 2)) / 2


@exercise()
def setting(answer):
    """Exercise 4.5: a reserve and a number of workers for an unseen mix, on draws that were not seen before."""
    def rate(share, workers):
        return sum(_rate(class_seed(), draw, share, workers) for draw in (3, 4)) / 2

    def run(within):
        if not is_any(answer, (tuple, list)) or len(answer) != 2:
            raise Wrong(expected="(share, workers)", got=answer)
        try:
            share, workers = float(number(answer[0])), whole_number(answer[1])
        except TypeError as error:
            raise Wrong(expected="(share, workers)", got=answer, hint=str(error)) from None
        if not 0 <= share < 1 or not 1 <= workers <= 512:
            raise Wrong(expected="a share from 0 to below 1, and 1 to 512 workers", got=answer,
                        hint="A percentage is a hundredth." if share >= 1 else None)
        best = max(rate(s, w) for s in (0.05, 0.1, 0.2) for w in (24, 32, 40, 48, 64))
        mine = rate(share, workers)
        if mine < (1 - within) * best:
            fewer, less = rate(share, max(1, workers // 2)) > mine, rate(max(0.0, share - 0.15), workers) > mine
            raise Wrong(f"share {share:g}, {workers} workers, two other draws of the same mix",
                        f"at least {(1 - within) * best:.1f} tokens a step", f"{mine:.1f}",
                        "With half the workers it is more: they push each other out." if fewer else
                        "With a smaller reserve it is more: pages lie idle." if less else
                        "With more workers it is more: pages lie idle." if rate(share, 2 * workers) > mine else
                        "A larger reserve helps.")
    return [(1, "within 15% of the best", lambda: run(0.15)), (1, "within 5% of the best", lambda: run(0.05))]

