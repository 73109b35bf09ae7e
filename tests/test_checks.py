"""Checks survive whatever a reader writes, leave nothing changed, and can't be talked into points."""

import logging
import random
import sys
import time
import warnings

import numpy as np
import pytest

from pagefault.checks import block_allocator, naive_cache
from pagefault.checks.base import Score, Wrong, compare, draws, exercise, use_class_seed
from pagefault.checks.running import Hangs, Raises, call
from pagefault.checks.values import number, numbers, show, truth, whole_number, whole_numbers


@exercise()
def doubled(answer):
    """The check that these tests try: 2 * x, of a number or of an array."""
    def right(x):
        return 2 * x

    return [(1, "small", lambda: compare(answer, [(3,), (5,)], right, {"That is the square.": lambda x: x * x})),
            (2, "arrays", lambda: compare(answer, [(np.arange(3.0),)], right, read=numbers))]


def test_a_score_is_a_number_and_a_text():
    score = doubled(lambda x: x * 2 if np.ndim(x) else x * x)
    assert score == 2 and isinstance(score, float) and float(score) == 2.0
    assert str(score) == repr(score) == (
        "2 of 3 points\n  not yet  small\n  right    arrays\n    input:    x = 3\n    expected: 6\n    got:      9\n"
        "    hint:     That is the square.")
    assert all(text in score._repr_html_() for text in ("2 of 3 points", "not yet", "That is the square.", "x = 3"))
    assert "<script>" not in Score([(1, "<script>", Wrong("<script>"))], 1)._repr_html_()


def stub(x):
    """A docstring."""
    ...


class Stub:
    def __init__(self, n):
        self.n = n

    def allocate(self, n):
        """Nothing yet."""

    def free(self, blocks):
        pass


def test_what_was_not_attempted_is_said_to_be_so():
    for blank in (None, ..., stub, [..., ...], {"a": ..., "b": None}, [[...], [...]]):
        assert repr(doubled(blank)) == "not attempted" and doubled(blank) == 0
        assert "Not attempted" in doubled(blank)._repr_html_()
    assert repr(block_allocator.pool(Stub)) == repr(naive_cache.shares(naive_cache.SHARES + "  // hm")) == "not attempted"
    for attempt in (0, [], lambda x: x, lambda x: 5, lambda x: print(x), "", Stub):
        assert doubled(attempt).rows


def endless(x):
    while True:
        pass


def endless_and_stubborn(x):
    while True:
        try:
            while True:
                try:
                    time.sleep(1e-4)
                except Exception:
                    pass
        except:  # noqa: E722
            pass


def keeps_what_it_catches(x, caught=[]):  # noqa: B006
    while True:
        try:
            time.sleep(1e-4)
        except BaseException as error:
            caught.append(error)
        finally:
            try:
                time.sleep(1e-4)
            except:  # noqa: E722
                pass


@pytest.mark.parametrize("hangs", [endless, endless_and_stubborn, keeps_what_it_catches])
def test_what_hangs_is_ended_in_seconds(hangs):
    start = time.perf_counter()
    with pytest.raises(Hangs, match="still running after 0.1 seconds$"):
        call(hangs, 1, seconds=0.1)
    assert time.perf_counter() - start < 5


def test_what_cannot_be_ended_is_left_alone():
    start = time.perf_counter()
    with pytest.raises(Hangs, match="can't be stopped"):
        call(time.sleep, 8, seconds=0.1)
    assert time.perf_counter() - start < 6


def test_a_hanging_answer_is_not_tried_again_and_other_checks_go_on(monkeypatch):
    monkeypatch.setattr("pagefault.checks.running.call.__defaults__", None, raising=False)
    monkeypatch.setattr("pagefault.checks.running.call.__kwdefaults__", {"seconds": 0.1})
    calls = []

    def hangs(x):
        calls.append(x)
        endless(x)

    assert "still running" in str(doubled(hangs)) and calls == [3]
    assert doubled(lambda x: x + x) == 3


