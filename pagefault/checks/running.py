"""A reader's code, run so that it does no harm: it is stopped when it hangs, says nothing, and leaves nothing changed."""

import contextvars
import copy
import ctypes
import io
import logging
import random
import sys
import threading
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import numpy as np

SECONDS = 2.0  # that a call may take
GRACE = 2.0  # seconds in which it is asked to stop, again and again


class Hangs(Exception):
    """The code didn't come to an end. stopped: it could be ended; otherwise it goes on until the program ends."""

    def __init__(self, seconds, stopped):
        unless = "" if stopped else "; it can't be stopped: restart the kernel"
        super().__init__(f"still running after {seconds:g} seconds{unless}")


class Raises(Exception):
    """The code raised `error`."""

    def __init__(self, error):
        self.error = error
        super().__init__(describe(error))


mine = threading.local()  # mine.call: while a reader's code runs in this thread, which call it is; None otherwise


class StopNow(BaseException):
    """Raised in the thread of code that hangs. (Not an Exception, of which `except Exception` would make nothing.)

    A bare `except:` may catch it. So from its birth, and again from its end, the lines of that code are traced, and the next
    one, in the `except:` or behind it, raises another.
    """

    def __init__(self):
        self.call = getattr(mine, "call", None)
        self.trace(sys._getframe(1))

    def __del__(self):
        try:
            frame = sys._getframe(1)
        except ValueError:  # nobody called: the program ends
            return
        self.trace(frame)

    def trace(self, frame):
        """Trace the functions that run in this thread, down to those of this file, which called them."""
        if self.call is not None and self.call is getattr(mine, "call", None):
            while frame is not None and frame.f_code.co_filename != __file__:
                frame.f_trace, frame = _stop_line, frame.f_back
            sys.settrace(_stop_line)


def _stop_line(frame, event, arg):
    if frame.f_code.co_filename != __file__ and mine.call is not None:
        raise StopNow


class Nowhere(io.TextIOBase):
    """A file that forgets what is written to it."""

    def write(self, text):
        return len(text)


def describe(error):
    """An error's class and text, cut after 200 characters."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # the class is the reader's, and so may its text be
        text = ""
    text = text if len(text) <= 200 else text[:200] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def call(function, *args, seconds=SECONDS):
    """function(*args), run in a thread of its own with copies of the arguments of NumPy's and Python's usual types.

    A thread can be left alone, which is what makes this end in time on every system, whoever calls. Raises Raises if the
    function raises anything, Hangs if it takes longer than so many seconds. (What hangs inside a single call of C code, as
    sum(range(10**15)) does, keeps all of Python waiting: nobody can end it from here.)
    """
    found, ended = [], threading.Event()
    context = contextvars.copy_context()  # np.seterr and on_cpu change the thread's own

    def run():
        try:
            mine.call = object()
            found.append((context.run(function, *args), None))
        except BaseException as error:
            found.append((None, error))
        finally:
            mine.call = None
            sys.settrace(None)
            ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    except BaseException:  # whoever waits is interrupted
        _stop(thread, ended)
        raise
    if thread.is_alive():
        raise Hangs(seconds, _stop(thread, ended))
    result, error = found[0]
    if error is not None:
        raise Raises(error)
    return result


def _stop(thread, ended):
    """Raise StopNow in a thread until its function ends; says whether it did."""
    for _ in range(int(GRACE / 0.01)):
        if ended.is_set():
            return True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(StopNow))
        ended.wait(0.01)
    return ended.is_set()


@contextmanager
def quiet():
    """Inside, nothing is printed, warned of or logged; afterwards random numbers and settings go on as if nothing had been."""
    numpy_state, python_state, options = np.random.get_state(), random.getstate(), np.get_printoptions()
    limit, disabled = sys.getrecursionlimit(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(Nowhere()), redirect_stderr(Nowhere()):
            yield
    finally:
        logging.disable(disabled)
        sys.setrecursionlimit(limit)
        np.set_printoptions(**options)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def call_with_copies(function, *args):
    """function(*args) by call(), with deep copies; returns what it returns, and whether it left them as they were."""
    copies = copy.deepcopy(args)
    result = call(function, *copies)
    return result, all(map(unchanged, args, copies))


def unchanged(before, after):
    """Whether two arguments hold the same: arrays with NaN in the same places, lists, dicts, plain values."""
    if type(before) is not type(after):
        return False
    if isinstance(before, np.ndarray):
        return before.dtype == after.dtype and before.shape == after.shape and before.tobytes() == after.tobytes()
    if isinstance(before, (list, tuple)):
        return len(before) == len(after) and all(map(unchanged, before, after))
    if isinstance(before, dict):
        return list(before) == list(after) and all(unchanged(before[key], after[key]) for key in before)
    return before == after or before != before
