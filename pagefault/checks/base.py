"""What all checks share: a score, the first case that is wrong, and the class seed."""

import html
import inspect
import os
import zlib
from functools import wraps

import numpy as np

from ..errors import whole
from .running import Hangs, Raises, call_with_copies, describe, quiet
from .values import all_blank, close, number, show

_class_seed = []


class Score(float):
    """Points, as a number that shows as a report: str() in a terminal, a short list in a notebook.

    rows: (points, title, Wrong or None) of each part; none if nothing was attempted.
    """

    def __new__(cls, rows, out_of):
        self = super().__new__(cls, sum(points for points, _, wrong in rows if wrong is None))
        self.rows, self.out_of = rows, out_of
        return self

    @property
    def points(self):
        """The same as a float of Python's own, which shows as a number."""
        return float(self)

    @property
    def wrong(self):
        """The first Wrong, None if there is none."""
        return next((wrong for _, _, wrong in self.rows if wrong is not None), None)

    def __repr__(self):
        if not self.rows:
            return "not attempted"
        lines = [f"{float(self):g} of {self.out_of:g} points"]
        lines += [f"  {'not yet' if wrong else 'right':8} {title}" for _, title, wrong in self.rows]
        details = self.wrong.details() if self.wrong else []
        return "\n".join(lines + [f"    {name + ':':10}{text}" for name, text in details])

    __str__ = __repr__

    def _repr_html_(self):
        if not self.rows:
            return "<p><b>Not attempted.</b></p>"
        rows = "".join(f"<li><b>{'not yet' if wrong else 'right'}</b> {html.escape(title)}</li>" for _, title, wrong in self.rows)
        details = "".join(f"<tr><th>{name}</th><td style='text-align:left;white-space:pre-wrap'>{html.escape(text)}</td></tr>"
                          for name, text in (self.wrong.details() if self.wrong else []))
        return (f"<p><b>{float(self):g} of {self.out_of:g} points</b></p><ul>{rows}</ul>"
                + (f"<table>{details}</table>" if details else ""))


class Wrong(Exception):
    """A case in which an answer is wrong. What isn't text is shown by show(). hangs: it didn't come to an end."""

    def __init__(self, given=None, expected=None, got=None, hint=None, hangs=False):
        super().__init__(given, expected, got, hint)
        self.given, self.expected, self.got, self.hint, self.hangs = given, expected, got, hint, hangs

    def details(self):
        parts = zip(("input", "expected", "got", "hint"), (self.given, self.expected, self.got, self.hint))
        return [(name, part if isinstance(part, str) else show(part)) for name, part in parts if part is not None]


def exercise(blank=None):
    """Make a check of a function that gets the answers and returns parts: (points, title, run), where run raises a Wrong.

    blank: a function of the answers that says whether they are still the stub; unless given, whether all are blank(). The
    check never raises an Exception; parts behind one that hangs are not run.
    """
    def decorate(parts_of):
        @wraps(parts_of)
        def check(*answers):
            with quiet():
                parts = parts_of(*answers)
                out_of = sum(points for points, _, _ in parts)
                if (blank or all_blank)(*answers):
                    return Score([], out_of)
                rows, hung = [], None
                for points, title, run in parts:
                    wrong = hung or _wrong(run)
                    hung = wrong if wrong and wrong.hangs else None
                    rows.append((points, title, wrong))
                return Score(rows, out_of)
        return check
    return decorate


def _wrong(run):
    """What is wrong with a part, None if nothing is."""
    try:
        run()
    except Wrong as wrong:
        return wrong
    except (Raises, Hangs) as error:
        return Wrong(got=str(error), hangs=isinstance(error, Hangs))
    except Exception as error:
        return Wrong(got=describe(error))


def compare(answer, cases, right, slips=(), read=None, hint=None, words=None):
    """Call an answer with each case's arguments; raises the Wrong of the first that isn't right.

    right: the same in the module's own words, called afterwards. slips: {hint: the function that makes that mistake}.
    read: turns what the answer returned into plain numbers, or raises TypeError; number() unless given. hint: for other
    mistakes, a text or a function of what came and the arguments; not for errors that say themselves what to mend. words: a
    function of a case's arguments that says them in a report; unless given, all are shown.
    """
    read, slips = read or number, dict(slips)
    hint_for = hint if callable(hint) else lambda got, *args: hint
    for i, args in enumerate(cases):
        named = zip(inspect.signature(right).parameters, args)
        given = words(*args) if words else ", ".join(f"{name} = {show(arg)}" for name, arg in named)
        try:
            got, kept = call_with_copies(answer, *args)
        except (Raises, Hangs) as error:
            hangs = isinstance(error, Hangs)
            plain = hangs or isinstance(error.error, (NameError, AttributeError, ImportError, TypeError))
            raise Wrong(given, right(*args), str(error), None if plain else hint_for(None, *args), hangs) from None
        try:
            same(got, right(*args), given, lambda args=args: {hint: slip(*args) for hint, slip in slips.items()}, read)
        except Wrong as wrong:
            wrong.hint = _mistake(answer, cases[i:], slips, read) if wrong.hint in slips else wrong.hint or hint_for(got, *args)
            raise
        if not kept:
            raise Wrong(given, "arguments that are as they were", "changed arguments",
                        "Work on a copy: the caller still needs its arguments.")


def _mistake(answer, cases, slips, read):
    """Of the hints whose mistake gives what an answer gives in the first of these cases, the one for which most others do."""
    agree = dict.fromkeys(slips, 0)
    for i, args in enumerate(cases):
        try:
            value = read(call_with_copies(answer, *args)[0])
        except (Raises, Hangs, TypeError):
            continue
        with np.errstate(all="ignore"):
            for hint, slip in slips.items():
                agree[hint] += close(value, slip(*args)) * (1 if i else len(cases))
    return max(agree, key=agree.get)


def same(got, expected, given, slips=dict, read=None, rtol=1e-6):
    """Raise a Wrong unless `got` is read as `expected`. slips: a function that returns {hint: wrong value}."""
    try:
        value = (read or number)(got)
    except TypeError as error:
        raise Wrong(given, expected, got, str(error)) from None
    if not close(value, expected, rtol):
        with np.errstate(all="ignore"):
            hints = [hint for hint, slip in slips().items() if close(value, slip)]
        raise Wrong(given, expected, got, hints[0] if hints else None)


def use_class_seed(seed):
    """Draw all numbers and hidden inputs of the exercises by this whole number: a class has one of its own."""
    _class_seed[:] = [whole("seed", seed, 0, 2**32 - 1)]


def class_seed():
    """The class seed: the one given to use_class_seed, or $PAGEFAULT_CLASS_SEED, or 0."""
    return _class_seed[0] if _class_seed else int(os.environ.get("PAGEFAULT_CLASS_SEED") or 0)


def draws(name):
    """A RandomState for the exercise of this name, by the class seed."""
    return np.random.RandomState([class_seed(), zlib.crc32(name.encode())])
