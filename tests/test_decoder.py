"""The decoder gives what a Llama written down plainly gives, whatever its cache looks like."""

import numpy as np
import pytest

from pagefault import RequestTooLarge, on_cpu
from pagefault.decoder import Decoder
from pagefault.llama import LLAMAS, LlamaShape, random_weights

SMALL = LlamaShape(num_layers=3, hidden=48, num_heads=6, num_kv_heads=2, head_dim=16, mlp=80, vocabulary=97)
TABLE = np.array([[3, 1, 6, 0]])


def plain_llama(shape, weights, tokens):
    """The logits after each token, [tokens, vocabulary]: float64, no cache, all positions at once."""
    def norm(x, weight):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + shape.norm_epsilon) * weight

    def turned(x):  # each pair of dims as a complex number
        angles = np.arange(n)[:, None] * shape.rope_base ** (-np.arange(0, size, 2) / size)
        return ((x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None]).view(np.float64)

    n, heads, kv_heads, size = len(tokens), shape.num_heads, shape.num_kv_heads, shape.head_dim
    x = weights["embedding"][tokens].astype(np.float64)
    for w in ({name: a.astype(np.float64) for name, a in layer.items()} for layer in weights["layers"]):
        qkv = (norm(x, w["attention_norm"]) @ w["qkv"]).reshape(n, -1, size)
        q, k, v = turned(qkv[:, :heads]), turned(qkv[:, heads : heads + kv_heads]), qkv[:, heads + kv_heads :]
        out = np.empty((n, heads, size))
        for head in range(heads):
            kv_head = head * kv_heads // heads
            scores = np.where(np.tri(n) > 0, q[:, head] @ k[:, kv_head].T / size**0.5, -np.inf)
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = scores / scores.sum(axis=1, keepdims=True) @ v[:, kv_head]
        x = x + out.reshape(n, -1) @ w["attention_out"]
        gate, up = np.split(norm(x, w["mlp_norm"]) @ w["gate_up"], 2, axis=1)
        x = x + gate / (1 + np.exp(-gate)) * up @ w["down"]
    return norm(x, weights["norm"].astype(np.float64)) @ weights["output"].astype(np.float64)


def feed(decoder, tokens, parts):
    """The logits after each token, fed in parts of so many."""
    found, start = [], 0
    for n in parts:
        rows = range(start, start + n)
        logits = decoder.step(tokens[start : start + n], rows, np.repeat(TABLE, n, axis=0), range(n))
        found += np.asarray(logits.get() if hasattr(logits, "get") else logits, np.float64).tolist()
        start += n
    return np.array(found)


@pytest.mark.parametrize("shape, dtype, bound", [(SMALL, np.float32, 2e-5), (LLAMAS["tiny"], np.float32, 2e-5),
                                                 (LLAMAS["tiny"], np.float16, 2e-2)])
@pytest.mark.parametrize("parts", [[37, 1, 1, 1], [1] * 5 + [35], [16, 16, 8]])
def test_its_logits_are_the_plain_models(shape, dtype, bound, parts):
    weights, tokens = random_weights(shape, seed=1), np.random.RandomState(0).randint(shape.vocabulary, size=40)
    decoder = Decoder(shape, weights, num_blocks=7, max_len=64, dtype=dtype)
    exact = plain_llama(shape, random_weights(shape, seed=1), tokens)
    assert abs(feed(decoder, tokens, parts) - exact).max() <= bound
    assert not np.isnan(decoder.cache.k[decoder.in_all_layers([3, 1])]).any()  # full, in every layer
    assert np.isnan(decoder.cache.k[decoder.in_all_layers([2, 4, 5])]).all()  # nobody's


def test_its_other_rows_change_no_bit_without_splits_and_with_one_row_count():
    weights, tokens = random_weights(SMALL), np.random.RandomState(0).randint(97, size=20)
    decoder = Decoder(SMALL, weights, 7, max_len=64, row_counts=(8,), split=False)
    tables = np.array([[0, 1, -1, -1], [4, 5, -1, -1]])
    alone = [decoder.step([t], [i], tables[:1], [0])[0].tobytes() for i, t in enumerate(tokens)]
    beside = [decoder.step([90 - i, t], [i, i], tables[::-1], [1])[0].tobytes() for i, t in enumerate(tokens)]
    assert alone == beside


