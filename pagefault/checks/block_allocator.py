"""Checks of notebook 2's exercises."""

import copy
from types import SimpleNamespace

import numpy as np

from ..errors import DoubleFree, OutOfBlocks
from .base import Wrong, compare, draws, exercise, is_any, is_blank, same, show, whole_number, whole_numbers
from .running import Raises, call, unchanged


def a_table():
    """Print the table and the tokens of exercise 2.1, and return them."""
    random = draws("2.1")
    size = int(random.choice([4, 5, 8]))
    table = random.choice(np.arange(5, 30), 4, replace=False).tolist()
    tokens = [int(random.randint(1, size)), size * int(random.randint(1, 3)), 3 * size + int(random.randint(1, size))]
    print(f"table {table}, pages of {size}; tokens {', '.join(map(str, tokens))}")
    return SimpleNamespace(table=table, block_size=size, tokens=tokens)


@exercise()
def slots(answer):
    """Exercise 2.1: the slots of three tokens, by hand."""
    t = a_table()
    size = t.block_size

    def part(i, token):
        page, offset = divmod(token, size)

        def slips():
            return {"That is the token's number: the pages don't lie one behind the other from frame 0.": token,
                    "The page is token // block_size; the remainder is the offset.": t.table[token % size % 4] * size + token // size,
                    "That follows the table's first entry only: each page has its own frame.": t.table[0] * size + token,
                    "That is the frame's number: times block_size, plus the offset.": t.table[page],
                    "The offset in the page is missing.": t.table[page] * size,
                    "That is frame + offset: a frame has block_size slots.": t.table[page] + offset,
                    "Tokens and pages are numbered from 0.": t.table[(token - 1) // size] * size + (token - 1) % size}

        def run():
            given = f"token {token}, table {t.table}, pages of {size}"
            if not is_any(answer, (list, tuple, np.ndarray)) or len(answer) != 3:
                raise Wrong(given, "a list of three slots", answer)
            same(answer[i], t.table[page] * size + offset, given, slips, whole_number)
        return 1, f"token {token}", run

    return [part(i, token) for i, token in enumerate(t.tokens)]


@exercise()
def tail_waste(answer):
    """Exercise 2.2: empty slots of some sequences in pages."""
    random = draws("2.2")

    def right(seq_lens, block_size):
        return sum(-n % block_size for n in seq_lens)

    slips = {"A sequence that fills its last page wastes nothing: that page is full, not missing or new.":
             lambda seq_lens, block_size: sum(block_size - n % block_size for n in seq_lens),
             "(B - 1) / 2 is what is empty on average; these lengths are known.": lambda s, b: len(s) * (b - 1) / 2,
             "That is what is empty in one piece of the longest length for each.": lambda s, b: len(s) * max(s) - sum(s),
             "Those are the tokens in the last pages, not the empty slots.": lambda s, b: sum(n % b for n in s),
             "Each sequence has pages of its own: round up for each, not for the sum.": lambda s, b: -sum(s) % b,
             "Those are all slots; the tokens are in some of them.": lambda s, b: sum(-(-n // b) * b for n in s),
             "That is an average: the empty slots of all are asked for.": lambda s, b: right(s, b) / len(s)}

    def lists(size, count, exact):
        return ([int(n) * size if i % 2 or exact else int(n) * size + int(random.randint(1, size))
                 for i, n in enumerate(random.randint(1, 40, count))], size)

    any_length = [(random.randint(1, 300, 7).tolist(), int(b)) for b in random.permutation([1, 4, 7, 16, 64, 256])]
    return [(1, "any lengths, any page size", lambda: compare(answer, any_length, right, slips, whole_number)),
            (1, "lengths that fill their last page", lambda: compare(
                answer, [lists(16, 4, True), lists(5, 5, False), ([16], 16)], right, slips, whole_number))]


@exercise()
def pages_to_grow(answer):
    """Exercise 2.3: frames that a sequence takes when it grows."""
    random = draws("2.3")

    def right(length, n, block_size):
        return -(-(length + n) // block_size) - -(-length // block_size)

    slips = {"Those are all its frames: it has some already.": lambda length, n, b: -(-(length + n) // b),
             "The last page may have room: new tokens go there first.": lambda length, n, b: -(-n // b),
             "Round up, both times: a page that is begun needs its frame.": lambda length, n, b: (length + n) // b - length // b,
             "Round up: a page that is begun needs its frame.": lambda length, n, b: n // b,
             "A page that is just filled needs no frame behind it.": lambda length, n, b: (length + n) // b + 1 - -(-length // b)}
    edges = [(size * k + d, n, size) for size, k, d, n in
             ((4, 1, -1, 1), (4, 1, 0, 1), (16, 2, 0, 16), (16, 3, -1, 2), (16, 0, 0, 1), (8, 1, 1, 7))]
    random.shuffle(edges)
    cases = [(int(random.randint(1, 500)), int(random.randint(17, 300)), int(b)) for b in random.permutation([1, 3, 16, 32])]
    return [(1, "any length", lambda: compare(answer, cases, right, slips, whole_number)),
            (1, "around the end of a page", lambda: compare(answer, edges, right, slips, whole_number))]


def pool_is_blank(Pool):
    return is_blank(Pool) or isinstance(Pool, type) and all(is_blank(vars(Pool).get(name)) for name in ("allocate", "free"))


@exercise(blank=pool_is_blank)
def pool(Pool):
    """Exercise 2.4: a pool that hands out frames, all or none, and refuses what nobody has."""
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

    def a_day():
        random, play = draws("2.4"), make(24)
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
            raise self.wrong(f"{n} frames, since {self.num_free} are free", str(error), "A call that failed took or lost frames."
                             if "refused" in str(self.story) or len(self.story) > 2 else None) from None
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
                raise self.wrong("pf.OutOfBlocks", str(error), f"{n} were asked for, {self.num_free} are free: raise it first.") from None
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
                    raise Wrong(given, "nothing changed", "another table, counts or free list", "A call that fails changes nothing.") from None
                return
            raise Wrong(given, "pf.OutOfBlocks", got, "No frame is free, and one is needed: a copy needs one too.")
        got = call(answer, *theirs)
        pair = None if got is None or is_any(got, (list, tuple)) and not len(got) else whole_numbers(got)
        if pair != (None if expected is None else list(expected)):
            full = num_tokens == len(table) * size
            raise Wrong(given, "None: nothing to copy" if expected is None else f"copy {expected}", "None" if pair is None else pair,
                        "A full page is never written again: take a new frame, copy nothing." if full else
                        "Others have the last page too, and it has room: it must be copied, from there to the new frame."
                        if expected else "The last page is this table's own.")
        names = "table", "num_tokens", "counts", "free"
        for name, want, have in zip(names, mine, theirs):
            if not unchanged(want, have) and not (name == "counts" and want == {b: c for b, c in have.items() if c}):
                raise Wrong(given, f"{name} = {show(want)}", f"{name} = {show(have)}", hint if name != "free" else
                            "A frame that is taken is free no longer: free.pop().")

    lowered = "This table leaves the shared frame: one fewer has it. The new frame has a count of 1, in the same place of the table."
    return [(1, "the last page has room, and is its own", part(
                [state(6, 4, False, 3), state(17, 16, False, 0)], "Nothing changes but the number of tokens, which the caller counts.")),
            (1, "the last page is full, shared or not", part(
                [state(8, 4, True, 3), state(16, 16, False, 2)], "A new frame at the end of the table, with a count of 1; the others keep theirs.")),
            (1, "the last page has room, and is shared", part([state(6, 4, True, 3), state(1, 4, True, 1), state(19, 16, True, 2)], lowered)),
            (1, "no frame is free", part([state(8, 4, False, 0), state(7, 4, True, 0), state(5, 4, False, 0)], lowered))]


def right_pages(tokens, cached, block_size, key):
    found, parent, before = [], 0, None
    for start in range(0, len(tokens) - block_size + 1, block_size):
        page = tuple(tokens[start : start + block_size])
        parent = key(parent, page)
        entry = cached.get(parent)
        if entry is None or entry[1:] != (page, before):
            break
        found.append(entry[0])
        before = entry[0]
    return found


def good_key(parent, page):
    return hash((parent, page))


def weak_key(parent, page):
    """A key that many pages have."""
    return (parent + sum(page)) % 5 + 1


@exercise()
def find_pages(answer):
    """Exercise 2.6: pages of a prompt that are cached, found by keys that depend on all before."""
    random = draws("2.6")

    def cache_of(prompts, size, key):
        """A cache of the full pages of some prompts; of pages with one key the first stays."""
        cached, blocks = {}, iter(random.permutation(90).tolist())
        for tokens in prompts:
            parent, before = 0, None
            for start in range(0, len(tokens) - size + 1, size):
                page = tuple(tokens[start : start + size])
                parent = key(parent, page)
                entry = cached.setdefault(parent, (next(blocks), page, before))
                if entry[1:] != (page, before):
                    break
                before = entry[0]
        return cached

    def words(n):
        return random.randint(100, 900, n).tolist()

    def slips(alone, trusting, skipping):
        return {"A page's key depends on the key of the page before it, and so on to the first.": alone,
                "A key is only a hint: compare the page's tokens, and the block before it.": trusting,
                "What lies behind a page that isn't cached can't be used: stop there.": skipping}

    def alone(tokens, cached, size, key):
        return [cached[k][0] for i in range(0, len(tokens) - size + 1, size)
                if (k := key(0, tuple(tokens[i : i + size]))) in cached]

    def trusting(tokens, cached, size, key):
        found, parent = [], 0
        for i in range(0, len(tokens) - size + 1, size):
            parent = key(parent, tuple(tokens[i : i + size]))
            if parent not in cached:
                break
            found.append(cached[parent][0])
        return found

    def skipping(tokens, cached, size, key):
        found, parent = [], 0
        for i in range(0, len(tokens) - size + 1, size):
            parent = key(parent, tuple(tokens[i : i + size]))
            found += [cached[parent][0]] if parent in cached else []
        return found

    def part(cases, hint):
        def run():
            try:
                compare(answer, cases, right_pages, slips(alone, trusting, skipping), whole_numbers)
            except Wrong as wrong:
                wrong.hint = wrong.hint or hint
                raise
        return run

    system, first, second = words(8), words(9), words(6)
    cached = cache_of([system + first, system + second], 4, good_key)
    holes = {k: v for k, v in cached.items() if v[1] != tuple(system[4:8])}  # as if that page had been evicted
    tail = system + first[:2]
    with_tail = cached | {good_key(good_key(good_key(0, tuple(system[:4])), tuple(system[4:])), tuple(first[:2])): (95, tuple(first[:2]), 0)}
    plain = [(system + first, cached, 4, good_key), (system + words(5), cached, 4, good_key), (words(9), cached, 4, good_key),
             (system[:8], cached, 4, good_key), ([], cached, 4, good_key)]
    order = [(first + system, cached, 4, good_key), (first[:4] + system[4:8] + first, cached, 4, good_key),
             (system + first, holes, 4, good_key), (system[4:] + system[:4], cached, 4, good_key)]
    partial = [(tail, with_tail, 4, good_key), (system[:3], cached, 4, good_key)]
    one, other = [1, 2, 3], [3, 2, 1]  # as sums they are the same
    weak = cache_of([one + [4, 5, 6], words(9)], 3, weak_key)
    collisions = [(one + [4, 5, 6, 7], weak, 3, weak_key), (other + [4, 5, 6, 7], weak, 3, weak_key), (one + [6, 5, 4], weak, 3, weak_key),
                  ([2, 3, 1] + [4, 5, 6], weak, 3, weak_key)]
    before = {weak_key(0, (1, 2, 3)): (40, (1, 2, 3), None), weak_key(weak_key(0, (1, 2, 3)), (4, 5, 6)): (41, (4, 5, 6), 7)}
    collisions.append((one + [4, 5, 6], before, 3, weak_key))
    return [(1, "as many pages as are cached in a row", part(plain, "The block of each full page, in order, until one isn't cached.")),
            (1, "the same page after other pages", part(order, "What lies behind a page that isn't cached can't be used.")),
            (1, "a page that isn't full", part(partial, "Only full pages have a key.")),
            (1, "keys that collide", part(collisions, "A key is only a hint: compare the page's tokens, and the block before it."))]
