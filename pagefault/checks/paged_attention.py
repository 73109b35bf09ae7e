"""Checks of notebook 3's exercises."""

from types import SimpleNamespace

import numpy as np

from ..reference import gathered, reference_attention
from .base import Wrong, compare, draws, exercise, is_any, numbers, same, show, truth, whole_number
from .cuda import compiled, launch, same_source
from .running import Raises, call_with_copies

WALK = """
#include "naive_attention.cu"

__global__ void my_attention(const float* q, const float* k, const float* v, const int* block_tables, const int* seq_lens,
                             float* out, int max_blocks, int block_size, int num_kv_heads, int head_dim, float scale) {
  int seq = blockIdx.x, head = blockIdx.y, num_heads = gridDim.y, kv_head = head / (num_heads / num_kv_heads);
  long long mine = ((long long)seq * num_heads + head) * head_dim;
  auto row = [&](int token) -> long long {
    return 0;  // three lines: the token's block, its slot, and where the slot's row of kv_head begins
  };
  attend(q + mine, k, v, seq_lens[seq], out + mine, head_dim, scale, row);
}"""

GROUPS = """
__device__ int kv_head_of(int head, int num_heads, int num_kv_heads) {
  return 0;  // one line
}

__global__ void kv_heads(int* out, int num_heads, int num_kv_heads) {
  int head = threadIdx.x;
  if (head < num_heads) out[head] = kv_head_of(head, num_heads, num_kv_heads);
}"""

UNMASKED = """
__global__ void decode(const float* q, const float* k, const float* v, const int* tables, const int* seq_lens, float* out,
                       int max_blocks) {  // one head of 32 numbers, pages of 4; a warp for each sequence
  int seq = blockIdx.x, d = threadIdx.x, seq_len = seq_lens[seq];
  float top = -1e30f, sum = 0, total = 0;
  for (int page = 0; page < (seq_len + 3) / 4; ++page) {
    long long block = tables[seq * max_blocks + page];
    for (int offset = 0; offset < 4; ++offset) {
      long long at = (block * 4 + offset) * 32 + d;
      float score = q[seq * 32 + d] * k[at];
      for (int flip = 16; flip > 0; flip /= 2) score += __shfl_xor_sync(~0u, score, flip);
      float new_top = fmaxf(top, score), keep = expf(top - new_top), weight = expf(score - new_top);
      top = new_top, sum = sum * keep + weight, total = total * keep + weight * v[at];
    }
  }
  out[seq * 32 + d] = total / sum;
}"""


