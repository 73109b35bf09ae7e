"""Checks of notebook 2's exercises."""

from types import SimpleNamespace

import numpy as np

from .base import Wrong, compare, draws, exercise, same
from .copies import append
from .pools import pool
from .prefixes import find_pages
from .values import SCALARS, close, is_any, number, numbers, whole_number

__all__ = ["a_table", "append", "find_pages", "pages_to_grow", "pool", "slots", "tail_waste"]


def a_table():
    """Print the table and the tokens of exercise 2.1, and return them."""
    random = draws("2.1")
    size = int(random.choice([5, 6, 8]))
    tokens = [int(random.randint(1, size)), size * int(random.randint(1, 3)), 3 * size + int(random.choice([1, 2, 4]))]
    table = tokens
    while set(tokens) & set(table) or any(table[page] - table[0] - page in (0, 1) for page in (1, 2, 3)):
        table = random.choice(np.arange(size + 1, 30), 4, replace=False).tolist()  # each slip gives a number of its own
    print(f"table {table}, pages of {size}; tokens {', '.join(map(str, tokens))}")
    return SimpleNamespace(table=table, block_size=size, tokens=tokens)


@exercise()
def slots(answer):
    """Exercise 2.1: the slots of three tokens, by hand."""
    t = a_table()
    size = t.block_size

    def slips_of(token):
        page, offset = divmod(token, size)
        return {"That is the token's number: the pages don't lie one behind the other from frame 0.": token,
                "The page is token // block_size; the remainder is the offset.":
                    t.table[token % size % 4] * size + token // size,
                "That follows the table's first entry only: each page has its own frame.": t.table[0] * size + token,
                "That is the frame's number: times block_size, plus the offset.": t.table[page],
                "The offset in the page is missing.": t.table[page] * size,
                "That is frame + offset: a frame has block_size slots.": t.table[page] + offset,
                "The first slot of a frame has offset 0.": t.table[page] * size + offset + 1,
                "The table's first entry is number 0, for page 0.": t.table[min(3, page + 1)] * size + offset,
                "Page 0 has the table's entry 0, page 1 entry 1: table[page].": t.table[page - 1] * size + offset,
                "The first frame is number 0: frame 1 begins at slot block_size.": (t.table[page] - 1) * size + offset,
                "A frame has as many slots as a page: block_size.": t.table[page] * len(t.table) + offset,
                "Tokens and pages are numbered from 0.": t.table[(token - 1) // size] * size + (token - 1) % size}

    def part(i, token):
        def slips():
            """The likeliest first: what all three slots would be by this mistake."""
            values = [x if is_any(x, SCALARS) else None for x in answer]
            agree = {hint: sum(close(x, slips_of(at)[hint]) for x, at in zip(values, t.tokens)) for hint in slips_of(token)}
            return {hint: slips_of(token)[hint] for hint in sorted(agree, key=agree.get, reverse=True)}

        def run():
            given = f"token {token}, table {t.table}, pages of {size}"
            if not is_any(answer, (list, tuple, np.ndarray)) or len(answer) != 3:
                raise Wrong(given, "a list of three slots", answer)
            if is_any(answer[i], (list, tuple)):
                raise Wrong(given, "one number", answer[i], "A slot is one number: frame times block_size, plus the offset.")
            same(answer[i], t.table[token // size] * size + token % size, given, slips, whole_number)
        return 1, f"token {token}", run

    return [part(i, token) for i, token in enumerate(t.tokens)]


@exercise()
def tail_waste(answer):
    """Exercise 2.4: empty slots of some sequences in pages."""
    random = draws("2.4")

    def right(seq_lens, block_size):
        return sum(-n % block_size for n in seq_lens)

    slips = {"A sequence that fills its last page wastes nothing: that page is full, not missing or new.":
             lambda seq_lens, block_size: sum(block_size - n % block_size for n in seq_lens),
             "(B - 1) / 2 is what is empty on average; these lengths are known.": lambda s, b: len(s) * (b - 1) / 2,
             "That is what is empty in one piece of the longest length for each.": lambda s, b: len(s) * max(s) - sum(s),
             "Those are the tokens in the last pages, not the empty slots.": lambda s, b: sum(n % b for n in s),
             "Each sequence has pages of its own: round up for each, not for the sum.": lambda s, b: -sum(s) % b,
             "Those are all slots; the tokens are in some of them.": lambda s, b: sum(-(-n // b) * b for n in s),
             "That is an average: the empty slots of all are asked for.": lambda s, b: right(s, b) / len(s),
             "Those are the empty slots of each; their sum is asked for.": lambda s, b: [-n % b for n in s],
             "Slots are counted, all in all: no share of them.": lambda s, b: right(s, b) / sum(-(-n // b) * b for n in s),
             "Those are pages; of their slots some are empty.": lambda s, b: sum(-(-n // b) for n in s),
             "A sequence may have more than one page.": lambda s, b: sum(b - n for n in s),
             "Of more pages than one only the last one has empty slots.": lambda s, b: sum(max(0, b - n) for n in s),
             "The page size is the argument block_size, and not always 16.": lambda s, b: sum(-n % 16 for n in s),
             "It is the other way round: slots minus tokens.": lambda s, b: -right(s, b),
             "With one token in its last page, block_size - 1 slots of it are empty.": lambda s, b: sum(b - 1 - n % b for n in s),
             "That is the last sequence alone: add them up.": lambda s, b: -s[-1] % b,
             "That is the first sequence alone: is the return in the loop?": lambda s, b: -s[0] % b}

    def lists(size, count, exact):
        return ([int(n) * size if i % 2 or exact else int(n) * size + int(random.randint(1, size))
                 for i, n in enumerate(random.randint(1, 40, count))], size)

    def plain(x):
        return numbers(x).tolist() if is_any(x, (list, tuple)) else number(x)

    any_length = [(random.randint(1, 300, 7).tolist(), int(b)) for b in random.permutation([1, 4, 7, 16, 64, 256])]
    return [(1, "any lengths, any page size", lambda: compare(answer, any_length, right, slips, plain)),
            (1, "lengths that fill their last page", lambda: compare(
                answer, [lists(16, 4, True), lists(5, 5, False), ([16], 16), ([17, 16, 1], 16)], right, slips, plain))]


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
             "A page that is just filled needs no frame behind it.": lambda length, n, b: (length + n) // b + 1 - -(-length // b),
             "A last page that is begun has its frame already.": lambda length, n, b: -(-(length + n) // b) - length // b,
             "A last page that is full has no room: b - length % b is b then.": lambda length, n, b: -(-(n - b + length % b) // b),
             "That is one too many: frames afterwards, minus frames before.": lambda length, n, b: right(length, n, b) + 1,
             "Those are slots: a frame has block_size of them.": lambda length, n, b: right(length, n, b) * b,
             "Those are the frames that it has before.": lambda length, n, b: -(-length // b),
             "n may be more than a page.": lambda length, n, b: int((length + n) // b > length // b)}
    edges = [(size * k + d, n, size) for size, k, d, n in
             ((4, 1, -1, 1), (4, 1, 0, 1), (16, 2, 0, 16), (16, 3, -1, 2), (16, 0, 0, 1), (8, 1, 1, 7))]
    random.shuffle(edges)
    sizes = random.permutation([1, 3, 5, 7, 16, 16, 32])
    cases = [(int(random.randint(1, 500)), int(random.randint(17, 300)), int(size)) for size in sizes]
    cases.append((16 * int(random.randint(1, 20)), 16 * int(random.randint(1, 10)) + 1, 16))
    return [(1, "any length", lambda: compare(answer, cases, right, slips)),
            (1, "around the end of a page", lambda: compare(answer, edges, right, slips))]
