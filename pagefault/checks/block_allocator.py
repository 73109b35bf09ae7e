"""Checks of notebook 2's exercises."""

from types import SimpleNamespace

import numpy as np

from .base import Wrong, compare, draws, exercise, same
from .copies import append
from .pools import pool
from .prefixes import find_pages
from .values import is_any, whole_number

__all__ = ["a_table", "append", "find_pages", "pages_to_grow", "pool", "slots", "tail_waste"]


def a_table():
    """Print the table and the tokens of exercise 2.1, and return them."""
    random = draws("2.1")
    size = int(random.choice([5, 6, 8]))
    table = random.choice(np.arange(size + 1, 30), 4, replace=False).tolist()
    tokens = [int(random.randint(1, size)), size * int(random.randint(1, 3)), 3 * size + int(random.choice([1, 2, 4]))]
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
                    "The page is token // block_size; the remainder is the offset.":
                        t.table[token % size % 4] * size + token // size,
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
             "That is an average: the empty slots of all are asked for.": lambda s, b: right(s, b) / len(s)}

    def lists(size, count, exact):
        return ([int(n) * size if i % 2 or exact else int(n) * size + int(random.randint(1, size))
                 for i, n in enumerate(random.randint(1, 40, count))], size)

    any_length = [(random.randint(1, 300, 7).tolist(), int(b)) for b in random.permutation([1, 4, 7, 16, 64, 256])]
    return [(1, "any lengths, any page size", lambda: compare(answer, any_length, right, slips)),
            (1, "lengths that fill their last page", lambda: compare(
                answer, [lists(16, 4, True), lists(5, 5, False), ([16], 16)], right, slips))]


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
    sizes = random.permutation([1, 3, 5, 7, 16, 16, 32])
    cases = [(int(random.randint(1, 500)), int(random.randint(17, 300)), int(size)) for size in sizes]
    return [(1, "any length", lambda: compare(answer, cases, right, slips)),
            (1, "around the end of a page", lambda: compare(answer, edges, right, slips))]
