"""Notebook 2's checks take right answers, in whatever words, and say what is wrong with the others."""

import pytest
from graded import assert_right, assert_wrong, table

import pagefault as pf
from pagefault.checks import block_allocator as checks
from pagefault.checks.copies import right_append
from pagefault.checks.prefixes import right_pages


def ceil(a, b):
    return -(-a // b)


def goes_on(after):
    """A search for pages that goes on after a page that isn't cached, after a collision, or takes any first page."""
    def find(tokens, cached, size, key):
        frames, parent, before = [], 0, None
        for start in range(0, len(tokens) - size + 1, size):
            page = tuple(tokens[start : start + size])
            parent = key(parent, page)
            if parent not in cached:
                if after == "a gap":
                    continue
                break
            frame, its_page, behind = cached[parent]
            if its_page != page or (behind != before and not (after == "nothing" and before is None)):
                if after == "a collision":
                    continue
                break
            frames.append(frame)
            before = frame
        return frames
    return find


def sorts_its_argument(seq_lens, block_size):
    seq_lens.sort()
    return pf.paged_memory(seq_lens, block_size).wasted


class MyPool:
    def __init__(self, num_blocks):
        self.free_blocks, self.taken = list(range(num_blocks)), set()

    def allocate(self, n):
        if n > len(self.free_blocks):
            raise pf.OutOfBlocks("no")
        return self.take(n)

    def take(self, n):
        blocks = [self.free_blocks.pop() for _ in range(n)]
        self.taken |= set(blocks)
        return blocks

    def free(self, blocks):
        if len(set(blocks)) < len(blocks) or not set(blocks) <= self.taken:
            raise pf.DoubleFree("no")
        self.give_back(blocks)

    def give_back(self, blocks):
        self.taken -= set(blocks)
        self.free_blocks += blocks


class FromTheEnd:
    """It looks frames up in a list, and there number -1 is the last one."""

    def __init__(self, num_blocks):
        self.have = [False] * num_blocks

    def allocate(self, n):
        free = [block for block, have in enumerate(self.have) if not have]
        if n > len(free):
            raise pf.OutOfBlocks("no")
        for block in free[:n]:
            self.have[block] = True
        return free[:n]

    def free(self, blocks):
        for block in blocks:
            if block >= len(self.have) or not self.have[block] or blocks.count(block) > 1:
                raise pf.DoubleFree("no")
        for block in blocks:
            self.have[block] = False


class Adapter:
    """Another right one: the module's pool."""

    def __init__(self, num_blocks):
        self.pool = pf.BlockPool(num_blocks, 16)

    def allocate(self, n):
        return tuple(self.pool.allocate(n))

    def free(self, blocks):
        try:
            self.pool.free(blocks)
        except ValueError as error:  # a frame that doesn't exist
            raise pf.DoubleFree(str(error)) from None


def spoilt(**methods):
    return type("Spoilt", (MyPool,), methods)


def partial_pop(self, n):
    blocks = [self.free_blocks.pop() for _ in range(min(n, len(self.free_blocks)))]
    if len(blocks) < n:
        raise pf.OutOfBlocks("no")
    self.taken |= set(blocks)
    return blocks


def slice_from_the_end(self, n):
    if n > len(self.free_blocks):
        raise pf.OutOfBlocks("no")
    blocks = self.free_blocks[-n:]
    del self.free_blocks[-n:]
    self.taken |= set(blocks)
    return blocks


def frees_until_it_fails(self, blocks):
    for block in blocks:
        if block not in self.taken:
            raise pf.DoubleFree("no")
        self.give_back([block])


def refuse():
    raise pf.OutOfBlocks("no")


def takes_back_only_what_it_gave(self, blocks):
    if blocks not in self.given:
        raise pf.DoubleFree("no")
    self.given.remove(blocks)
    self.give_back(blocks)


def notes_what_it_gives(self, n):
    blocks = MyPool.allocate(self, n)
    self.given = [*getattr(self, "given", []), blocks.copy()]
    return blocks


def with_remove(self, blocks):
    for block in blocks:
        self.taken.remove(block)
    self.free_blocks += blocks


def looks_without_counting(self, blocks):
    if not all(block in self.taken for block in blocks):
        raise pf.DoubleFree("no")
    self.taken -= set(blocks)
    self.free_blocks += blocks


def appended(copy_full=False, shared_tail=False, lower=True, count=True, replace=True, empty=pf.OutOfBlocks, early=False,
             take=True, at=-1):
    def append(table, num_tokens, counts, free, block_size):
        full = num_tokens % block_size == 0
        if not full and (counts[table[-1]] == 1 or shared_tail):
            return None
        last = table[-1]
        if early and not full:
            counts[last] -= 1
        if not free:
            raise empty("no")
        new = free.pop(at) if take else free[-1]
        if count:
            counts[new] = 1
        if full:
            table.append(new)
            return (last, new) if copy_full else None
        if lower and not early:
            counts[last] -= 1
        if replace:
            table[-1] = new
        else:
            table.append(new)
        return last, new
    return append


def adds_to_a_count(table, num_tokens, counts, free, block_size):
    if num_tokens % block_size == 0 and free:
        counts[free[-1]] += 1
    return right_append(table, num_tokens, counts, free, block_size)


def found(parent_of=lambda parent, key: key, full=True, compared=2, stops=True, of=0):
    def find(tokens, cached, block_size, key):
        blocks, parent, before = [], 0, None
        for start in range(0, len(tokens) - (block_size - 1 if full else 0), block_size):
            page = tuple(tokens[start:start + block_size])
            parent = key(parent_of(0, parent), page)
            entry = cached.get(parent)
            if entry is None or entry[1:1 + compared] != (page, before)[:compared]:
                if stops:
                    break
                continue
            blocks.append(entry[of] if of == 0 else parent)
            before = entry[0]
        return blocks
    return find


def starts_again_behind_a_gap(tokens, cached, size, key):
    blocks, parent, before = [], 0, None
    for start in range(0, len(tokens) - size + 1, size):
        page = tuple(tokens[start:start + size])
        entry = cached.get(key(parent, page))
        if entry is None or entry[1:] != (page, before):
            continue
        parent, before = key(parent, page), entry[0]
        blocks.append(before)
    return blocks


def with_lists(tokens, cached, size, key):
    page = tokens[:size]
    entry = cached.get(key(0, tuple(page)))
    return [entry[0]] if entry and entry[1] == page else []


def never_compares_tokens(tokens, cached, size, key):
    blocks, parent, before = [], 0, None
    for start in range(0, len(tokens) - size + 1, size):
        parent = key(parent, tuple(tokens[start:start + size]))
        if cached.get(parent, (0, 0, -1))[2] != before:
            break
        before = cached[parent][0]
        blocks.append(before)
    return blocks


RIGHT = {
    "tail_waste": [lambda seq_lens, block_size: pf.paged_memory(seq_lens, block_size).wasted,
                   lambda seq_lens, block_size: float(sum(-n % block_size for n in seq_lens))],
    "pages_to_grow": [lambda length, n, size: ceil(length + n, size) - ceil(length, size),
                      lambda length, n, size: sum(token % size == 0 for token in range(length, length + n))],
    "pool": [MyPool, Adapter], "append": [appended(), right_append], "find_pages": [found(), right_pages],
}
WRONG = {
    "tail_waste": [
        (lambda s, b: sum(b - n % b for n in s), 0, "wastes nothing"), (lambda s, b: len(s) * (b - 1) / 2, 0, "on average"),
        (lambda s, b: len(s) * max(s) - sum(s), 0, "in one piece"), (lambda s, b: sum(n % b for n in s), 0, "not the empty slots"),
        (lambda s, b: -sum(s) % b, 0, "pages of its own"), (sorts_its_argument, 0, "changed arguments"),
        (lambda s, b: sum(-n % b for n in s) / len(s), 0, "the empty slots of all"), (lambda s, b: 42, 0, "got:      42"),
        (lambda s, b: None if min(s) < 0 else str(sum(-n % b for n in s)), 0, "a str"),
        (lambda s, b: [-n % b for n in s], 0, "their sum"), (lambda s, b: sum(ceil(n, b) for n in s), 0, "those are pages"),
        (lambda s, b: sum(b - n for n in s), 0, "more than one page"), (lambda s, b: -s[0] % b, 0, "return in the loop"),
        (lambda s, b: sum(max(0, b - n) for n in s), 0, "only the last one has"), (lambda s, b: -s[-1] % b, 0, "add them up"),
        (lambda s, b: sum(-n % 16 for n in s), 0, "not always 16"), (lambda s, b: sum(n % -b for n in s), 0, "slots minus tokens"),
        (lambda s, b: sum(b - 1 - n % b for n in s), 0, "block_size - 1"),
        (lambda s, b: 1 - pf.paged_memory(s, b).utilization, 0, "no share"), (lambda s, b: [[1], 2], 0, "different lengths"),
    ],
    "pages_to_grow": [
        (lambda length, n, b: ceil(length + n, b), 0, "has some already"), (lambda length, n, b: ceil(n, b), 0, "may have room"),
        (lambda length, n, b: (length + n) // b - length // b, 0, "both times|round up"),
        (lambda length, n, b: n // b, 0, "round up"),
        (lambda length, n, b: (length + n) // b + 1 - ceil(length, b), 0, "just filled"), (lambda length, n, b: n / b, 0, "got"),
        (lambda length, n, b: 1, 0, "got:      1"), (lambda length, n, b: ceil(length % b + n, b), 0, "has its frame already"),
        (lambda length, n, b: ceil(n - (b - length % b), b), 0, "full has no room"),
        (lambda length, n, b: ceil(length + n, b) - ceil(length, b) + 1, 0, "one too many"),
        (lambda length, n, b: (ceil(length + n, b) - ceil(length, b)) * b, 0, "those are slots"),
        (lambda length, n, b: ceil(length, b), 0, "has before"),
        (lambda length, n, b: (length + n) // b > length // b, 0, "a bool"),
        (lambda length, n, b: 1 if (length + n) // b > length // b else 0, 0, "more than a page"),
    ],
    "pool": [
        (spoilt(allocate=partial_pop), 2, "refused changed something"), (spoilt(allocate=slice_from_the_end), 3, "whole list"),
        (spoilt(free=MyPool.give_back), 3, "no error.*two would get"), (FromTheEnd, 3, "no error"),
        (spoilt(free=frees_until_it_fails), 3, "refused changed something"),
        (spoilt(free=looks_without_counting), 3, "named twice"), (spoilt(allocate=MyPool.take), 2, "IndexError.*raise it first"),
        (spoilt(allocate=lambda self, n: list(range(n))), 0, "same frame"),
        (spoilt(allocate=lambda self, n: MyPool.allocate(self, n)[0]), 0, "list of whole numbers"),
        (spoilt(free=lambda self, blocks: None), 1, "came back is free again"),
        (spoilt(allocate=lambda self, n: [self.free_blocks.pop() for _ in range(n)]), 0, "write down that somebody has them"),
        (spoilt(allocate=lambda self, n: MyPool.take(self, n) if n < len(self.free_blocks) else refuse()), 0, "refuse more than"),
        (spoilt(allocate=lambda self, n: MyPool.allocate(self, n) if n else refuse()), 3, "0 frames can always"),
        (spoilt(allocate=lambda self, n: [b + 1 for b in MyPool.allocate(self, n)]), 0, "of this pool are 0 to 5"),
        (spoilt(allocate=lambda self, n: MyPool.take(self, n) if n <= len(self.free_blocks) else pf.OutOfBlocks), 2, "raise it"),
        (spoilt(allocate=lambda self, n: MyPool.allocate(self, max(1, n))), 3, "got"),
        (spoilt(allocate=lambda self, n: pool.allocate(n)), 0, "NameError[^\n]*$"),  # noqa: F821 (that is the slip)
        (spoilt(allocate=notes_what_it_gives, free=takes_back_only_what_it_gave), 2, "a part of what was handed out together"),
        (spoilt(free=with_remove), 3, "KeyError.*another error: look first"),
        (spoilt(free=lambda self, blocks: self.free_blocks.append(blocks)), 1, "frames go back, and not the list"),
        (spoilt(free=lambda self, blocks: MyPool.free(self, [b for b in blocks if b in self.taken])), 3, "no error"),
        (spoilt(free=lambda self, blocks: MyPool.free(self, blocks) if set(blocks) <= self.taken else pf.DoubleFree()), 3,
         "raise, not return"),
    ],
    "append": [
        (appended(copy_full=True), 3, "full page is never written"), (appended(shared_tail=True), 2, "must be copied"),
        (appended(lower=False), 3, "one fewer has it"), (appended(count=False), 2, "count of 1"),
        (appended(replace=False), 3, "in its place"), (appended(empty=IndexError), 3, "IndexError"),
        (appended(early=True), 3, "changes nothing"), (appended(take=False), 2, "free no longer"),
        (lambda table, num_tokens, counts, free, size: (0, 2), 0, "own"),
        (lambda *args: [pair] if (pair := right_append(*args)) else [], 0, "not a list of pairs"),
        (lambda *args: pair and [pair] if (pair := right_append(*args)) else None, 3, "input: +table.*not a list of pairs"),
        (lambda *args: pair and pair[::-1] if (pair := right_append(*args)) else None, 3, "is .from, to"),
        (appended(at=0), 2, "end of the free"),
        (lambda table, n, counts, free, size: right_append(list(table), n, counts, free, size), 2, "table itself must change"),
        (lambda table, num_tokens, counts, free, size: counts[table[num_tokens // size]] and right_append(
            table, num_tokens, counts, free, size), 2, "no entry behind it"),
        (adds_to_a_count, 3, "no entry for a free frame"),
        (lambda table, n, counts, free, size: counts[-1], 0, "the number of a frame"),
        (lambda *args: right_append(*args) if args[3] or args[1] in (5, 17) else pf.OutOfBlocks(), 3, "raise, not return"),
        (lambda *args: right_append(*args) if args[3] else refuse(), 2, "no frame is needed"),
        (lambda *args: append(*args), 0, "NameError[^\n]*$"),  # noqa: F821 (that is the slip)
    ],
    "find_pages": [
        (found(parent_of=lambda root, key: root), 1, "made from the first one's key"),
        (found(parent_of=lambda root, key: root, compared=1), 0, "depends on the key"), (found(full=False), 3, "only full pages"),
        (found(compared=0), 3, "only a hint"), (found(compared=1), 3, "only a hint"),
        (goes_on("a gap"), 3, "hint"), (goes_on("a collision"), 3, "hint"), (goes_on("nothing"), 3, "hint"),
        (found(stops=False, compared=0), 2, "can't be used"), (found(of=1), 0, "frame of each full page"),
        (lambda tokens, cached, size, key: len(right_pages(tokens, cached, size, key)), 0, "list of whole numbers"),
        (lambda tokens, cached, size, key: [entry[0] for entry in cached.values()], 0, "got"),
        (starts_again_behind_a_gap, 2, "stop at the first page"), (with_lists, 0, r"\(\d+, \(\d.*a tuple, which no list equals"),
        (lambda tokens, cached, size, key: key(0, tokens[:size]), 0, "as a tuple, not as a list"),
        (never_compares_tokens, 3, r"expected: \[\].*compare the page's tokens"),
        (lambda *case: right_pages(*case)[:1], 1, "first page was found"), (lambda *case: [], 0, "nothing was found.*key.0, page"),
        (lambda tokens, *rest: right_pages(tokens[:-1], *rest), 3, "pages of 4; cached for their keys.*leave aside"),
        (lambda tokens, cached, size, key: right_pages(tokens, cached, size, pf.checks.prefixes.good_key), 3, "many pages share"),
    ],
}


@pytest.mark.parametrize("check", RIGHT)
def test_right_answers_have_all_points(check):
    assert_right(getattr(checks, check), RIGHT[check])


@pytest.mark.parametrize("check, answer, points, hint", table(WRONG))
def test_wrong_answers_are_named(check, answer, points, hint):
    assert_wrong(getattr(checks, check), answer, points, hint)


def test_slots_are_checked():
    t = checks.a_table()
    size, table = t.block_size, t.table
    right = [table[token // size] * size + token % size for token in t.tokens]
    assert_right(checks.slots, [right, tuple(map(float, right))])
    last = t.tokens[2]
    for wrong, hint in [
        (last, "token's number"), (table[last % size % 4] * size + last // size, "remainder is the offset"),
        (table[0] * size + last, "first entry only"), (table[last // size], "times block_size"),
        (table[last // size] * size, "offset in the page is missing"), (table[last // size] + last % size, "block_size slots"),
        (right[2] + 1, "offset 0"), (right[2] - size, "frame is number 0"), ((table[last // size], last % size), "is one number"),
        (right[2] + 0.5, "whole number"), (10, "got:      10"), ("10", "a str"),
    ]:
        assert_wrong(checks.slots, [*right[:2], wrong], 2, hint)
    assert_wrong(checks.slots, right[:2], 0, "a list of three")
    for hint, slot in [("numbered from 0", lambda token: table[(token - 1) // size] * size + (token - 1) % size),
                       ("page 0 has the table's entry 0", lambda token: table[token // size - 1] * size + token % size)]:
        assert_wrong(checks.slots, [slot(token) for token in t.tokens], 0, hint)