class Anything:
    """It equals everything, whoever asks."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1

    def __getattr__(self, name):
        return lambda *args: True


class Meta(type):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash(int)


class SaysItIsAnInt(metaclass=Meta):
    def __int__(self):
        return 6

    item = __int__


class MyInt(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class MyArray(np.ndarray):
    pass


NO_NUMBERS = [Anything(), SaysItIsAnInt(), MyInt(1), True, np.True_, "6", None, float("nan"), np.array([6]), [6], 6 + 0j,
              np.array(6).view(MyArray), np.timedelta64(6, "s"), sys.float_info]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda v: type(v).__name__)
def test_only_a_number_is_a_number(value):
    with pytest.raises(TypeError):
        number(value)
    assert doubled(lambda x: value) == 0


def test_numbers_of_python_and_numpy_are_taken():
    for six in (6, 6.0, np.int8(6), np.float32(6), np.array(6), np.uint64(6)):
        assert number(six) == 6 and type(whole_number(six)) is int
    assert truth(np.True_) is True and whole_numbers((np.int32(2), 3.0)) == [2, 3] == whole_numbers(np.array([2, 3]))
    assert numbers([[1, np.float32(2)], np.array([3, 4])]).tolist() == [[1, 2], [3, 4]]
    for wrong, read in ((1, truth), ("no", truth), ([1, [2]], numbers), ([True], whole_numbers), ([1.5], whole_numbers),
                        (iter([1]), whole_numbers), ({1: 1}, numbers), (2.5, whole_number), (float("inf"), whole_number)):
        with pytest.raises(TypeError):
            read(wrong)


def changes_its_argument(x):
    x *= 2
    return x


def looks_for_the_answer(x):
    frame = sys._getframe()
    while frame:
        for value in (frame.f_locals.get("right"), frame.f_locals.get("expected")):
            if value is not None:
                return value(x) if callable(value) else value
        frame = frame.f_back
    return 0


class Odd(Exception):
    def __str__(self):
        return 1 / 0


ANSWERS = {
    "raises": (lambda x: 1 / 0, "ZeroDivisionError: division by zero"),
    "leaves Python": (lambda x: sys.exit("bye"), "SystemExit: bye"),
    "interrupts": (lambda x: (_ for _ in ()).throw(KeyboardInterrupt()), "KeyboardInterrupt"),
    "recurses": (lambda x: ANSWERS["recurses"][0](x), "RecursionError"),
    "raises what can't be shown": (lambda x: (_ for _ in ()).throw(Odd()), "Odd"),
    "takes no argument": (lambda: 6, "TypeError"), "isn't a function": ("6", "not callable"),
    "is right for the first case": (lambda x: 6, "got:      6"), "looks for the answer": (looks_for_the_answer, "got:      0"),
    "raises at a meeting of types": (lambda x: Anything(), "an Anything"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_goes_wrong_is_reported_and_not_raised(name):
    answer, got = ANSWERS[name]
    score = doubled(answer)
    assert score == 0 and got in str(score)


def test_a_changed_argument_is_wrong():
    score = doubled(changes_its_argument)
    assert score == 1 and "changed arguments" in str(score) and "copy" in str(score)


def test_warnings_prints_and_logs_are_hidden_and_nothing_stays_changed(capfd):
    def noisy(x):
        print("out")
        print("err", file=sys.stderr)
        warnings.warn("careful", stacklevel=1)
        logging.getLogger("noisy").error("log")
        np.random.seed(1), random.seed(1)
        np.seterr(all="raise"), np.set_printoptions(precision=1), sys.setrecursionlimit(5000)
        return x + x + np.log(np.float64(1))

    def state():
        return np.random.get_state()[1].tolist(), random.getstate(), np.geterr(), np.get_printoptions(), sys.getrecursionlimit()

    before = state()
    with warnings.catch_warnings(action="error"):
        assert doubled(noisy) == 3
    assert before == state()
    assert capfd.readouterr() == ("", "") and logging.root.manager.disable == 0


def test_an_answer_that_raises_says_so_to_who_calls_it():
    with pytest.raises(Raises, match="KeyError: 'x'") as caught:
        call({}.__getitem__, "x")
    assert type(caught.value.error) is KeyError


def test_values_are_shown_shortly_and_without_asking_them():
    assert show([1, 2.5, np.float32(0.1), (True, None), "text"]) == "[1, 2.5, 0.1, (True, None), text]"
    assert show(np.arange(100)) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]" and show(1234567) == "1,234,567"
    assert show(Anything()) == "an Anything" and show(np.zeros((2, 3))) == "an array [2, 3] of float64"


def test_the_class_seed_changes_numbers_and_hidden_inputs(monkeypatch, capsys):
    monkeypatch.setattr("pagefault.checks.base._class_seed", [])
    texts, inputs = set(), set()
    for seed in ("", "1", "2", "3"):
        monkeypatch.setenv("PAGEFAULT_CLASS_SEED", seed)
        naive_cache.a_model(), block_allocator.a_table()
        texts.add(capsys.readouterr().out)
        inputs.add(str(block_allocator.tail_waste(lambda seq_lens, block_size: -1)))
    assert len(texts) == len(inputs) == 4
    use_class_seed(1)
    naive_cache.a_model(), block_allocator.a_table()
    assert capsys.readouterr().out in texts
    assert draws("x").randint(1 << 30) == draws("x").randint(1 << 30) != draws("y").randint(1 << 30)
    for wrong in (-1, 2**32, True, "1"):
        with pytest.raises((TypeError, ValueError)):
            use_class_seed(wrong)
