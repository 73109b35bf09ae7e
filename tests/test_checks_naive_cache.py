"""Notebook 1's checks take right answers, in whatever words, and say what is wrong with the others."""

import numpy as np
import pytest
from graded import assert_right, assert_wrong, table

import pagefault as pf
from pagefault.checks import naive_cache as checks


def plain_weights(scores, length):
    kept = np.exp(scores[:length] - max(scores[:length]))
    return [*(kept / sum(kept)), *[0] * (len(scores) - length)]


def masked_weights(scores, length):
    masked = np.where(np.arange(len(scores)) < length, scores, -np.inf)
    return pf.softmax(masked)


def weights_of(shift, total):
    """A softmax that takes off shift(scores, length), and divides by the sum of total(exponents, length)."""
    def weights(scores, length):
        e = np.exp(scores - shift(scores, length))
        return np.where(np.arange(len(scores)) < length, e, 0) / total(e, length)
    return weights


def largest(scores, length):
    return scores[:length].max()


def kept(e, length):
    return e[:length].sum()


def masked_by_a_product(scores, length):
    e = np.exp(scores - largest(scores, length)) * (np.arange(len(scores)) < length)
    return e / e.sum()


def padding_overwritten(scores, length):
    scores[length:] = -np.inf
    return pf.softmax(scores)


def kernel(line):
    return checks.ADD_SCALED.replace("// y[i] += a * x[i], for every i from 0 to n - 1", line)


MINE = "blockIdx.x * blockDim.x + threadIdx.x"
GRID = f"for (int i = {MINE}; i < n; i += gridDim.x * blockDim.x) "
STORE, ADD, DIVIDE = "  s[t] = sum;\n", "    if (t < half) s[t] += s[t + half];\n", "  for (int i = t; i < n; i += blockDim.x) y"
SYNC = "  __syncthreads();\n"


def shares(*edits):
    source = checks.SHARES
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    return source


