"""The check of pages found again: exercise 2.6."""

from .base import compare, draws, exercise
from .values import show, whole_numbers


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
    if type(page) is not tuple:
        raise TypeError(f"key takes the page's token ids as a tuple, not as a {type(page).__name__}")
    return hash((parent, page))


def weak_key(parent, page):
    """A key that many pages have."""
    return (parent + sum(page)) % 5 + 1


def poorest_key(parent, page):
    """A key that says nothing of the pages before."""
    return page[0]


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
        return {"Nothing was found: a first page's key is key(0, page), the frame before it is None, and a stored page is a tuple, "
                "which no list equals.": lambda *case: [],
                "Only the first page was found. The next one's key is made from the first one's key, and the frame before it is "
                "the first one's frame.": lambda *case: right_pages(*case)[:1],
                "Leave aside that a prompt's last token must be computed: its page is found too.":
                    lambda tokens, *rest: right_pages(tokens[:-1], *rest),
                "A page's key depends on the key of the page before it, and so on to the first.": alone,
                "A key is only a hint: compare the page's tokens, and the frame before it.": trusting,
                "What lies behind a page that isn't cached can't be used: stop there.": skipping,
                "Stop at the first page that isn't cached: what comes later has other words before it.": restarting}

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

    def restarting(tokens, cached, size, key):
        found, parent, before = [], 0, None
        for i in range(0, len(tokens) - size + 1, size):
            page = tuple(tokens[i : i + size])
            entry = cached.get(key(parent, page))
            if entry is not None and entry[1:] == (page, before):
                parent, before = key(parent, page), entry[0]
                found.append(before)
        return found

    def words_of(tokens, cached, size, key):
        """A case in words: the prompt, and of the cache what the keys of its pages give."""
        found, parent = [], 0
        for start in range(0, len(tokens) - size + 1, size):
            parent = key(parent, tuple(tokens[start : start + size]))
            entry = cached.get(parent)
            found.append("({}, {}, {})".format(*map(show, entry)) if entry else "nothing")
        poor = "" if key is good_key else ", a key that many pages share"
        return f"tokens = {show(tokens)}, pages of {size}{poor}; cached for their keys: {', '.join(found) or 'nothing'}"

    def part(cases, hint):
        return lambda: compare(answer, cases, right_pages, slips(alone, trusting, skipping), whole_numbers, hint, words_of)

    system, first, second = words(8), words(9), words(6)
    cached = cache_of([system + first, system + second, system[4:] + second], 4, good_key)
    holes = {k: v for k, v in cached.items() if v[1] != tuple(system[4:8])}  # as if that page had been evicted
    tail = system + first[:2]
    second_key = good_key(good_key(0, tuple(system[:4])), tuple(system[4:]))
    with_tail = cached | {good_key(second_key, tuple(first[:2])): (95, tuple(first[:2]), cached[second_key][0])}
    plain = [(system + first, cached, 4, good_key), (system + words(5), cached, 4, good_key), (words(9), cached, 4, good_key),
             (system + first[:4], cached, 4, good_key), (system[:8], cached, 4, good_key), ([], cached, 4, good_key)]
    order = [(first + system, cached, 4, good_key), (first[:4] + system[4:8] + first, cached, 4, good_key),
             (system + first, holes, 4, good_key), (system[4:] + system[:4], cached, 4, good_key)]
    partial = [(tail, with_tail, 4, good_key), (system[:3], cached, 4, good_key)]
    one, other = [1, 2, 3], [3, 2, 1]  # as sums they are the same
    weak = cache_of([one + [4, 5, 6], words(9)], 3, weak_key)
    prompts = one + [4, 5, 6, 7], other + [4, 5, 6, 7], one + [6, 5, 4], [2, 3, 1] + [4, 5, 6]
    before = {weak_key(0, (1, 2, 3)): (40, (1, 2, 3), None), weak_key(weak_key(0, (1, 2, 3)), (4, 5, 6)): (41, (4, 5, 6), 7)}
    collisions = [(prompt, weak, 3, weak_key) for prompt in prompts] + [(one + [4, 5, 6], before, 3, weak_key)]
    a, b, c, d, e, f = (100 + random.permutation(800)[:6]).tolist()
    gap = {a: (50, (a, b), None), e: (51, (e, f), 50)}  # the last page was once cached behind the first one
    taken = gap | {c: (52, (c, a), 50)}
    collisions += [(prompt, entries, 2, poorest_key) for entries in (gap, taken) for prompt in ([a, b, c, d, e, f], [e, f])]
    return [(1, "as many pages as are cached in a row", part(plain, "The frame of each full page, until one isn't cached.")),
            (1, "the same page after other pages", part(order, "What lies behind a page that isn't cached can't be used.")),
            (1, "a page that isn't full", part(partial, "Only full pages have a key.")),
            (1, "keys that collide", part(collisions, "A key is only a hint: compare the page's tokens, and the frame before."))]
