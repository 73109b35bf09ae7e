import numpy as np
import pytest

from pagefault import MODELS, ONE_HEAD, KVGeometry


@pytest.mark.parametrize("model, nbytes", {
    "llama-2-7b": 524_288, "llama-3-8b": 131_072, "llama-3-70b": 327_680, "opt-13b": 819_200, "deepseek-v3": 70_272,
}.items())
def test_bytes_a_token_of_known_models(model, nbytes):
    assert MODELS[model].bytes_per_token == nbytes


def test_a_layer_of_8_kv_heads_takes_4096_bytes_whatever_the_hidden_size():
    assert KVGeometry(1, 40, 8, 128).bytes_per_token == 4096
    assert ONE_HEAD.bytes_per_token == 512


def test_capacity_in_gigabytes_and_in_gibibytes():
    model = MODELS["llama-3-70b"]
    assert [model.capacity(80 * 10**9, n) for n in (8192, 2000)] == [29, 122]
    assert [model.capacity(80 * 2**30, n) for n in (8192, 2000)] == [32, 131]


@pytest.mark.parametrize("model, gpus, nbytes", [
    ("llama-3-70b", 4, 81_920), ("llama-3-70b", 8, 40_960), ("llama-3-70b", 16, 40_960),  # 8 KV heads: 16 GPUs keep copies
    ("deepseek-v3", 8, 70_272),  # the latent vector isn't split
])
def test_tensor_parallelism_splits_heads(model, gpus, nbytes):
    assert MODELS[model].shard(gpus).bytes_per_token == nbytes


def test_a_sliding_window_stops_growing():
    mistral, gemma = MODELS["mistral-7b-v0.1"], MODELS["gemma-3-27b"]
    assert mistral.bytes(4096) == mistral.bytes(100_000) == 4096 * mistral.bytes_per_token
    assert gemma.bytes(1024) == 1024 * gemma.bytes_per_token
    assert gemma.bytes(2000) - gemma.bytes(1999) == 10 * gemma.bytes_per_token_layer


@pytest.mark.parametrize("call, message", [
    (lambda: KVGeometry(1, 6, 4, 64), "6 query heads can't share 4 KV heads"),
    (lambda: KVGeometry(0, 4, 4, 64), "num_layers = 0"),
    (lambda: KVGeometry(1, 4, 4, 64, window=5), "window = 5 in 0 of 1 layers"),
    (lambda: MODELS["llama-3-70b"].shard(3), "can't be split over 3 GPUs"),
    (lambda: MODELS["llama-3-70b"].shard(0), "tensor_parallel = 0, it is at least 1"),
    (lambda: ONE_HEAD.capacity(100, 0), "seq_len = 0"),
    (lambda: ONE_HEAD.capacity(float("nan"), 1), "budget_bytes = nan"),
    (lambda: KVGeometry(1, 4, 4, 64, latent_dim=-5), "latent_dim = -5"),
    (lambda: ONE_HEAD.bytes(-1), "seq_len = -1"),
])
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("call, message", [
    (lambda: KVGeometry(32.5, 4, 4, 64), "num_layers = 32.5, a whole number"),
    (lambda: KVGeometry(True, 4, 4, 64), "num_layers = True, a whole number"),
    (lambda: ONE_HEAD.bytes(float("nan")), "seq_len = nan, a whole number"),
    (lambda: MODELS["llama-3-70b"].shard(2.0), "tensor_parallel = 2.0, a whole number"),
])
def test_what_is_not_a_whole_number_is_refused(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_numpys_small_integers_do_not_overflow():
    assert MODELS["llama-3-8b"].bytes(np.int32(20_000)) == 2_621_440_000
    assert MODELS["llama-3-8b"].bytes(np.uint8(255)) == 255 * 131_072
