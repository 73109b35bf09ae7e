"""Checks of notebook 3's exercises."""

from types import SimpleNamespace

import numpy as np

from .base import Wrong, compare, draws, exercise, same
from .running import Raises, call_with_copies
from .values import is_any, numbers, truth, what, whole_number
from .walks import READERS, UNMASKED, WALK, masked, paged_case, readers, walk

__all__ = ["READERS", "UNMASKED", "WALK", "a_row", "attention_of", "masked", "readers", "reads_back", "see_page", "walk",
           "walk_costs"]


def right_pages(pool_k, pool_v, table, k, v):
    size = pool_k.shape[1]
    at = np.asarray(table)[np.arange(len(k)) // size], np.arange(len(k)) % size
    return bool((pool_k[at] == k).all() and (pool_v[at] == v).all())


@exercise()
def reads_back(answer):
    """Exercise 3.2: a test that sees any token in the wrong place."""
    random = draws("3.2")

    def case(n, size=4, spoil=lambda k, v, slot: None, poison=np.nan):
        k, v, tables = paged_case(random, [n], size, 1, 4, poison)
        table = tables[0, : -(-n // size)]
        slot = table[np.arange(n) // size] * size + np.arange(n) % size
        keys, values = (x.reshape(-1, 1, 4)[slot] for x in (k, v))
        spoil(k.reshape(-1, 1, 4), v.reshape(-1, 1, 4), slot)
        return k, v, table.tolist(), keys, values

    def exchange(*pages, keys=True, values=True):
        def spoil(k, v, slot):
            a, b = (slot[4 * page : 4 * page + 4] for page in pages)
            for x in [k] * keys + [v] * values:
                x[np.concatenate([a, b])] = x[np.concatenate([b, a])]
        return spoil

    def touch(token, of_v):
        def spoil(k, v, slot):
            x = v if of_v else k
            x[slot[token], 0, 1] = np.nextafter(x[slot[token], 0, 1], np.float32(np.inf))
        return spoil

    def swap_k_v(k, v, slot):
        k[slot], v[slot] = v[slot].copy(), k[slot].copy()

    def zero_first(k, v, slot):
        k[slot[0]], v[slot[0]] = 0, 0

    def part(cases):
        def run():
            for given, made in cases:
                try:
                    got, kept = call_with_copies(answer, *made)
                except Raises as error:
                    raise Wrong(given, str(right_pages(*made)), str(error)) from None
                hint = ("Slots that hold no token have NaN or old numbers, and are nobody's business: "
                        "read n tokens through the table."
                        if right_pages(*made) else "This one isn't seen: compare each token of K, and of V, with what was written, "
                        "those of the last page too, and exactly.")
                same(got, right_pages(*made), given, lambda hint=hint, made=made: {hint: not right_pages(*made)}, truth)
                if not kept:
                    raise Wrong(given, "arrays as they were", "changed arrays", "A test only looks.")
        return run

    right = [("15 tokens in pages of 4, all as written", case(15)), ("32 tokens in pages of 16, all as written", case(32, 16)),
             ("one token", case(1)), ("15 tokens in pages of 4, and old numbers in free slots", case(15, poison=None))]
    return [(1, "right pools pass, NaN in free slots or not", part(right)),
            (1, "two full pages that changed places", part([
                ("pages 0 and 2 changed places, K and V together", case(15, spoil=exchange(0, 2))),
                ("pages 1 and 2 changed places, K and V together", case(14, spoil=exchange(1, 2))), right[0]])),
            (1, "K alone, V alone, one number", part([
                ("pages 0 and 1 of K changed places", case(15, spoil=exchange(0, 1, values=False))),
                ("pages 0 and 1 of V changed places", case(15, spoil=exchange(0, 1, keys=False))),
                ("token 14, the last one, has another K", case(15, spoil=lambda k, v, slot: k.__setitem__(slot[14], 7))),
                ("a number of V of token 14 differs in its last bit", case(15, spoil=touch(14, True))),
                ("a number of K of token 5 differs in its last bit", case(15, spoil=touch(5, False))),
                ("K has V's tokens, and V has K's", case(9, spoil=swap_k_v)),
                ("token 0 was overwritten", case(9, spoil=zero_first)), right[1]]))]


def triple(x):
    """(m, s, o) as one row of numbers: m, s, and o's."""
    if not is_any(x, (tuple, list)) or len(x) != 3:
        raise TypeError(f"three things are needed, (m, s, o), and this is {what(x)}")
    if any(is_any(part, (float, np.float64)) and part != part or type(part) is np.ndarray and np.isnan(part).any() for part in x):
        raise TypeError("this has NaN: before the first page m is -infinity, and e^(old m - new m) is 0, not the other way round")
    return np.concatenate([np.atleast_1d(numbers(part) if is_any(part, (list, tuple, np.ndarray)) else numbers([part]))
                           .ravel() for part in x])


def right_page(state, scores, values):
    m, s, o = state
    new = max(m, scores.max())
    keep, weight = np.exp(m - new), np.exp(scores - new)
    return np.concatenate([[new, s * keep + weight.sum()], o * keep + weight @ values])


@exercise()
def see_page(answer):
    """Exercise 3.4: online softmax, a page at a time."""
    random = draws("3.4")

    def slip(new_of=lambda m, scores: max(m, scores.max()), keep_s=True, keep_o=True, divide=False, sign=1, own=False):
        def made(state, scores, values):
            m, s, o = state
            new = new_of(m, scores)
            keep, weight = np.exp(sign * (m - new)), np.exp(scores - (scores.max() if own else new))
            s, o = s * (keep if keep_s else 1) + weight.sum(), o * (keep if keep_o else 1) + weight @ values
            return np.concatenate([[new, s], o / s if divide else o])
        return made

    slips = {"The output so far was weighted with the old m: times e^(old m - new m).": slip(keep_o=False),
             "The sum so far was made with the old m: times e^(old m - new m).": slip(keep_s=False),
             "Sum and output so far were made with the old m: times e^(old m - new m).": slip(keep_s=False, keep_o=False),
             "m is the largest of all scores so far, of this page's and those before.": slip(lambda m, scores: scores.max()),
             "m starts at minus infinity, not at 0: all scores may be negative.": slip(lambda m, scores: max(m, scores.max(), 0)),
             "o isn't divided yet: that comes once, at the end.": slip(divide=True),
             "The page's weights are e^(score - new m), not less the page's own largest score.": slip(own=True),
             "The factor is e^(old m - new m), not the other way round.": slip(sign=-1),
             "m never changed: it is the largest score so far.": slip(lambda m, scores: m)}
    start = (-np.inf, 0.0, np.zeros(3))

    def cases(shift, first=False):
        found = []
        for n in random.permutation([1, 4, 5]):
            m = shift + float(random.standard_normal())
            state = start if first else (m, 1 + float(random.uniform(0, 3)), random.standard_normal(3))
            found.append((state, shift + random.choice([-2, 2]) + random.standard_normal(n), random.standard_normal((n, 3))))
        return found

    def part(cases, hint):
        def run():
            try:
                compare(answer, cases, right_page, slips, triple, hint)
            except Wrong as wrong:
                if type(wrong.expected) is np.ndarray:  # shown as the answer is: (m, s, o)
                    wrong.expected = (*wrong.expected[:2].tolist(), wrong.expected[2:])
                raise
        return run

    every = "New m: the largest so far; then s and o: what there was, times e^(old m - new m), plus this page's."
    return [(1, "the first page", part(cases(0, True) + cases(-30, True), every)),
            (1, "later pages", part(cases(0) + cases(3), every)),
            (1, "scores far from 0", part(cases(-900) + cases(900), "e^900 is infinite: take m off before exp()."))]


def right_merge(partials):
    kept = [p for p in partials if p[1] > 0]
    if not kept:
        return np.zeros(len(partials[0][2]))
    top = max(m for m, _, _ in kept)
    return sum(o * np.exp(m - top) for m, _, o in kept) / sum(s * np.exp(m - top) for m, s, _ in kept)


@exercise()
def attention_of(answer):
    """Exercise 3.5: partial results, some of them empty, become one output."""
    random = draws("3.5")
    empty = (-np.inf, 0.0, np.zeros(2))

    def partial(n, shift):
        scores, values = shift + 2 * random.standard_normal(n), random.standard_normal((n, 2))
        weight = np.exp(scores - scores.max())
        return scores.max(), weight.sum(), weight @ values

    def plain(partials):
        return sum(o for _, _, o in partials) / sum(s for _, s, _ in partials)

    def averaged(partials):
        return np.mean([o / s for _, s, o in partials if s > 0], 0)

    def by_tokens(partials):
        return sum(o / s * s for _, s, o in partials if s > 0) / sum(s for _, s, _ in partials)

    def half(partials):
        top = max(m for m, _, _ in partials)
        return sum(o * np.exp(m - top) for m, _, o in partials) / sum(s for _, s, _ in partials)

    def flipped(partials):
        top = max(m for m, _, _ in partials)
        return sum(o * np.exp(top - m) for m, _, o in partials) / sum(s * np.exp(top - m) for m, s, _ in partials)

    def undivided(partials):
        top = max(m for m, _, _ in partials)
        return sum(o * np.exp(m - top) for m, _, o in partials)

    slips = {"Each o and s was made with its own m: bring them to the largest m before you add.": plain,
             "An average of outputs is wrong: a part with larger scores has more weight.": averaged,
             "The sums need the factor e^(m - largest m) too.": half,
             "The factor is e^(m - largest m), not the other way round.": flipped,
             "Divided by the sum of weights, it is the output.": undivided}
    some = [([partial(int(n), float(random.standard_normal())) for n in random.permutation(sizes)],)
            for sizes in ([2, 3], [1, 4, 2], [5], [1, 1, 3, 2])]
    far = [([partial(3, shift), partial(2, shift + d), partial(1, shift)],) for shift, d in ((900, 1), (-900, 2), (0, 400))]
    far += [([partial(3, a), partial(2, b)],) for a, b in ((-800, 700), (700, -800))]
    holes = [([empty, partial(3, 0.5)],), ([partial(2, -3), empty, empty],), ([empty, partial(2, 0), partial(3, -800)],)]
    nothing = [([empty],), ([empty, empty, empty],)]

    def part(cases, hint):
        return lambda: compare(answer, cases, right_merge, slips, numbers, hint)

    return [(1, "several parts, in any order", part(some, "Bring all to the largest m, add, divide.")),
            (1, "scores far from 0", part(far, "e^900 is infinite: only differences from the largest m of "
                                           "all go into exp(), and not from the first one's.")),
            (1, "empty parts", part(holes + nothing, "An empty part adds nothing. If all are empty the output is zero, and "
                                                     "-infinity less -infinity is NaN."))]


def a_row():
    """Print the cache and the context of exercise 3.3, and return them."""
    random = draws("3.3")
    row = SimpleNamespace(head_dim=int(random.choice([64, 96, 128])), dtype_bytes=int(random.choice([2, 4])),
                          tokens=16 * int(random.randint(20, 60)) + int(random.randint(1, 15)))
    print(f"one head of {row.head_dim} numbers, {row.dtype_bytes} bytes each; a context of {row.tokens:,} tokens")
    return row


@exercise()
def walk_costs(prediction):
    """Exercise 3.3: what K, V and the table cost at several page sizes."""
    row = a_row()
    each = 2 * row.head_dim * row.dtype_bytes

    def part(key, expected, slips, given):
        def run():
            if type(prediction) is not dict or key not in prediction:
                raise Wrong(expected=f"a dict with the entry {key!r}", got=prediction)
            same(prediction[key], expected, given, lambda: slips, whole_number)
        return 1, key, run

    shape = f"a head of {row.head_dim} numbers of {row.dtype_bytes} bytes"
    parts = [part("bytes a token", each, {"K and V.": each // 2, "A number has more than one byte.": 2 * row.head_dim,
                                             "Of one token, not of the context.": each * row.tokens}, shape),
             part("sectors a token", each // 32, {"K and V.": each // 64, "A sector has 32 bytes.": each // 128,
                                                  "Those are bytes: a sector has 32.": each,
                                                  "The page size doesn't matter here.": each // 32 * 16}, shape)]
    for size in (1, 16, 256):
        n, pages = row.tokens, -(-row.tokens // size)
        parts.append(part(f"entries at {size}", pages, {
            "The last page is begun, and has an entry: round up.": n // size,
            "An entry for each page, not for each number.": pages * row.head_dim,
            "One entry serves K and V.": 2 * pages, "An entry serves a whole page, not a token.": n,
            "Those are bytes: an entry has 4.": 4 * pages, "Those are slots: padding isn't looked up.": pages * size},
            f"{n:,} tokens, pages of {size}"))
    return parts