def test_long_contexts_are_split_and_right():
    shape = LlamaShape(1, 32, 4, 1, 8, 16, 31)
    weights, tokens = random_weights(shape), np.random.RandomState(0).randint(31, size=400)
    decoder = Decoder(shape, weights, 25, max_len=400)
    table = np.random.RandomState(1).permutation(25)[None]
    decoder.step(tokens[:399], range(399), np.repeat(table, 399, axis=0), [0])
    logits = decoder.step(tokens[399:], [399], table, [0])
    assert decoder.arrays["chunks"][:, 4].max() > 1
    assert abs(logits - plain_llama(shape, weights, tokens)[-1]).max() <= 2e-5


@pytest.mark.parametrize("change, error, text", [
    (dict(tokens=[97]), ValueError, "token 97 of 97"), (dict(tokens=[-1]), ValueError, "token -1 of 97"),
    (dict(positions=[64]), ValueError, "position 64 of 64"), (dict(tables=[[7, 0, 0, 0]]), ValueError, "block 7 of 7"),
    (dict(positions=[20], tables=[[3, -1, 0, 0]]), ValueError, "block -1 of 7"),
    (dict(tokens=[1, 2]), ValueError, "2 tokens, 1 positions"),
    (dict(tokens=[1] * 9, positions=[0] * 9, tables=[[0] * 4] * 9), RequestTooLarge, "a step of 9 rows, and there is room for 8"),
])
def test_it_refuses_rows_that_cannot_be_before_anything_is_stored(change, error, text):
    decoder = Decoder(SMALL, random_weights(SMALL), 7, max_len=64, row_counts=(8,))
    with pytest.raises(error, match=text):
        decoder.step(**dict(tokens=[1], positions=[0], tables=[[3, -1, -1, -1]], wanted=[0]) | change)
    assert np.isnan(decoder.cache.k).all()


@pytest.mark.parametrize("name, text", [("layers", "weights of 2 layers, and the shape has 3"), ("norm", r"norm is \[47\]"),
                                        ("qkv", r"layer 1's qkv is \[48, 1\]")])
def test_it_refuses_weights_of_another_shape(name, text):
    weights = random_weights(SMALL)
    if name == "layers":
        weights["layers"] = weights["layers"][:2]
    elif name == "norm":
        weights["norm"] = weights["norm"][:47]
    else:
        weights["layers"][1] = weights["layers"][1] | {"qkv": np.ones((48, 1))}
    with pytest.raises(ValueError, match=text):
        Decoder(SMALL, weights, 7)


@pytest.mark.parametrize("change, text", [(dict(head_dim=12), "head_dim = 12"), (dict(num_kv_heads=4), "6 query heads"),
                                          (dict(mlp=0), "mlp = 0")])
def test_a_shape_that_cannot_be_is_refused(change, text):
    with pytest.raises(ValueError, match=text):
        LlamaShape(**vars(SMALL) | change)


@pytest.mark.gpu
@pytest.mark.parametrize("shape, dtype, bound", [(SMALL, np.float32, 1e-4), (LLAMAS["tiny"], np.float16, 2e-2)])
@pytest.mark.parametrize("checked", [False, True])
def test_on_a_gpu_it_gives_the_same(shape, dtype, bound, checked):
    import cupy

    weights, tokens = random_weights(shape, seed=1), np.random.RandomState(0).randint(shape.vocabulary, size=40)
    decoder = Decoder(shape, weights, 7, max_len=64, dtype=dtype, xp=cupy, checked=checked)
    for parts in ([37, 1, 1, 1], [1] * 5 + [35], [16, 16, 8]):
        assert abs(feed(decoder, tokens, parts) - plain_llama(shape, weights, tokens)).max() <= bound


@pytest.mark.parametrize("backwards", [False, True])
def test_its_kernels_have_no_races(backwards):
    decoder = Decoder(SMALL, random_weights(SMALL), 7, max_len=64)
    with on_cpu(backwards=backwards):
        decoder.step([1, 2, 3], range(3), np.repeat(TABLE, 3, axis=0), [2])
        calls, _, _ = decoder._made[4]
        names = {call.kernel.name.split("<")[0]: call.check() for call in calls if hasattr(call, "check")}
    assert names == {name: [] for name in ("rms_norm", "rope", "append", "split_kv", "swiglu")}
