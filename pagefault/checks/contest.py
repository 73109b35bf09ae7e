"""Checks of a reader's policy and settings, which are played: exercises 4.3 and 4.5."""

from functools import cache

import numpy as np

from ..errors import Deadlock, Livelock, whole
from ..jobs import published_requests
from ..policies import requester, watermark
from ..requests import Request
from ..simulator import simulate
from .base import Wrong, class_seed, draws, exercise
from .running import Raises, call
from .values import is_any, number, what, whole_number

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


@exercise()
def victim(answer):
    """Exercise 4.3: a rule for who gives way that reaches 2.2 times the reserving server, on jobs that were not seen before."""
    seeds, known = draws("4.3").randint(100, 2**31, 3).tolist(), {}

    def rule_for(shown):
        def rule(needy, running):
            seen = [shown.setdefault(seq, Seen(seq)) for seq in running]
            chosen = answer(shown.setdefault(needy, Seen(needy)), lent := list(seen))
            if len(lent) != len(seen) or any(a is not b for a, b in zip(lent, seen)):
                raise TypeError("the list `running` isn't as it was: a rule only chooses, and sorted(running) is a new list")
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


@cache
def _lab(seed):
    """The mix of exercise 4.5: shortest and longest output, longest prompt."""
    random = draws("4.5")
    return int(random.randint(20, 120)), int(random.randint(800, 1100)), int(random.randint(40, 80))


@cache
def _rate(seed, draw, share, workers):
    """Tokens a step that aren't thrown away: 800 requests, 1,024 pages of 16, the published rule."""
    low, high, prompt = _lab(seed)
    random = np.random.RandomState([seed, draw])
    jobs = [Request(int(p), int(n)) for p, n in zip(random.randint(10, prompt, 800), random.randint(low, high, 800))]
    tokens = sum(r.output_tokens for r in jobs)
    try:
        done = simulate(jobs, 1024, 16, victim=requester, patience=32, workers=workers, admission=watermark(share), jump=True,
                        like_threads=True, max_steps=tokens // 8)
    except (Livelock, Deadlock):
        return 0.0
    return tokens / done.summary["steps"]


_tried = {}  # class seed: the settings that were tried since the program began, in whichever Lab


class Lab:
    """A server for an unknown mix of requests; at most 12 settings can be tried, and a setting again as often as you like."""

    def run(self, share, workers):
        """Tokens a step with so large a reserve and so many workers, on two draws of 800 requests; 0.0 if it isn't done."""
        share, workers = float(number(share)), whole("workers", workers, 1, 512)
        if not 0 <= share < 1:
            raise ValueError(f"share = {share}, it is from 0 to below 1")
        tried = _tried.setdefault(class_seed(), set())
        if len(tried | {(share, workers)}) > 12:
            raise RuntimeError(f"12 runs are all there are, and you had {sorted(tried)}: which setting was best?")
        tried.add((share, workers))
        return sum(_rate(class_seed(), draw, share, workers) for draw in (1, 2)) / 2


@exercise()
def setting(answer):
    """Exercise 4.5: a reserve and a number of workers for an unseen mix, on its draws and on two more."""
    def rate(share, workers):
        return sum(_rate(class_seed(), draw, share, workers) for draw in (1, 2, 3, 4)) / 4

    def better(share, workers):
        """A direction in which it gains 3% or more: in a small step if one does, else in a large one."""
        def fewer_or_more(*factors):
            return [("fewer" if f < 1 else "more", share, min(512, max(1, round(f * workers)))) for f in factors]

        def less_or_more(step):
            return [("smaller", max(0.0, share - step), workers), ("larger", min(0.95, share + step), workers)]

        least = max(1.03 * rate(share, workers), 0.01)
        for steps in (fewer_or_more(0.75, 0.9, 1.1, 1.25) + less_or_more(0.15), fewer_or_more(0.5, 2) + less_or_more(0.05)):
            gain, word = max((rate(*tried), word) for word, *tried in steps)
            if gain >= least:
                return {"fewer": "With fewer workers it is more: they push each other out.",
                        "more": "With more workers it is more: pages lie idle.",
                        "smaller": "With a smaller reserve it is more: pages lie idle.",
                        "larger": "A larger reserve helps."}[word]
        return ("It isn't done: far fewer workers, or a larger reserve." if not rate(share, workers)
                else "That is near the best: try both, reserve and workers, a little larger and a little smaller.")

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
        best = max(rate(s, w) for s in (0.05, 0.1, 0.2) for w in (24, 32, 40, 48))
        mine = rate(share, workers)
        if mine < (1 - within) * best:
            raise Wrong(f"share {share:g}, {workers} workers, the draws of your runs and two more",
                        f"at least {(1 - within) * best:.1f} tokens a step", f"{mine:.1f}", better(share, workers))
    return [(1, "within 15% of the best", lambda: run(0.15)), (1, "within 5% of the best", lambda: run(0.05))]
