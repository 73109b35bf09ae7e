"""The check of copy on write: exercise 2.5."""

import copy

from ..errors import OutOfBlocks
from .base import Wrong, draws, exercise
from .running import Raises, call, unchanged
from .values import show, whole_numbers

FROM_THE_END = "Frames are taken from the end of the free list: free.pop()."


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


def changed(given, wanted, found, hint):
    """Raise a Wrong for the first of the arguments that isn't as it should be; of counts, for the entries that aren't."""
    for name, want, have in zip(("table", "num_tokens", "counts", "free"), wanted, found):
        if name == "counts":
            keys = [b for b in {**want, **have} if want.get(b, 0) != have.get(b, 0)]
            want, have = ({b: counts[b] for b in keys if b in counts} for counts in (want, have))
        if not unchanged(want, have):
            if name == "free" and len(have) > len(want):
                hint = "A frame that is taken is free no longer: free.pop()."
            raise Wrong(given, *(f"in counts: {show(x) if x else 'nothing'}" if name == "counts" else f"{name} = {show(x)}"
                                 for x in (want, have)), hint)


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
        last, full = table[-1], num_tokens == len(table) * size
        given = f"table = {table}, num_tokens = {num_tokens}, counts[{last}] = {counts[last]}, free = {free}, block_size = {size}"
        try:
            expected = right_append(*mine)
        except OutOfBlocks:
            try:
                got = call(answer, *theirs)
            except Raises as error:
                if type(error.error) is not OutOfBlocks:
                    raise Wrong(given, "pf.OutOfBlocks", str(error), "No frame is free, and one is needed.") from None
                changed(given, before, theirs, "A call that fails changes nothing.")
                return
            returned = got is OutOfBlocks or type(got) is OutOfBlocks
            raise Wrong(given, "pf.OutOfBlocks", got, "Raise it: raise, not return." if returned else
                        "No frame is free, and one is needed: a copy needs one too.") from None
        wanted = "None, nothing to copy" if expected is None else expected
        try:
            got = call(answer, *theirs)
        except Raises as error:
            kind, needed = type(error.error), free and mine[3] != free
            raise Wrong(given, wanted, str(error), "counts has no entry for a free frame: give the new one its count, 1."
                        if kind is KeyError and str(error.error) in map(str, free) else
                        f"counts goes by the number of a frame: the last page's is {last}." if kind is KeyError else
                        "No frame is needed: the last page has room, and nobody else has it." if kind in (OutOfBlocks, IndexError)
                        and not needed else "The last page is full, and the table has no entry behind it yet: append one."
                        if kind is IndexError and full else None) from None
        try:
            pair = None if got is None else whole_numbers(got)
        except TypeError:
            pair = []
        if pair is not None and len(pair) != 2:
            raise Wrong(given, wanted, got, "One pair, (from, to), or None; not a list of pairs.")
        if pair != (None if expected is None else list(expected)):
            raise Wrong(given, wanted, "None" if pair is None else pair, FROM_THE_END if pair == [last, free[0]] and expected else
                        "The pair is (from, to)." if expected and pair == list(expected)[::-1] else
                        "A full page is never written again: take a new frame, copy nothing." if full else
                        "Others have the last page too, and it has room: it must be copied, from there to the new frame."
                        if expected else "The last page is this table's own.")
        if free and free[0] in theirs[0] and free[0] not in mine[0]:
            hint = FROM_THE_END
        elif mine[0] != table and theirs[0] == table:
            hint = f"table itself must change: {'table.append(...)' if full else 'table[-1] = ...'}, not a new list."
        changed(given, mine, theirs, hint)

    grown = "A new frame at the end of the table, with a count of 1; the others keep theirs."
    lowered = "This table leaves the shared frame: one fewer has it. The new frame stands in its place, with a count of 1."
    return [(1, "the last page has room, and is its own", part(
                [state(6, 4, False, 3), state(17, 16, False, 0)], "Nothing changes; the caller counts the tokens.")),
            (1, "the last page is full, shared or not", part([state(8, 4, True, 3), state(16, 16, False, 2)], grown)),
            (1, "the last page has room, and is shared", part(
                [state(6, 4, True, 3), state(1, 4, True, 1), state(19, 16, True, 2)], lowered)),
            (1, "no frame is free", part([state(8, 4, False, 0), state(7, 4, True, 0), state(5, 4, False, 0)], lowered))]