def paged_case(random, lengths, block_size, num_kv_heads, head_dim, poison=np.nan, behind=-1):
    """k, v, tables of sequences in a shuffled pool. What holds no token is poison, or old numbers if that is None; behind a
    sequence's last block the table has -1, or another's block if `behind` is None."""
    counts = [-(-n // block_size) for n in lengths]
    ids = random.permutation(sum(counts) + 3).astype(np.int32)
    tables = np.full((len(lengths), max(counts) + 1), ids[-1] if behind is None else behind, np.int32)
    k, v = 2 * random.standard_normal((2, len(ids), block_size, num_kv_heads, head_dim)).astype("f")
    if poison is not None:
        k[:], v[:] = poison, poison
    for seq, (n, count) in enumerate(zip(lengths, counts)):
        tables[seq, :count], ids = ids[:count], ids[count:]
        at = tables[seq, np.arange(n) // block_size], np.arange(n) % block_size
        k[at], v[at] = random.standard_normal((2, n, num_kv_heads, head_dim)) + seq
    return k, v, tables


def attention_from(q, k, v, lengths, start):
    """Attention whose token's row for a head starts at element start(seq, head, tokens) of k and v; None if one isn't there."""
    tokens, heads, head_dim = np.arange(max(lengths)), range(q.shape[1]), q.shape[2]
    at = np.array([[start(seq, head, np.minimum(tokens, n - 1)) for head in heads] for seq, n in enumerate(lengths)])
    if at.min() < 0 or at.max() + head_dim > k.size:
        return None
    at = at.transpose(0, 2, 1)[..., None] + np.arange(head_dim)
    return reference_attention(q, k.ravel()[at], v.ravel()[at], lengths)


@exercise(blank=lambda source: source is None or same_source(source, WALK))
def walk(source):
    """Exercise 3.1: the page walk in the plain kernel."""
    def part(size, num_heads, kv_heads, lengths, dim=8, **case):
        def run():
            kernel, random = compiled(source, "my_attention"), draws(f"3.1 {kv_heads} {len(lengths)}")
            k, v, tables = paged_case(random, lengths, size, kv_heads, dim, **case)
            q, width, group = random.standard_normal((len(lengths), num_heads, dim)).astype("f"), tables.shape[1], num_heads // kv_heads
            entries = np.concatenate([tables.ravel(), np.zeros(64, np.int32)])

            def starts(entry=lambda seq, t: seq * width + t // size, offset=lambda t: t % size, row=lambda head: head // group,
                       block=lambda entry, t: entries[entry].astype(int), rows=kv_heads, each=dim):
                return attention_from(q, k, v, lengths, lambda seq, head, t: (
                    (block(entry(seq, t), t) * size + offset(t)) * rows + row(head)) * each)

            def slips():
                found = {"Row seq of the table begins at seq * max_blocks.": starts(lambda seq, t: seq + t // size),
                         "Each sequence has its own row of the table: it begins at seq * max_blocks.": starts(lambda seq, t: t // size),
                         "token / block_size is the page, token % block_size the offset in it.":
                             starts(lambda seq, t: seq * width + t % size, lambda t: t // size),
                         "The table has an entry for each page: token / block_size.": starts(lambda seq, t: seq * width + t % size),
                         "That takes the page's number for the block: the table says where the page lies.":
                             starts(block=lambda entry, t: t // size),
                         "A slot has a row for each KV head: + kv_head before times head_dim.": starts(row=lambda head: 0),
                         "Rows are KV heads': + kv_head, not + head.": starts(row=lambda head: head),
                         "A slot has num_kv_heads rows: slot * num_kv_heads + kv_head.": starts(rows=1),
                         "A row has head_dim numbers: times head_dim.": starts(each=1),
                         "The offset in the block is missing.": starts(offset=lambda t: 0 * t)}
                return {hint: value for hint, value in found.items() if value is not None}

            exact = reference_attention(q, gathered(k, tables, lengths), gathered(v, tables, lengths), lengths)
            launch(kernel, (len(lengths), num_heads), (32,),
                   (q, k, v, tables, np.array(lengths, np.int32), np.zeros_like(q), width, size, kv_heads, dim, dim**-0.5),
                   f"lengths {lengths}, pages of {size}, {num_heads} query and {kv_heads} KV heads of {dim}, a shuffled pool",
                   {5: exact}, slips, "Rows of the wrong tokens were read.", shared_mem=4 * (32 + max(lengths)), rtol=1e-4,
                   outside="That row isn't in the pool: is the entry read at seq * max_blocks + token / block_size?")
        return run

    old = dict(poison=None, behind=None)
    return [(1, "one sequence, one head", part(4, 1, 1, [10], **old)), (1, "several sequences", part(4, 1, 1, [3, 16, 5], **old)),
            (1, "groups of query heads", part(4, 4, 2, [7, 12], **old)),
            (1, "NaN in free slots, and -1 in the table", part(16, 4, 2, [17, 31, 1]))]


def right_pages(pool_k, pool_v, table, k, v):
    size = pool_k.shape[1]
    at = np.asarray(table)[np.arange(len(k)) // size], np.arange(len(k)) % size
    return bool((pool_k[at] == k).all() and (pool_v[at] == v).all())


@exercise()
def reads_back(answer):
    """Exercise 3.2: a test that sees any token in the wrong place."""
    random = draws("3.2")

    def case(n, size=4, spoil=lambda k, v, slot: None):
        k, v, tables = paged_case(random, [n], size, 1, 4)
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
            (v if of_v else k)[slot[token], 0, 1] += 1e-3
        return spoil

    def swap_k_v(k, v, slot):
        k[slot], v[slot] = v[slot].copy(), k[slot].copy()

    def zero_first(k, v, slot):
        k[slot[0]], v[slot[0]] = 0, 0

    def part(cases):
        def run():
            for what, made in cases:
                try:
                    got, kept = call_with_copies(answer, *made)
                except Raises as error:
                    raise Wrong(what, str(right_pages(*made)), str(error)) from None
                hint = ("Slots that hold no token are NaN, and are nobody's business: read n tokens through the table."
                        if right_pages(*made) else "This one isn't seen: compare each token of K, and of V, with what was written.")
                same(got, right_pages(*made), what, lambda hint=hint, made=made: {hint: not right_pages(*made)}, truth)
                if not kept:
                    raise Wrong(what, "arrays as they were", "changed arrays", "A test only looks.")
        return run

    right = [("15 tokens in pages of 4, all as written", case(15)), ("32 tokens in pages of 16", case(32, 16)), ("one token", case(1))]
    return [(1, "right pools pass, NaN in free slots or not", part(right)),
            (1, "two full pages that changed places", part([
                ("pages 0 and 2 changed places, K and V together", case(15, spoil=exchange(0, 2))),
                ("pages 1 and 2 changed places, K and V together", case(14, spoil=exchange(1, 2))), right[0]])),
            (1, "K alone, V alone, one number", part([
                ("pages 0 and 1 of K changed places", case(15, spoil=exchange(0, 1, values=False))),
                ("pages 0 and 1 of V changed places", case(15, spoil=exchange(0, 1, keys=False))),
                ("a number of V of token 14 is 0.001 larger", case(15, spoil=touch(14, True))),
                ("a number of K of token 5 is 0.001 larger", case(15, spoil=touch(5, False))),
                ("K has V's tokens, and V has K's", case(9, spoil=swap_k_v)), ("token 0 was overwritten", case(9, spoil=zero_first)),
                right[1]]))]


def triple(x):
    """(m, s, o) as one row of numbers: m, s, and o's."""
    if not is_any(x, (tuple, list)) or len(x) != 3:
        raise TypeError(f"three things are needed, (m, s, o), and this is {'of ' + str(len(x)) if is_any(x, (tuple, list)) else show(x)}")
    return np.concatenate([np.atleast_1d(numbers(part) if is_any(part, (list, tuple, np.ndarray)) else numbers([part]))
                           .ravel() for part in x])


def right_page(state, scores, values):
    m, s, o = state
    new = max(m, scores.max())
    keep, weight = np.exp(m - new), np.exp(scores - new)
    return np.concatenate([[new, s * keep + weight.sum()], o * keep + weight @ values])


@exercise()
def see_page(answer):
    """Exercise 3.3: online softmax, a page at a time."""
    random = draws("3.3")

    def slip(new_of=lambda m, scores: max(m, scores.max()), keep_s=True, keep_o=True, divide=False):
        def made(state, scores, values):
            m, s, o = state
            new = new_of(m, scores)
            keep, weight = np.exp(m - new), np.exp(scores - new)
            s, o = s * (keep if keep_s else 1) + weight.sum(), o * (keep if keep_o else 1) + weight @ values
            return np.concatenate([[new, s], o / s if divide else o])
        return made

    slips = {"The output so far was weighted with the old m: times e^(old m - new m).": slip(keep_o=False),
             "The sum so far was made with the old m: times e^(old m - new m).": slip(keep_s=False),
             "Sum and output so far were made with the old m: times e^(old m - new m).": slip(keep_s=False, keep_o=False),
             "m is the largest of all scores so far, of this page's and those before.": slip(lambda m, scores: scores.max()),
             "m starts at minus infinity, not at 0: all scores may be negative.": slip(lambda m, scores: max(m, scores.max(), 0)),
             "o isn't divided yet: that comes once, at the end.": slip(divide=True),
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
                compare(answer, cases, right_page, slips, triple)
            except Wrong as wrong:
                wrong.hint = wrong.hint or hint
                raise
        return run

    every = "New m: the largest so far; then s and o: what there was, times e^(old m - new m), plus this page's."
    return [(1, "the first page", part(cases(0, True) + cases(-30, True), every)), (1, "later pages", part(cases(0) + cases(3), every)),
            (1, "scores far from 0", part(cases(-900) + cases(900), "e^900 is infinite: take m off before exp()."))]


def right_merge(partials):
    kept = [p for p in partials if p[1] > 0]
    if not kept:
        return np.zeros(len(partials[0][2]))
    top = max(m for m, _, _ in kept)
    return sum(o * np.exp(m - top) for m, _, o in kept) / sum(s * np.exp(m - top) for m, s, _ in kept)


@exercise()
def attention_of(answer):
    """Exercise 3.4: partial results, some of them empty, become one output."""
    random = draws("3.4")
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

    def undivided(partials):
        top = max(m for m, _, _ in partials)
        return sum(o * np.exp(m - top) for m, _, o in partials)

    slips = {"Each o and s was made with its own m: bring them to the largest m before you add.": plain,
             "An average of outputs is wrong: a part with larger scores has more weight.": averaged,
             "The sums need the factor e^(m - largest m) too.": half,
             "Divided by the sum of weights, it is the output.": undivided}
    some = [([partial(int(n), float(random.standard_normal())) for n in random.permutation(sizes)],)
            for sizes in ([2, 3], [1, 4, 2], [5], [1, 1, 3, 2])]
    far = [([partial(3, shift), partial(2, shift + d), partial(1, shift)],) for shift, d in ((900, 1), (-900, 2), (0, 400))]
    holes = [([empty, partial(3, 0.5)],), ([partial(2, -3), empty, empty],), ([empty, partial(2, 0), partial(3, -800)],)]
    nothing = [([empty],), ([empty, empty, empty],)]

    def part(cases, hint):
        def run():
            try:
                compare(answer, cases, right_merge, slips, numbers)
            except Wrong as wrong:
                wrong.hint = wrong.hint or hint
                raise
        return run

    return [(1, "several parts, in any order", part(some, "Bring all to the largest m, add, divide.")),
            (1, "scores far from 0", part(far, "e^900 is infinite: only differences from the largest m go into exp().")),
            (1, "empty parts", part(holes + nothing, "An empty part has m = -infinity: it adds nothing. If all are empty, the output "
                                                     "is zero; -infinity less -infinity is NaN."))]


@exercise(blank=lambda source: source is None or same_source(source, GROUPS))
def kv_heads(source):
    """Exercise 3.5: the KV head of a query head."""
    def run(shapes):
        kernel = compiled(source, "kv_heads")
        for heads, kv in shapes:
            head = np.arange(heads)
            slips = {"Neighbours share a KV head: heads 0 to 6 of 28 have KV head 0.": head % kv,
                     "That is a group of 2, whatever the model.": head // 2, "That gives each query head its own.": head,
                     "Divide by how many query heads share one: num_heads / num_kv_heads.": head // kv,
                     "That is how many share one, not which.": np.full(heads, heads // kv),
                     "All have the first one.": 0 * head}
            launch(kernel, (1,), (32,), (np.full(heads, -1, np.int32), heads, kv), f"{heads} query heads, {kv} KV heads",
                   {0: head // (heads // kv)}, lambda s=slips: s)
    random = draws("3.5")
    shapes = [(int(kv * group), int(kv)) for kv, group in zip(random.permutation([2, 3, 4]), random.permutation([3, 5, 8]))]
    return [(1, "28 query heads, 4 KV heads", lambda: run([(28, 4)])), (1, "other models", lambda: run([*shapes, (8, 1), (4, 4)]))]


def a_row():
    """Print the cache and the context of exercise 3.6, and return them."""
    random = draws("3.6")
    row = SimpleNamespace(head_dim=int(random.choice([64, 96, 128])), dtype_bytes=int(random.choice([2, 4])),
                          tokens=16 * int(random.randint(20, 60)) + int(random.randint(1, 15)))
    print(f"one head of {row.head_dim} numbers, {row.dtype_bytes} bytes each; a context of {row.tokens:,} tokens")
    return row


@exercise()
def walk_costs(prediction):
    """Exercise 3.6: what K, V and the table cost at several page sizes."""
    row = a_row()
    each = 2 * row.head_dim * row.dtype_bytes

    def part(key, expected, slips, given):
        def run():
            if type(prediction) is not dict or key not in prediction:
                raise Wrong(expected=f"a dict with the entry {key!r}", got=prediction)
            same(prediction[key], expected, given, lambda: slips, whole_number)
        return 1, key, run

    shape = f"a head of {row.head_dim} numbers of {row.dtype_bytes} bytes"
    parts = [part("bytes a token", each, {"K and V.": each // 2, "A number has more than one byte.": 2 * row.head_dim}, shape),
             part("sectors a token", each // 32, {"K and V.": each // 64, "A sector has 32 bytes.": each // 128,
                                                  "The page size doesn't matter here.": each // 32 * 16}, shape)]
    for size in (1, 16, 256):
        n, pages = row.tokens, -(-row.tokens // size)
        parts.append(part(f"entries at {size}", pages, {
            "The last page is begun, and has an entry: round up.": n // size, "An entry for each page, not for each number.": pages * row.head_dim,
            "One entry serves K and V.": 2 * pages, "An entry serves a whole page, not a token.": n,
            "Those are bytes: an entry has 4.": 4 * pages, "Those are slots: padding isn't looked up.": pages * size},
            f"{n:,} tokens, pages of {size}"))
    return parts


@exercise(blank=lambda source: source is None or same_source(source, UNMASKED))
def masked(source):
    """Exercise 3.7: the kernel that never masks its partial last page, repaired."""
    def part(lengths, poison, hint):
        def run():
            kernel, random = compiled(source, "decode"), draws(f"3.7 {len(lengths)}")
            k, v, tables = paged_case(random, lengths, 4, 1, 32, poison)
            q = (random.standard_normal((len(lengths), 1, 32)) / 4).astype("f")

            def out(some, v=v):
                return reference_attention(q, gathered(k, tables, some), gathered(v, tables, some), some, scale=1)

            whole = [-(-n // 4) * 4 for n in lengths]

            def slips():
                no_v = v.copy()
                for seq, n in enumerate(lengths):
                    no_v[tables[seq, (n - 1) // 4], (n - 1) % 4 + 1 :] = 0
                return {"The last page was left out, with the tokens in it.": out([n // 4 * 4 for n in lengths]),
                        "The last token is number seq_len - 1.": out([n - 1 for n in lengths]),
                        "Those are all slots of the last page: only seq_len tokens count.": out(whole),
                        "One slot too many: the last token is number seq_len - 1.": out([min(n + 1, w) for n, w in zip(lengths, whole)]),
                        "The sum of weights still counts the empty slots.": out(whole, no_v)}

            args = (q, k, v, tables, np.array(lengths, np.int32), np.zeros_like(q), tables.shape[1])
            launch(kernel, (len(lengths),), (32,), args, f"lengths {lengths}, {'NaN' if poison else 'old numbers'} in empty slots",
                   {5: out(lengths)}, slips, hint, rtol=1e-4)
        return run

    nan = "A weight of 0 doesn't help: 0 times NaN is NaN. An empty slot's V must not be read, or must not count."
    return [(1, "pages that are full", part([8, 4, 16], np.nan, "The kernel was right for full pages; it still must be.")),
            (1, "a partial last page, old numbers behind it", part([5, 11, 6, 16], None, "Only seq_len tokens count.")),
            (1, "a partial last page, NaN behind it", part([7, 1, 10], np.nan, nan))]
