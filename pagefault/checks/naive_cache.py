"""Checks of notebook 1's exercises."""

import re
from functools import partial
from types import SimpleNamespace

import numpy as np

from ..cpu import on_cpu
from ..errors import KernelError
from .base import Wrong, compare, draws, exercise, same
from .cuda import SECONDS, barrier_of_some, compiled, launch, same_source
from .values import close, number, numbers

ADD_SCALED = """
__global__ void add_scaled(const float* x, float* y, float a, int n) {
  // y[i] += a * x[i], for every i from 0 to n - 1
}"""

SHARES = """
__global__ void shares(const float* x, float* y, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = t; i < n; i += blockDim.x) sum += x[i];
  s[t] = sum;
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) s[t] += s[t + half];
  }
  for (int i = t; i < n; i += blockDim.x) y[i] = x[i] / s[0];
}"""


def right_weights(scores, length):
    weights = np.zeros(len(scores))
    kept = np.exp(scores[:length] - scores[:length].max())
    weights[:length] = kept / kept.sum()
    return weights


@exercise()
def weights(answer):
    """Exercise 1.1: a softmax over the first scores of a row."""
    random = draws("1.1")

    def rows(scale, behind=()):
        found = []
        for n in random.permutation([1, 3, 6, 9]):
            scores = np.clip(scale * random.standard_normal(n), -1e5, 1e5)
            found.append((np.concatenate([scores, np.resize(behind, 4 if len(behind) else 0)]), int(n)))
        return found

    def all_scores(scores, length):
        return np.exp(scores - np.max(scores)) / np.exp(scores - np.max(scores)).sum()

    def all_summed(scores, length):
        kept = np.exp(scores - scores[:length].max())
        return kept / kept.sum() * (np.arange(len(scores)) < length)

    slips = {"These weights are of all scores: only the first `length` count, and the others' weights are 0.": all_scores,
             "The sum has the exponents behind `length` in it.": all_summed,
             "As many weights as scores are asked for: 0 behind the length.": lambda s, n: right_weights(s[:n], n)}

    def run(cases, hint):
        def other(got, scores, length):
            got = None if got is None else numbers(got)
            if got is not None and got.shape != scores.shape:
                return f"A weight for each score is asked for: len(scores) = {len(scores)} of them, not {got.size}."
            if got is not None and close(got[:length], right_weights(scores, length)[:length]):
                return "Behind the first `length` each weight is 0."
            return hint
        return lambda: compare(answer, cases, right_weights, slips, numbers, other)

    large = "exp() of anything above 709 is infinite: the largest of the scores that count must be taken off first."
    nan = "Behind the length anything may stand, NaN too: leave those scores out of every sum, product and maximum."
    return [(1, "rows without padding", run(rows(2), "exp(score), divided by the sum of them.")),
            (1, "scores as large as 100,000", run(rows(1e5), large)),
            (1, "padding: larger scores, and NaN", run(rows(2, [5.0, 9.0]) + rows(1e4, [1e5, np.nan]), nan))]


def a_model():
    """Print the shape of the model of exercise 1.2, and return it."""
    random = draws("1.2")
    kv_heads = int(random.choice([2, 4, 8]))
    kept = None
    while kept is None or not 0.6 < kept % 1 < 0.9:  # rounded down it is another number than rounded
        model = _model(random, kv_heads)
        kept = model.memory_gb * 1e9 / (4 * model.num_layers * kv_heads * model.head_dim * model.tokens)
    print(f"{model.num_layers} layers, {model.num_heads} query heads, {model.num_kv_heads} KV heads, head_dim {model.head_dim},",
          f"{model.dtype_bytes} bytes a number; chats of {model.tokens:,} tokens, {model.memory_gb} GB for them")
    return model


def _model(random, kv_heads):
    return SimpleNamespace(
        num_layers=int(random.choice([28, 36, 48, 60])), num_heads=int(random.choice([3, 5, 7])) * kv_heads, num_kv_heads=kv_heads,
        head_dim=int(random.choice([64, 96, 128])), dtype_bytes=2, tokens=int(random.choice([1500, 2000, 3000])),
        memory_gb=int(random.choice([24, 40, 60])))