ALL = (STORE, STORE + SYNC), (ADD, ADD + SYNC)
IN_THE_IF = ADD, "    if (t < half) { s[t] += s[t + half]; __syncthreads(); }\n"
RIGHT = {
    "weights": [plain_weights, masked_weights,
                lambda scores, length: weights_of(largest, kept)(scores, length).astype("f").tolist()],
    "add_scaled": [kernel(GRID + "y[i] += a * x[i];"), kernel(
        f"int all = gridDim.x * blockDim.x, each = (n + all - 1) / all, first = ({MINE}) * each;"
        "for (int i = first; i < first + each && i < n; ++i) y[i] = fmaf(a, x[i], y[i]);"), kernel(
        f"for (int i = 4 * ({MINE}); i < n; i += 4 * gridDim.x * blockDim.x)"  # four neighbours each
        "  for (int j = i; j < i + 4 && j < n; ++j) atomicAdd(y + j, a * x[j]);")],
    "shares": [shares(*ALL), shares((ADD, SYNC + ADD), (DIVIDE, SYNC + DIVIDE))],
}
WRONG = {
    "weights": [
        (weights_of(lambda s, n: 0, kept), 1, "above 709"),
        (weights_of(lambda s, n: s.max(), kept), 2, "product and maximum"),
        (weights_of(largest, lambda e, n: e.sum()), 2, "exponents behind"),
        (masked_by_a_product, 2, "product and maximum"),
        (padding_overwritten, 2, "changed arguments"),
        (lambda scores, length: np.array([0.1636, 0.6728, 0.1636]), 0, "len.scores. = .*of them, not 3"),  # the shown example
        (lambda scores, length: plain_weights(scores, length)[:length], 2, "0 behind the length"),
        (lambda scores, length: np.full(len(scores), 1 / length), 0, "divided by the sum"),  # right on average
        (lambda scores, length: pf.softmax(scores), 2, "weights are of all scores"),
        (lambda scores, length: np.ones(length) / length, 0, "divided by the sum"),
        (lambda scores, length: np.append(plain_weights(scores, length), 0), 0, "len.scores. = .*of them, not"),
        (lambda scores, length: [plain_weights(scores, length)[0]], 0, "len.scores. = .*of them, not 1"),
        (lambda scores, length: np.append(plain_weights(scores, length)[:length], scores[length:]), 2, "behind .*each weight is 0"),
        (lambda scores, length: weight, 0, "NameError.*not defined$"),  # noqa: F821 (that is the slip)
    ],
    "add_scaled": [
        (kernel(f"int i = {MINE}; y[i] += a * x[i];"), 1, r"x?y?\[230\].*nothing to do"),
        (kernel(f"int i = {MINE}; if (i < n) y[i] += a * x[i];"), 2, "items were left out"),
        (kernel("for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] += a * x[i];"), 0, "needs blockIdx.x"),
        (kernel(GRID.replace("i < n", "i <= n") + "y[i] += a * x[i];"), 0, r"\[256\].*past the array's end"),
        (kernel(GRID + "y[i] = a * x[i];"), 0, "to be added to"),
        (kernel(f"if ({MINE} == 0) for (int i = 0; i < n; ++i) y[i] += a * x[i];"), 0, "one thread.*don't share"),
        (kernel("if (blockIdx.x == 0) for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] += a * x[i];"), 0,
         "by one thread block.*don't share"),
        (kernel("for (int i = blockIdx.x; i < n; i += gridDim.x) if (threadIdx.x == 0) y[i] += a * x[i];"), 0, "by one thread"),
        (kernel(GRID.replace("gridDim.x * ", "") + "y[i] += a * x[i];"), 0, "y.64. was added to 2 times"),
        (kernel("for (int i = 0; i < n; ++i) y[i] += a * x[i];"), 0, "did every item"),
        (kernel(GRID.replace("int i", "int i = 1 +") .replace("+ =", "+") + "y[i] += a * x[i];"), 0, "y.0. was left out"),
        (kernel(GRID.replace("i += gridDim.x * blockDim.x", "") + "y[i] += a * x[i];"), 0, "endless.*come to an end"),
        (kernel(GRID + "y[i] += a * x[i]"), 0, "does not compile.*expected"),
        (kernel(GRID + "y[i] += a * x[i];").replace("add_scaled", "scale"), 0, "name is add_scaled"),
        (kernel(GRID + "y[i] += a * x[i];").replace("__global__", ""), 0, "without __global__"),
        (kernel(GRID + "y[i] += a * x[j];"), 0, "expected: +a kernel that compiles"),
        (kernel(GRID + "((float*)x)[i] = y[i] += a * x[i];"), 0, "x as it was"),
        (7, 0, "CUDA C, as text.*an int"),
        (kernel("if (n) {"), 0, r"add_scaled.cu:2:\d+: error: nothing closes this [^/]*$"),
    ],
    "shares": [
        (shares((STORE, STORE + SYNC), IN_THE_IF), 0, "not every thread enters"),
        (shares((STORE, STORE + SYNC), IN_THE_IF, (DIVIDE, SYNC + DIVIDE)), 0, "divergent.*same barrier"),
        (shares((STORE, STORE + SYNC)), 0, "not written yet"),
        (shares(*ALL, (DIVIDE + "[i] = x[i] / s[0];", DIVIDE[:-1] + "{ y[i] = x[i] / s[0]; __syncthreads(); }")), 1,
         "not every thread"),
        (shares((DIVIDE, SYNC + DIVIDE)), 0, "not written yet"),
        (shares((ADD, ADD + SYNC)), 0, "nan.*not written yet"),
        (shares((ADD, SYNC + ADD)), 0, "last thread first.*right the other way round"),
        (shares((STORE, STORE + SYNC), (ADD, "  __syncwarp();\n" + ADD), (DIVIDE, SYNC + DIVIDE)), 0, "not written yet"),
        (shares(*ALL, ("s[t] += s", "s[t] = s")), 0, "no thread comes too early"),
        (shares(*ALL, ("x[i] / s[0]", "x[i] / s[t]")), 0, "no thread comes too early"),
        (shares(*ALL, ("  float sum", "  if (t >= n) return;\n  float sum")), 0, "nothing was written to s.100"),
        (shares(*ALL, ("x[i] / s[0]", "x[i] / (n / threadIdx.y)")), 0, "division by zero[^\n]*barrier[^\n]*$"),
    ],
}


@pytest.mark.parametrize("check", RIGHT)
def test_right_answers_have_all_points(check):
    assert_right(getattr(checks, check), RIGHT[check])


@pytest.mark.parametrize("check, answer, points, hint", table(WRONG))
def test_wrong_answers_are_named(check, answer, points, hint):
    assert_wrong(getattr(checks, check), answer, points, hint)


