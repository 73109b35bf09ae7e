"""Plain values of a reader's answers: read so that nothing but a right value passes, compared, and shown."""

from types import FunctionType

import numpy as np

from ..requests import Request

SCALARS = (int, float, *sorted({t for t in np.sctypeDict.values() if np.dtype(t).kind in "iuf"}, key=str))


def close(a, b, rtol=1e-6):
    """Whether plain numbers, or arrays and lists of them, are the same; NaN is like nothing."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
        return False
    if a.dtype.kind != "f" and b.dtype.kind != "f":
        return bool((a == b).all())
    return bool(np.isclose(a, b, rtol=rtol, atol=1e-12 if b.dtype.kind == "f" else 0).all())


def number(x):
    """x as an int or a float, of Python or NumPy; raises TypeError for a bool, a text, NaN, or what only says that it is one."""
    if type(x) is np.ndarray and x.shape == ():
        x = x[()]
    if not is_any(x, SCALARS):
        raise TypeError(f"a number is needed, and this is {what(x)}")
    x = x if is_any(x, (int, float)) else x.item()
    if x != x:
        raise TypeError("a number is needed, and this is NaN")
    return int(x) if x == x // 1 and abs(x) < 2**53 else x


def whole_number(x):
    """x as an int; raises TypeError if it isn't a whole number."""
    x = number(x)
    if type(x) is not int:
        raise TypeError(f"a whole number is needed, and this is {x:g}")
    return x


def numbers(x):
    """A list, tuple or array of numbers as float64; raises TypeError."""
    if type(x) is np.ndarray and x.dtype.kind in "iuf":
        return x.astype(np.float64)
    if not is_any(x, (list, tuple)):
        raise TypeError(f"an array of numbers is needed, and this is {what(x)}")
    rows = [numbers(item) if is_any(item, (list, tuple, np.ndarray)) else number(item) for item in x]
    if len({np.shape(row) for row in rows}) > 1:
        raise TypeError("an array of numbers is needed, and the parts of this have different lengths")
    return np.array(rows, np.float64)


def whole_numbers(x):
    """A list, tuple or array of whole numbers as a list of int; raises TypeError."""
    if not is_any(x, (list, tuple)) and not (type(x) is np.ndarray and x.ndim == 1):
        raise TypeError(f"a list of whole numbers is needed, and this is {what(x)}")
    return [whole_number(item) for item in x]


def truth(x):
    """x as a bool; raises TypeError for what isn't True or False."""
    if not is_any(x, (bool, np.bool_)):
        raise TypeError(f"True or False is needed, and this is {what(x)}")
    return bool(x)


def is_any(x, types):
    """Whether x is of exactly one of the types; a reader's class, whose == may say anything, isn't asked."""
    return any(type(x) is t for t in types)


def count(n, noun):
    """'1 frame', '2 frames'."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def what(x):
    name = type(x).__name__
    if x is ...:
        return "still ..."
    return "nothing (is there a return?)" if x is None else f"a{'n' * (name[0] in 'aeiouAEIOU')} {name}"


def show(x):
    """A value for a report: short, the same everywhere, and without asking an object of an unknown class."""
    if type(x) is np.ndarray:
        if x.ndim > 1 or x.dtype.kind not in "biuf":
            return f"an array {list(x.shape)} of {x.dtype}"
        x = x.tolist()
    if is_any(x, SCALARS) and not is_any(x, (int, float)):
        x = x.item()
    if type(x) is float:
        return f"{x:.6g}"
    if is_any(x, (list, tuple)):
        items = [str(item) if type(item) is int else show(item) for item in x[:12]] + ["..."] * (len(x) > 12)
        text = ", ".join(items)
        return f"[{text}]" if type(x) is list else f"({text}{',' * (len(x) == 1)})"
    if type(x) is dict:
        items = [f"{key if type(key) is int else show(key)}: {show(value)}" for key, value in list(x.items())[:6]]
        return f"{{{', '.join(items + ['...'] * (len(x) > 6))}}}"
    if x is ...:
        return "..."
    if type(x) is Request:
        return f"Request({x.prompt_tokens}, {x.output_tokens})"
    if is_any(x, (int, bool, str, type(None), np.bool_)):
        return f"{x:,}" if type(x) is int else str(x)[:200]
    return what(x)


def all_blank(*answers):
    """Whether nothing was written: None, ..., or a function or class with nothing but a docstring; also in dicts and lists."""
    return all(map(is_blank, answers))


def is_blank(answer):
    if answer is None or answer is ...:
        return True
    if is_any(answer, (list, tuple, dict)):
        return all_blank(*(answer.values() if type(answer) is dict else answer)) if len(answer) else False
    if type(answer) is FunctionType:
        code = answer.__code__
        empty = _nothing.__code__, _documented.__code__
        return code.co_code in [e.co_code for e in empty] and all(c is None or c is answer.__doc__ for c in code.co_consts)
    return False


def _nothing():
    ...


def _documented():
    """Nothing."""
