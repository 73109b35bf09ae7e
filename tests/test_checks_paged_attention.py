"""Notebook 3's checks take right answers, in whatever words, and say what is wrong with the others."""

import numpy as np
import pytest
from graded import assert_right, assert_wrong, table

import pagefault as pf
from pagefault.checks import paged_attention as checks
from pagefault.checks.paged_attention import right_pages


def edited(source, *edits):
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    return source


THREE_LINES = """long long block = block_tables[seq * max_blocks + token / block_size];
    long long row = (block * num_kv_heads + kv_head) * block_size + token % block_size;
    return row * head_dim;"""


def walk(*edits):
    return checks.WALK.replace("return 0;", edited(THREE_LINES, *edits))


def masked(*edits):
    return edited(checks.UNMASKED, *edits)


def readers(line):
    return checks.READERS.replace("return 0;", f"return {line};")


SCORE = "      float new_top"
OFFSET = "offset < 4; ++offset"


def all_slots(table, n, size):
    return np.array(table)[np.arange(n) // size] * size + np.arange(n) % size


def reads(slots=all_slots, look_at="kv", same=np.array_equal):
    def test(pool_k, pool_v, table, k, v):
        size, n = pool_k.shape[1], len(k)
        pairs = {"k": (pool_k, k), "v": (pool_v, v)}
        return all(same(pool.reshape(-1, *pool.shape[2:])[slots(table, n, size)], x) for pool, x in map(pairs.get, look_at))
    return test


def compares_outputs(pool_k, pool_v, table, k, v):
    q = np.ones((1, 1, k.shape[2]), np.float32)
    there = [pf.gathered(pool, np.array([table]), [len(k)]) for pool in (pool_k, pool_v)]
    expected = pf.reference_attention(q, k[None], v[None], [len(k)])
    return pf.relative_error(pf.reference_attention(q, *there, [len(k)]), expected) < 1e-6


def sees(keep_s=True, keep_o=True, start=-np.inf, of=max, divide=False, shift=True, dims=True, sign=1, own=False):
    def see_page(state, scores, values):
        m, s, o = state
        new = of(m, max(scores.max(), start))
        keep, weights = (np.exp(sign * (m - new)), np.exp(scores - new)) if shift else (1, np.exp(scores))
        weights = np.exp(scores - scores.max()) if own else weights
        s, o = s * (keep if keep_s else 1) + weights.sum(), o * (keep if keep_o else 1) + weights @ values
        return new, s, o / s if divide else o if dims else o[0]
    return see_page


def one_by_one(state, scores, values):
    m, s, o = state
    for score, value in zip(scores, values):
        new = np.maximum(m, score)
        m, s, o = new, s * np.exp(m - new) + np.exp(score - new), o * np.exp(m - new) + np.exp(score - new) * value
    return [float(m), s, o.tolist()]


def adds_in_place(state, scores, values):
    new = max(state[0], scores.max())
    state[2][:] *= np.exp(state[0] - new)
    state[2][:] += np.exp(scores - new) @ values
    return new, state[1] * np.exp(state[0] - new) + np.exp(scores - new).sum(), state[2]


def merges(skip=True, keep=True, keep_s=True, divide=True, shift=True, sign=1, of=max):
    def attention_of(partials):
        parts = [p for p in partials if p[1] > 0] if skip else partials
        if not parts:
            return 0 * partials[0][2]
        top = of([m for m, _, _ in parts]) if shift else 0.0
        weights = [np.exp(sign * (m - top)) if keep else 1.0 for m, _, _ in parts]
        total = sum(w * s if keep_s else s for w, (_, s, _) in zip(weights, parts))
        out = sum(w * o for w, (_, _, o) in zip(weights, parts))
        return out / total if divide else out
    return attention_of


def pairwise(partials):
    m, s, o = partials[0]
    for m_b, s_b, o_b in partials[1:]:
        top = max(m, m_b)
        if top > -np.inf:
            a, b = np.exp(m - top), np.exp(m_b - top)
            m, s, o = top, s * a + s_b * b, o * a + o_b * b
    return (o / s if s else o).tolist()


RIGHT = {
    "walk": [walk(), walk(("long long block =", "const int* mine = block_tables + seq * max_blocks; long long block ="),
                          ("block_tables[seq * max_blocks + token / block_size]", "mine[token / block_size]"),
                          ("token % block_size", "(token - token / block_size * block_size)"))],
    "masked": [masked((OFFSET, "offset < 4 && page * 4 + offset < seq_len; ++offset")),
               masked((SCORE, "      if (page * 4 + offset >= seq_len) continue;\n" + SCORE))],
    "readers": [readers("kv_head * (num_heads / num_kv_heads) + i"), readers("kv_head * num_heads / num_kv_heads + i")],
    "reads_back": [right_pages, reads()],
    "see_page": [sees(), one_by_one], "attention_of": [merges(), pairwise],
}
WRONG = {
    "walk": [
        (walk(("seq * max_blocks", "seq")), 1, "begins at seq . max_blocks"),
        (walk(("seq * max_blocks + ", "")), 1, "own row of the table"),
        (walk(("token / block_size", "token @ block_size"), ("token % block_size", "token / block_size"), ("@", "%")), 0,
         "page, token % block_size the offset"),
        (walk((" + kv_head)", ")")), 2, "those of kv_head begin"),
        (walk(("+ kv_head)", "+ head)")), 2, "not num_heads|not query heads"),
        (walk(("block * num_kv_heads + ", "block + ")), 2, "a block has num_kv_heads"),
        (walk(("(block * num_kv_heads + kv_head) * block_size + token % block_size",
               "block * num_kv_heads * block_size + kv_head + token % block_size")), 2, "one behind the other"),
        (walk(("block_tables[seq * max_blocks + token / block_size]", "token / block_size")), 0, "says where the page lies"),
        (walk((" + token % block_size", "")), 0, "offset in the block is missing"),
        (walk((" * head_dim", "")), 0, "times head_dim"),
        (walk(("return row", "if (block_tables[seq * max_blocks + token / block_size + 1] < -9) return 0;\n    return row")), 0,
         "outside.*block_tables.*ends with the last"),
        (walk((") * block_size +", ") +")), 0, "before the offset"), (walk(("+ token % block_size", "+ token")), 0, "offset in"),
        (walk(("seq * max_blocks", "seq * block_size")), 2, "max_blocks entries"),
        (walk(("(block * num_kv_heads + kv_head) * block_size + token % block_size",
               "(block * block_size + token % block_size) * num_kv_heads + kv_head")), 2, "other layout"),
        (walk(("block * num_kv_heads", "block * num_heads")), 2, "not num_heads"),
        (walk(("* head_dim", "* head_dim * 4")), 0, "numbers, not.* bytes"),
        (walk(("/ block_size", "/ 16"), ("* block_size", "* 16"), ("% block_size", "% 16")), 0, "outside|not always 16"),
    ],
    "masked": [
        (masked(("    for (int offset", "    if (tables[seq * max_blocks + page + 1] == -12345) break;\n    for (int offset")), 0,
         "outside.*ends with the last page"),
        (masked((SCORE, "      if (page * 4 + offset >= seq_len) return;\n" + SCORE)), 1, "writes nothing"),
        (masked((SCORE, "      if (page * 4 + offset >= seq_len) score = -1e30f;\n" + SCORE)), 2, "nan.*0 times NaN"),
        (masked(("(seq_len + 3) / 4", "seq_len / 4")), 1, "last page was left out"),
        (masked((OFFSET, "offset < 4 && page < (seq_len + 3) / 4; ++offset")), 1, "all slots of the last page"),
        (masked((OFFSET, "offset < 4 && page * 4 + offset <= seq_len; ++offset")), 1, "one slot too many"),
        (masked(("weight * v[at]", "(page * 4 + offset < seq_len ? weight * v[at] : 0)")), 1, "still counts the empty slots"),
        (masked((OFFSET, "offset < 4 && page * 4 + offset < seq_len - 1; ++offset")), 0, "last token is number"),
    ],
    "readers": [
        (readers("kv_head + i * num_kv_heads"), 0, "neighbours share"), (readers("kv_head * 7 + i"), 1, "one model"),
        (readers("kv_head * num_kv_heads + i"), 0, "whole groups"), (readers("i"), 0, "i alone"),
        (readers("kv_head * (num_heads / num_kv_heads)"), 0, "forgets i"), (readers("kv_head + i"), 0, "overlap"),
        (readers("i / (num_heads / num_kv_heads)"), 0, "here the KV head is given"),
        (readers("kv_head * (num_heads / num_kv_heads) + i + 1"), 0, "from 0"), (readers("i % num_kv_heads"), 0, "numbers the KV"),
        (readers("i * (num_heads / num_kv_heads) + kv_head"), 0, "other way round"),
        (readers("kv_head * num_heads + i"), 0, "all query heads"),
        (readers("(kv_head + 1) * (num_heads / num_kv_heads) + i"), 0, "next group"),
    ],
    "reads_back": [
        (compares_outputs, 1, "pages 0 and 2.*isn't seen"),
        (reads(same=lambda a, b: np.array_equal(np.sort(a, 0), np.sort(b, 0))), 1, "isn't seen"),
        (reads(slots=lambda table, n, size: table[(n - 1) // size] * size + np.arange((n - 1) % size + 1),
               same=lambda a, b: np.array_equal(a, b[-len(a):])), 1, "isn't seen"),
        (reads(look_at="k"), 2, "isn't seen"),
        (reads(same=lambda a, b: np.allclose(a, b)), 2, "last bit.*isn't seen"),
        (lambda pool_k, pool_v, table, k, v: right_pages(pool_k, pool_v, table, k, v) and (len(k) % pool_k.shape[1] == 0 or bool(
            np.isnan(pool_k[table[-1], len(k) % pool_k.shape[1] :]).all())), 2, "old numbers in free slots"),
        (lambda *case: True, 1, "isn't seen"), (lambda *case: False, 0, "nobody's business"),
        (lambda pool_k, *rest: bool(np.isfinite(pool_k).all()) and right_pages(pool_k, *rest), 0, "nobody's business"),
        (lambda *case: int(right_pages(*case)), 0, "an int"),
    ],
    "see_page": [
        (sees(keep_o=False), 1, "output so far"), (sees(keep_s=False), 1, "sum so far"), (sees(start=0.0), 1, "minus infinity"),
        (sees(of=lambda m, new: new), 1, "all scores so far"), (sees(divide=True), 0, "divided"), (sees(shift=False), 0, "got"),
        (sees(sign=-1), 0, "not the other way round"),
        (sees(own=True), 1, "own largest"), (sees(dims=False), 0, "got"), (adds_in_place, 0, "changed arguments"),
        (lambda state, scores, values: (5, 1.571, np.array([62.777, 0, 0])), 0, "largest so far"),  # the shown example
    ],
    "attention_of": [
        (merges(keep=False), 0, "its own m"), (merges(keep_s=False), 0, "factor"), (merges(sign=-1), 0, "not the other way round"),
        (merges(skip=False), 2, "nan.*empty part"), (merges(of=lambda tops: tops[0]), 2, "not from the first"),
        (merges(of=np.mean), 2, "largest m of all"),
        (merges(divide=False), 0, "divided"), (merges(shift=False), 2, "only differences"),
        (lambda partials: np.mean([o / s for _, s, o in partials], 0), 0, "average"),
        (lambda partials: np.array([39.952, 39.952]), 0, "got"),  # the shown example
    ],
}


@pytest.mark.parametrize("check", RIGHT)
def test_right_answers_have_all_points(check):
    assert_right(getattr(checks, check), RIGHT[check])


@pytest.mark.parametrize("check, answer, points, hint", table(WRONG))
def test_wrong_answers_are_named(check, answer, points, hint):
    assert_wrong(getattr(checks, check), answer, points, hint)


def test_the_costs_of_the_walk_are_checked():
    row = checks.a_row()
    each, pages = 2 * row.head_dim * row.dtype_bytes, {size: -(-row.tokens // size) for size in (1, 16, 256)}
    right = {"bytes a token": each, "sectors a token": each // 32} | {f"entries at {size}": n for size, n in pages.items()}
    assert_right(checks.walk_costs, [right, {key: float(value) for key, value in right.items()}])
    for key, value, hint in [
        ("bytes a token", each // 2, "K and V"), ("sectors a token", each // 64, "K and V"),
        ("sectors a token", each // 32 * 16, "doesn't matter"), ("entries at 16", pages[16] - 1, "round up"),
        ("entries at 16", pages[16] * row.head_dim, "not for each number"), ("entries at 256", 256 * pages[256], "padding"),
        ("entries at 256", 4 * pages[256], "an entry has 4"), ("entries at 16", row.tokens / 16, "whole number"),
    ]:
        assert_wrong(checks.walk_costs, right | {key: value}, 4, hint)