def test_a_race_costs_a_point_though_the_result_is_right():
    again = "  float all = 0;\n  for (int i = 0; i < blockDim.x; ++i) all += s[i];\n  s[t] = sum;\n"  # which is there already
    answer = shares((STORE, STORE + SYNC), (ADD, ""), (DIVIDE, again + DIVIDE), ("/ s[0]", "/ all"))
    assert_wrong(checks.shares, answer, 1, "race on s.*any order")


def by_hand(m):
    return 2 * m.num_layers * m.num_kv_heads * m.head_dim * m.dtype_bytes


BYTES = [
    (lambda m: by_hand(m) // m.num_kv_heads * m.num_heads, "query heads"), (lambda m: by_hand(m) / 2, "a K and a V"),
    (lambda m: by_hand(m) // m.num_layers, "one layer"), (lambda m: by_hand(m) / 1024, "KiB"),
    (lambda m: 8 * by_hand(m), "bits"), (lambda m: by_hand(m) * m.tokens, "a whole chat"),
    (lambda m: str(by_hand(m)), "this is a str"), (lambda m: 327_680, "327,680"), (lambda m: True, "this is a bool"),
]
CHATS = [
    (lambda m, each: m.memory_gb * 2**30 // each, "GiB"), (lambda m, each: m.memory_gb * 1e9 / each, "whole chats"),
    (lambda m, each: -(-m.memory_gb * 10**9 // each), "round down"), (lambda m, each: float("nan"), "NaN"),
    (lambda m, each: m.memory_gb * 10**9 * m.tokens // each, "tokens, not chats"), (lambda m, each: 122, "122"),
    (lambda m, each: round(m.memory_gb * 10**9 / each), "round down"), (lambda m, each: m.memory_gb * 2**30 / each, "GiB"),
    (lambda m, each: -(-m.memory_gb * 2**30 // each), "GiB"), (lambda m, each: m.memory_gb / each, "GB is 10.9 bytes"),
    (lambda m, each: round(m.memory_gb * 1e9 * m.num_kv_heads / each / m.num_heads), "query heads"),
]


def test_bytes_and_chats_are_checked():
    m = checks.a_model()
    each, chats = by_hand(m), m.memory_gb * 10**9 // (by_hand(m) * m.tokens)
    assert_right(lambda answer: checks.bytes_and_chats(*answer), [(each, chats), (np.int64(each), float(chats))])
    for wrong, hint in BYTES:
        assert_wrong(lambda answer: checks.bytes_and_chats(answer, chats), wrong(m), 1, hint)
    for wrong, hint in CHATS:
        assert_wrong(lambda answer: checks.bytes_and_chats(each, answer), wrong(m, each * m.tokens), 1, hint)


@pytest.mark.parametrize("seed", range(30))
def test_chats_rounded_up_are_wrong_in_every_class(seed, monkeypatch):
    monkeypatch.setattr("pagefault.checks.base._class_seed", [seed])
    m = checks.a_model()
    exact = m.memory_gb * 1e9 / by_hand(m) / m.tokens
    assert [checks.bytes_and_chats(by_hand(m), f(exact)) for f in (int, round, np.ceil)] == [2, 1, 1]


def test_flop_and_sectors_are_checked():
    loads = checks.two_loads()
    sectors = 32 * loads.stride // 32
    right = {"fp32": 0.5, "fp16": 1, "fp16, GQA": loads.group, "load A": sectors, "load B": 2}
    assert_right(checks.flop_and_sectors, [right, {key: np.float32(value) for key, value in right.items()}])
    for key, value, hint in [
        ("fp32", 0.25, "a multiplication and an addition"), ("fp32", 1, "K and V both count"), ("fp16", 0.5, "two FLOP"),
        ("fp16", 2048, "got"), ("fp16, GQA", 1, "its own arithmetic"), ("fp16, GQA", 1 / loads.group, "bytes a FLOP"),
        ("load A", 32, "may meet in a sector"), ("load A", 4, "side by side"), ("load B", 4, "64 bytes"),
        ("load B", 32, "share sectors"),
        ("load B", "2", "this is a str"), ("load B", 64, "are bytes"), ("load A", 32 * loads.stride, "4 bytes at .*are bytes"),
        ("load A", ..., "this is still"),
    ]:
        assert_wrong(checks.flop_and_sectors, right | {key: value}, 4, hint)
    assert_wrong(checks.flop_and_sectors, {"fp32": 0.5}, 1, "entry 'fp16'")
