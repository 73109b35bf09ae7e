"""Notebook 1's checks take right answers, in whatever words, and say what is wrong with the others."""

import numpy as np
import pytest

import pagefault as pf
from pagefault.checks import naive_cache as checks


def plain_weights(scores, length):
    kept = np.exp(scores[:length] - max(scores[:length]))
    return [*(kept / sum(kept)), *[0] * (len(scores) - length)]


def masked_weights(scores, length):
    masked = np.where(np.arange(len(scores)) < length, scores, -np.inf)
    e = np.exp(masked - masked.max()).astype(np.float32)
    return e.astype(np.float64) / e.sum(dtype=np.float64)


def no_maximum(scores, length):
    e = np.exp(scores[:length])
    return np.concatenate([e / e.sum(), np.zeros(len(scores) - length)])


def maximum_of_all(scores, length):
    e = np.exp(scores[:length] - scores.max())
    return np.concatenate([e / e.sum(), np.zeros(len(scores) - length)])


def sum_of_all(scores, length):
    e = np.exp(scores - scores[:length].max())
    return np.where(np.arange(len(scores)) < length, e, 0) / e.sum()


def masked_by_a_product(scores, length):
    e = np.exp(scores - scores[:length].max()) * (np.arange(len(scores)) < length)
    return e / e.sum()


def padding_overwritten(scores, length):
    scores[length:] = -np.inf
    return pf.softmax(scores)


def the_shown_example(scores, length):
    return np.array([0.1636, 0.6728, 0.1636])


RIGHT = {"weights": [plain_weights, lambda scores, length: np.append(pf.softmax(scores[:length]), [0] * (len(scores) - length))]}
WRONG = {
    "weights": [
        (no_maximum, 1, "exp.. of anything above 709"),
        (maximum_of_all, 2, "largest of all scores"),
        (sum_of_all, 2, "exponents behind"),
        (masked_by_a_product, 2, "NaN times 0"),
        (padding_overwritten, 2, "changed arguments"),
        (the_shown_example, 0, "exp.score., divided"),
        (lambda scores, length: plain_weights(scores, length)[:length], 2, "0 for each of the others"),
        (lambda scores, length: np.full(len(scores), 1 / length), 0, "exp.score., divided"),  # right on average
        (lambda scores, length: pf.softmax(scores), 2, "these weights are of all scores"),
    ],
}


def shape():
    return checks.a_model()


def right_bytes(m):
    return 2 * m.num_layers * m.num_kv_heads * m.head_dim * m.dtype_bytes


WRONG_BYTES = [
    (lambda m: right_bytes(m) // m.num_kv_heads * m.num_heads, "query heads"),
    (lambda m: right_bytes(m) / 2, "a K and a V"),
    (lambda m: right_bytes(m) // m.num_layers, "one layer"),
    (lambda m: right_bytes(m) / 1024, "KiB"),
    (lambda m: str(right_bytes(m)), "a number is needed, and this is a str"),
    (lambda m: 327_680, ""),  # the shown example
    (lambda m: True, "this is a bool"),
]
WRONG_CHATS = [
    (lambda m, each: m.memory_gb * 2**30 // each, "GiB"),
    (lambda m, each: m.memory_gb * 10**9 / each, "whole chats"),
    (lambda m, each: -(-m.memory_gb * 10**9 // each), "round down"),
    (lambda m, each: m.memory_gb * 10**9 // (each // m.tokens), "tokens, not chats"),
    (lambda m, each: 122, ""),
    (lambda m, each: float("nan"), "NaN"),
]


def test_bytes_and_chats_are_checked():
    m = shape()
    each = right_bytes(m)
    chats = m.memory_gb * 10**9 // (each * m.tokens)
    assert checks.bytes_and_chats(each, chats) == checks.bytes_and_chats(np.int64(each), float(chats)) == 2
    for wrong, hint in WRONG_BYTES:
        score = checks.bytes_and_chats(wrong(m), chats)
        assert score == 1 and hint in str(score).lower() + str(score)
    for wrong, hint in WRONG_CHATS:
        score = checks.bytes_and_chats(each, wrong(m, each * m.tokens))
        assert score == 1 and hint in str(score).lower() + str(score)


@pytest.mark.parametrize("check", RIGHT)
def test_right_answers_have_all_points(check):
    for answer in RIGHT[check]:
        score = getattr(checks, check)(answer)
        assert score == score.out_of, score


@pytest.mark.parametrize("check, wrong, points, hint", [(check, *row) for check, rows in WRONG.items() for row in rows])
def test_wrong_answers_are_named(check, wrong, points, hint):
    score = getattr(checks, check)(wrong)
    assert score == points
    said(score, hint)
