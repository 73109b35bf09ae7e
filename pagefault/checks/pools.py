"""The check of a pool of frames: exercise 2.2."""

import copy

from ..errors import DoubleFree, OutOfBlocks
from .base import Wrong, draws, exercise
from .running import Raises, call
from .values import count, is_any, is_blank, show, whole_numbers

REFUSED = "A call that was refused changed something."
PARTS = "Any frames may be given back that somebody has: a part of what was handed out together, or more than that."
NOT_THE_LIST = "free() gets a list: its frames go back, and not the list."
USUAL = IndexError, KeyError, ValueError, OutOfBlocks, DoubleFree, RuntimeError, AssertionError


def pool_is_blank(Pool):
    return is_blank(Pool) or isinstance(Pool, type) and all(is_blank(getattr(Pool, name, None)) for name in ("allocate", "free"))


@exercise(blank=pool_is_blank)
def pool(Pool):
    """Exercise 2.2: a pool that hands out frames, all or none, and refuses what nobody has."""
    def make(num_blocks):
        return Play(Pool, num_blocks)

    def hands_out():
        play = make(6)
        play.allocate(2), play.allocate(0), play.allocate(3)
        play.free(play.taken[0]), play.allocate(2), play.allocate(1)
        play.free([play.taken[0][1]]), play.free([play.taken[1][1], play.taken[0][0]]), play.allocate(3)

    def all_or_nothing():
        play = make(4)
        play.allocate(3), play.refused(2), play.refused(5), play.allocate(1), play.refused(1)

    def no_double_free():
        play = make(5)
        play.allocate(3)
        a, b, c = play.taken[0]
        play.not_freed([a, b, a], "a frame is named twice")
        play.not_freed([b, next(x for x in range(5) if x not in (a, b, c))], "nobody has the second one")
        play.not_freed([c, 5], "there is no frame 5")
        play.not_freed([-1], "there is no frame -1")
        play.free(play.taken[0])
        play.not_freed([a], "it was given back before")
        play.allocate(5)
        play.not_freed([-1], "there is no frame -1")  # which Python takes for the last one, and that is taken

    def a_day():
        random, play = draws("2.2"), make(24)
        for _ in range(60):
            n = int(random.randint(1, 8))
            if play.taken and random.randint(2):
                some = play.taken[random.randint(len(play.taken))]
                play.free(random.permutation(sum(play.taken, []))[:n].tolist() if random.randint(2) else some)
            elif n <= play.num_free:
                play.allocate(n)
            else:
                play.refused(n)
        play.refused(play.num_free + 1), play.allocate(play.num_free)

    return [(1, "hands out frames, and takes them back", hands_out), (1, "all or nothing", all_or_nothing),
            (1, "refuses what nobody has", no_double_free), (1, "sixty calls in a row", a_day)]


class Play:
    """Calls a reader's pool and knows who has which frame; raises Wrong. What was done so far is the case's input."""

    def __init__(self, Pool, num_blocks):
        self.num_blocks, self.taken, self.story = num_blocks, [], [f"Pool({num_blocks})"]
        self.pool = call(Pool, num_blocks)

    @property
    def num_free(self):
        return self.num_blocks - sum(map(len, self.taken))

    def do(self, name, argument):
        self.story.append(f"{name}({show(argument)})")
        return call(lambda: getattr(self.pool, name)(copy.copy(argument)))

    def wrong(self, expected, got, hint):
        return Wrong("; ".join(self.story[:1] + ["..."] * (len(self.story) > 7) + self.story[1:][-6:]), expected, got, hint)

    def allocate(self, n):
        try:
            got = self.do("allocate", n)
        except Raises as error:
            raise self.wrong(f"{count(n, 'frame')}, since {self.are_free()}", str(error), self.why_refused(n, error)) from None
        try:
            blocks = whole_numbers(got)
        except TypeError as error:
            raise self.wrong(f"a list of {count(n, 'frame')}", got, NOT_THE_LIST
                             if is_any(got, (list, tuple)) and any(is_any(x, (list, tuple)) for x in got) else str(error)) from None
        there = {block for blocks in self.taken for block in blocks}
        if len(blocks) != n:
            raise self.wrong(f"a list of {count(n, 'frame')}", got, "[-0:] is the whole list." if n == 0 else
                             f"{n} asked for, {len(blocks)} handed out.")
        hint = ("It names a frame twice." if len({*blocks}) < n else "Two would have the same frame." if there & {*blocks} else
                f"The frames of this pool are 0 to {self.num_blocks - 1}.")
        if len({*blocks} - there) < n or not all(0 <= block < self.num_blocks for block in blocks):
            raise self.wrong(f"{count(n, 'frame')} that nobody has, from 0 to {self.num_blocks - 1}", got, hint)
        self.taken.append(blocks)

    def are_free(self):
        return f"{self.num_free} {'is' if self.num_free == 1 else 'are'} free"

    def why_refused(self, n, error):
        """The likely reason of an error where frames were free."""
        if type(error.error) is TypeError and "'list'" in str(error) and "free(" in str(self.story):
            return NOT_THE_LIST
        if type(error.error) not in (OutOfBlocks, IndexError):  # IndexError: of pop(), when its list is empty
            return None
        return ("0 frames can always be had." if n == 0 else REFUSED if "refused" in str(self.story) else
                "All that are free may be handed out: refuse more than that." if n == self.num_free else
                "What came back is free again." if "free(" in str(self.story) else None)

    def free(self, blocks):
        try:
            self.do("free", blocks)
        except Raises as error:
            raise self.wrong("they are free again", str(error), None if type(error.error) not in USUAL else REFUSED
                             if "refused" in str(self.story) else PARTS if blocks not in self.taken else None
                             if type(error.error) is not DoubleFree else "These were handed out, and nobody gave them back yet: "
                             "does allocate write down that somebody has them?") from None
        self.taken = [left for mine in self.taken if (left := [block for block in mine if block not in blocks])]

    def refused(self, n):
        try:
            got = self.do("allocate", n)
        except Raises as error:
            if type(error.error) is not OutOfBlocks:
                raise self.wrong("pf.OutOfBlocks", str(error), f"{n} asked for, {self.num_free} free: raise it first."
                                 if type(error.error) in USUAL else None) from None
            self.story[-1] += " refused"
            return
        raise self.wrong(f"pf.OutOfBlocks, since only {self.are_free()}", got, "All or nothing: hand out none."
                         if is_any(got, (list, tuple)) and len(got) else "Raise it: raise pf.OutOfBlocks(...). What is returned "
                         "looks as if all were well.")

    def not_freed(self, blocks, why):
        try:
            got = self.do("free", blocks)
        except Raises as error:
            if type(error.error) is not DoubleFree:
                raise self.wrong(f"pf.DoubleFree: {why}", str(error), "That is another error: look first whether somebody has each "
                                 "of them, and raise pf.DoubleFree." if type(error.error) in USUAL else None) from None
            self.story[-1] += " refused"
            return
        raise self.wrong(f"pf.DoubleFree: {why}", "no error" if got is None else got,
                         "Raise it: raise, not return." if got is DoubleFree or type(got) is DoubleFree else
                         "Somebody would get a frame that isn't there." if "there is no" in why else
                         "Two would get that frame later on.")