@exercise()
def bytes_and_chats(bytes_per_token, chats):
    """Exercise 1.2: what a token takes, and how many chats fit."""
    m = a_model()
    heads, one = m.num_layers * m.head_dim * m.dtype_bytes, m.num_layers * m.num_kv_heads * m.head_dim * m.dtype_bytes
    given = f"{m.num_layers} layers, {m.num_heads} query and {m.num_kv_heads} KV heads of {m.head_dim}, {m.dtype_bytes} bytes"
    slips = {"That is with the query heads: queries are used once and not kept.": 2 * heads * m.num_heads,
             "A token has a K and a V, and a number takes 2 bytes.": one,
             "That is one layer; each has its own K and V.": 2 * one // m.num_layers,
             "All KV heads have a K and V of their own.": 2 * heads,
             "That is KiB: bytes are asked for.": 2 * one / 1024, "That is bits: a byte has 8.": 16 * one,
             "That is a whole chat: one token is asked for.": 2 * one * m.tokens}
    per_chat, memory = 2 * one * m.tokens, m.memory_gb * 10**9

    def counts():
        def rounded(exact):
            """The answer, if it is this number or what it is when rounded up or down."""
            mine = number(chats)
            return mine if close(mine, exact) or mine in (exact // 1, exact // 1 + 1) else None

        return {"The last one does not fit any more: round down.": memory // per_chat + 1,
                "Whole chats are asked for.": memory / per_chat,
                "memory_gb counts GB, and a GB is 10^9 bytes.": rounded(m.memory_gb / per_chat),
                "That counts in GiB; a GB is 10^9 bytes.": rounded(m.memory_gb * 2**30 / per_chat),
                "That is tokens, not chats.": rounded(memory / (2 * one)),
                "That is with the query heads.": rounded(memory / (2 * heads * m.num_heads * m.tokens)),
                "A token has a K and a V.": rounded(memory / (one * m.tokens)),
                "Each layer has its own K and V.": rounded(m.num_layers * memory / per_chat)}

    return [(1, "bytes a token", lambda: same(bytes_per_token, 2 * one, given, lambda: slips)),
            (1, "chats", lambda: same(chats, memory // per_chat, f"{m.memory_gb} GB, chats of {m.tokens:,} tokens", counts))]


def add_scaled_part(source, shapes):
    def run():
        kernel, random = compiled(source, "add_scaled"), draws("1.3")
        for n, grid, threads in shapes:
            x, y, a = random.permutation(n).astype("f") + 1, random.permutation(n).astype("f"), float(random.randint(2, 9))
            i, all_threads = np.arange(n), grid * threads
            slips = {"y is to be added to: y[i] += ..., not y[i] = ...": a * x,
                     "Every thread block did the same items: i needs blockIdx.x too, so that each thread has its own.":
                         y + grid * a * x,
                     "Every thread block did the first items: i needs blockIdx.x too, so that each thread has its own.":
                         np.where(i < threads, y + grid * a * x, y),
                     "Every thread did every item: all threads of the grid share them.": y + all_threads * a * x,
                     "Some items were left out: a thread takes i, and then i + all threads of the grid, and so on.":
                         np.where(i < all_threads, y + a * x, y),
                     "Only the first thread block's items were done: i = blockIdx.x * blockDim.x + threadIdx.x.":
                         np.where(i < threads, y + a * x, y)}
            launch(kernel, (grid,), (threads,), (x, y, a, n), a_launch(n, grid, threads), {1: y + a * x}, lambda s=slips: s,
                   partial(how_often, x, y, a))
        shared_work(kernel)
    return run


def a_launch(n, grid, threads):
    return f"n = {n}, {f'{grid} thread blocks' if grid > 1 else 'a thread block'} of {threads}"


def how_often(x, y, a, got):
    """The hint of a result in which items were done twice, or not at all."""
    times = (got - y) / (a * x)
    if not close(times, np.rint(times), 1e-3) or close(times, np.ones(len(x)), 1e-3):
        return None
    if (times > 1.5).any():
        i = int(np.argmax(times > 1.5))
        return (f"y[{i}] was added to {times[i]:.0f} times: no two threads may have the same item. Each begins at its own number "
                "in the grid, and goes on by as many as the whole grid has threads.")
    return f"y[{int(np.argmin(times))}] was left out. A thread begins at its own number in the grid, and goes on to the end."


def shared_work(kernel):
    """Refuse a kernel in which items that lie far apart are one thread's, or one thread block's.

    x is lent to it as y's array, some items further on. Whoever adds to y[i] reads what another thread writes, or another
    thread block: that is a race, which shows that there are others. (Threads may take four neighbours each.)
    """
    def races(n, grid, threads, shift):
        both = np.ones(n + shift, np.float32)
        try:
            with on_cpu(time_limit=SECONDS, lines=0):
                found = kernel.check((grid,), (threads,), (both[shift:], both[:n], 1.0, n))
        except KernelError:  # the places of a race can't be told here, and so there is one
            return True
        return any(grid == 1 or len(set(re.findall(r"thread block (\(.*?\))", fault))) > 1 for fault in found)

    for n, grid, threads, shift, who in ((32, 1, 32, 16, "thread"), (256, 4, 64, 128, "thread block")):
        if not races(n, grid, threads, shift) and not races(4 * n, grid, threads, 3 * shift):
            raise Wrong(a_launch(n, grid, threads), "work for all threads", f"y[0] and y[{shift}] are done by one {who}",
                        "The threads don't share the work: each of the grid takes items of its own, by blockIdx.x, blockDim.x "
                        "and threadIdx.x.")


@exercise(blank=lambda source: source is None or same_source(source, ADD_SCALED))
def add_scaled(source):
    """Exercise 1.3: a kernel for any number of items and any launch."""
    return [(1, "as many threads as numbers", add_scaled_part(source, [(256, 4, 64), (96, 3, 32)])),
            (1, "more threads than numbers", add_scaled_part(source, [(230, 4, 64), (1, 2, 32)])),
            (1, "fewer threads than numbers", add_scaled_part(source, [(1000, 4, 64), (333, 2, 32)]))]


OF_SOME = "A barrier stands in an if, or in a loop, that not every thread enters as often: move it out, so that all come to it."


@exercise(blank=lambda source: source is None or same_source(source, SHARES))
def shares(source):
    """Exercise 1.4: a reduction that is right whichever thread comes first."""
    def run(races):
        kernel, random, some = compiled(source, "shares"), draws("1.4"), barrier_of_some(source)
        for n, threads in ((100, 128), (500, 256), (256, 64), (3, 2)):
            x = random.permutation(n).astype("f") + 1
            launch(kernel, (1,), (threads,), (x, np.zeros(n, "f"), n), f"{n} numbers, {threads} threads",
                   {1: x / x.sum()}, races=races,
                   racing=OF_SOME if some else
                   "A thread uses what another has not written yet: between which lines must all threads wait for all?",
                   hint="No thread comes too early here: these are other sums. Only barriers were missing.")
        if races and some:
            raise Wrong(expected="barriers to which all threads come", got="one in an if, or in a loop, of some", hint=OF_SOME)
    return [(1, "right with the first thread first, and the last", lambda: run(False)), (1, "no race", lambda: run(True))]


def two_loads():
    """Print the three cases and two loads of exercise 1.5, and return them."""
    random = draws("1.5")
    loads = SimpleNamespace(group=int(random.choice([5, 6, 7, 8])), stride=int(random.choice([8, 12, 16, 20])))
    print(f"GQA: {loads.group} query heads share a KV head")
    print(f"load A: lane i reads the 4 bytes at {loads.stride} * i; load B: lane i reads the 2 bytes at 2 * i")
    return loads


@exercise()
def flop_and_sectors(prediction):
    """Exercise 1.5: FLOP a byte of K and V read, and sectors of two loads of a warp."""
    loads = two_loads()
    byte = np.arange(32) * loads.stride
    sectors = len(np.unique(byte // 32))

    def part(key, expected, slips, given=""):
        def run():
            if type(prediction) is not dict or key not in prediction:
                raise Wrong(expected=f"a dict with the entry {key!r}", got=prediction)
            same(prediction[key], expected, key + given, lambda: slips, number)
        return 1, key, run

    def flop(bytes_each, group):
        each = 2 * group / bytes_each
        return each, {"Each number of K, and of V, has a multiplication and an addition: two FLOP.": each / 2,
                      "K and V both count, in the FLOP and in the bytes.": 2 * each,
                      "Each of the query heads that share a KV head does its own arithmetic with it.": 2 / bytes_each,
                      "That is bytes a FLOP.": 1 / each}

    return [part("fp32", *flop(4, 1)), part("fp16", *flop(2, 1)), part("fp16, GQA", *flop(2, loads.group)),
            part("load A", sectors, {"Neighbouring lanes may meet in a sector of 32 bytes.": 32,
                                     "Those are bytes: a sector has 32 of them.": 32 * loads.stride,
                                     "That is so for lanes that read side by side.": 4,
                                     "The first one is number 0, and counts: the last lane's sector has that number.": sectors - 1,
                                     "A sector of which a part is read counts whole.": (31 * loads.stride + 4) / 32},
                 f": 4 bytes at {loads.stride} * i, for i from 0 to 31"),
            part("load B", 2, {"32 lanes of 2 bytes ask for 64 bytes.": 4, "One sector has 32 bytes.": 1,
                               "Those are bytes: a sector has 32 of them.": 64,
                               "Lanes that read side by side share sectors.": 32}, ": 2 bytes at 2 * i, for i from 0 to 31")]
