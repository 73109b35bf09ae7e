"""Checks of a pool of frames, and of copy on write: exercises 2.2 and 2.5."""

import copy

from ..errors import DoubleFree, OutOfBlocks
from .base import Wrong, draws, exercise
from .running import Raises, call, unchanged
from .values import is_any, is_blank, show, whole_numbers


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
        play.free(0), play.allocate(2), play.allocate(1)

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
        play.free(0)
        play.not_freed([a], "it was given back before")
        play.allocate(5)
        play.not_freed([-1], "there is no frame -1")  # which Python takes for the last one, and that is taken

    def a_day():
        random, play = draws("2.2"), make(24)
        for _ in range(60):
            n = int(random.randint(1, 8))
            if play.taken and random.randint(2):
                play.free(int(random.randint(len(play.taken))))
            elif n <= play.num_free:
                play.allocate(n)
            else:
                play.refused(n)

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
            lost = "A call that was refused changed something." if "refused" in str(self.story) else "What came back is free again."
            raise self.wrong(f"{n} frames, since {self.num_free} are free", str(error), lost) from None
        try:
            blocks = whole_numbers(got)
        except TypeError as error:
            raise self.wrong(f"a list of {n} frames", got, str(error)) from None
        there = {block for blocks in self.taken for block in blocks}
        if len(blocks) != n:
            raise self.wrong(f"{n} frames", got, "[-0:] is the whole list." if n == 0 else None)
        if len({*blocks} - there) < n or not all(0 <= block < self.num_blocks for block in blocks):
            raise self.wrong(f"{n} frames that nobody has, from 0 to {self.num_blocks - 1}", got, "Two would have the same frame.")
        self.taken.append(blocks)

    def free(self, i):
        try:
            self.do("free", self.taken[i])
        except Raises as error:
            raise self.wrong("they are free again", str(error), "These were handed out, and nobody gave them back yet.") from None
        del self.taken[i]

    def refused(self, n):
        try:
            got = self.do("allocate", n)
        except Raises as error:
            if type(error.error) is not OutOfBlocks:
                raise self.wrong("pf.OutOfBlocks", str(error), f"{n} asked for, {self.num_free} free: raise it first.") from None
            self.story[-1] += " refused"
            return
        raise self.wrong(f"pf.OutOfBlocks, since only {self.num_free} are free", got, "All or nothing: hand out none.")

    def not_freed(self, blocks, why):
        try:
            self.do("free", blocks)
        except Raises as error:
            if type(error.error) is not DoubleFree:
                raise self.wrong(f"pf.DoubleFree: {why}", str(error), "Look before you change anything, and raise it.") from None
            self.story[-1] += " refused"
            return
        raise self.wrong(f"pf.DoubleFree: {why}", "no error", "Two would get that frame later on.")


def right_append(table, num_tokens, counts, free, block_size):
    """What exercise 2.5 asks for; also says which frame is new, None if none is."""
    full = num_tokens == len(table) * block_size
    if not full and counts[table[-1]] == 1:
        return None
    if not free:
        raise OutOfBlocks
    new, copies = free.pop(), None
    counts[new] = 1
    if full:
        table.append(new)
    else:
        counts[table[-1]] -= 1
        table[-1], copies = new, (table[-1], new)
    return copies


@exercise()
def append(answer):
    """Exercise 2.5: one more token after a fork: table, counts, copies."""
    random = draws("2.5")

    def state(num_tokens, size, shared, num_free):
        frames = random.permutation(30).tolist()
        table, free = frames[: -(-num_tokens // size)], frames[20 : 20 + num_free]
        counts = {block: 1 for block in (*table, *frames[14:17])}
        counts.update({block: int(random.randint(2, 5)) for block in table[: len(table) if shared else -1 or None]})
        return table, num_tokens, counts, free, size

    def part(states, hint):
        def run():
            for before in states:
                one(before, hint)
        return run

    def one(before, hint):
        mine, theirs = copy.deepcopy(before), copy.deepcopy(before)
        table, num_tokens, counts, free, size = before
        given = (f"table = {table}, num_tokens = {num_tokens}, counts = {show({b: counts[b] for b in table})}, "
                 f"free = {free}, block_size = {size}")
        try:
            expected = right_append(*mine)
        except OutOfBlocks:
            try:
                got = call(answer, *theirs)
            except Raises as error:
                if type(error.error) is not OutOfBlocks:
                    raise Wrong(given, "pf.OutOfBlocks", str(error), "No frame is free, and one is needed.") from None
                if not unchanged(before, theirs):
                    raise Wrong(given, "nothing changed", "changed lists", "A call that fails changes nothing.") from None
                return
            raise Wrong(given, "pf.OutOfBlocks", got, "No frame is free, and one is needed: a copy needs one too.") from None
        got = call(answer, *theirs)
        if is_any(got, (list, tuple)) and not len(got):
            raise Wrong(given, "None" if expected is None else list(expected), got, "One pair, or None: not a list of pairs.")
        pair = None if got is None else whole_numbers(got)
        if pair != (None if expected is None else list(expected)):
            full = num_tokens == len(table) * size
            raise Wrong(given, "None, nothing to copy" if expected is None else list(expected), "None" if pair is None else pair,
                        "A full page is never written again: take a new frame, copy nothing." if full else
                        "Others have the last page too, and it has room: it must be copied, from there to the new frame."
                        if expected else "The last page is this table's own.")
        names = "table", "num_tokens", "counts", "free"
        for name, want, have in zip(names, mine, theirs):
            if not unchanged(want, have) and not (name == "counts" and want == {b: c for b, c in have.items() if c}):
                raise Wrong(given, f"{name} = {show(want)}", f"{name} = {show(have)}", hint if name != "free" else
                            "A frame that is taken is free no longer: free.pop().")

    grown = "A new frame at the end of the table, with a count of 1; the others keep theirs."
    lowered = "This table leaves the shared frame: one fewer has it. The new frame stands in its place, with a count of 1."
    return [(1, "the last page has room, and is its own", part(
                [state(6, 4, False, 3), state(17, 16, False, 0)], "Nothing changes; the caller counts the tokens.")),
            (1, "the last page is full, shared or not", part([state(8, 4, True, 3), state(16, 16, False, 2)], grown)),
            (1, "the last page has room, and is shared", part(
                [state(6, 4, True, 3), state(1, 4, True, 1), state(19, 16, True, 2)], lowered)),
            (1, "no frame is free", part([state(8, 4, False, 0), state(7, 4, True, 0), state(5, 4, False, 0)], lowered))]
