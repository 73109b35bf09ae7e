"""A model's weights and tokenizer, from its file."""

import sys

import numpy as np
import pytest
import tiny_gguf as tiny

from pagefault.gguf_file import load_llama
from pagefault.llama import LlamaShape
from pagefault.tokenizer import load_tokenizer

pytest.importorskip("gguf", reason="a model's file is read with the package gguf (extra: model)")
pytest.importorskip("tokenizers", reason="a model's text is read with the package tokenizers (extra: model)")


def written(tmp_path, drop=(), add=(), more=(), **how):
    """A file without the tensors and keys of drop, with the metadata of add and the tensors of more."""
    parts = [tiny.tensors() | dict(more), tiny.metadata() | dict(add)]
    weights, keys = [{name: part[name] for name in part if name not in drop} for part in parts]
    return tiny.write_gguf(tmp_path / "tiny.gguf", weights, keys, **how)


def test_the_shape_comes_from_the_metadata(tmp_path):
    shape, _ = load_llama(written(tmp_path))
    assert shape == LlamaShape(2, 32, 4, 2, 8, 64, 256 + 3 + 7, rope_base=500_000.0, norm_epsilon=2.0**-17)


def test_what_files_may_leave_out_has_a_default(tmp_path):
    drop = ["llama.rope.freq_base", "llama.rope.dimension_count", "tokenizer.ggml.tokens"]
    shape, _ = load_llama(written(tmp_path, drop))
    assert shape == LlamaShape(2, 32, 4, 2, 8, 64, 256 + 3 + 7, rope_base=10_000.0, norm_epsilon=2.0**-17)


@pytest.mark.parametrize("head_dim", [8, 16])
@pytest.mark.parametrize("untied", [False, True])
def test_every_weight_is_where_it_belongs(untied, head_dim, tmp_path):
    stored, keys = tiny.tensors(1, head_dim, untied), tiny.metadata(head_dim) | {"llama.attention.key_length": head_dim}
    shape, weights = load_llama(tiny.write_gguf(tmp_path / "tiny.gguf", stored, keys))
    q, kv = 4 * head_dim, 2 * head_dim
    assert shape.head_dim == head_dim and len(weights["layers"]) == 2
    found = {"token_embd": weights["embedding"], "output_norm": weights["norm"], "output": weights["output"].T}
    for i, layer in enumerate(weights["layers"]):
        parts = {"attn_norm": layer["attention_norm"], "ffn_norm": layer["mlp_norm"]}
        parts |= zip(["attn_q", "attn_k", "attn_v"], np.split(layer["qkv"].T, [q, q + kv]))
        parts |= zip(["ffn_gate", "ffn_up"], np.split(layer["gate_up"].T, 2))
        parts |= {"attn_output": layer["attention_out"].T, "ffn_down": layer["down"].T}
        found |= {f"blk.{i}.{name}": parts[name] for name in parts}
    wanted = {"output.weight": stored["token_embd.weight"]} | stored  # tied to the embedding if the file has no output
    assert {f"{name}.weight" for name in found} == set(wanted)
    assert all(np.array_equal(found[name], wanted[f"{name}.weight"]) for name in found)
    arrays = [weights["embedding"], weights["norm"], weights["output"], *(a for layer in weights["layers"] for a in layer.values())]
    assert all(type(a) is np.ndarray and a.dtype == np.float32 and a.flags.c_contiguous and a.flags.writeable for a in arrays)


def test_quantized_and_half_precision_weights_become_float32(tmp_path):
    stored, down, up = tiny.tensors(), "blk.1.ffn_down.weight", "blk.0.ffn_up.weight"
    path = written(tmp_path, more={up: stored[up].astype(np.float16)}, q8_0=[down])
    layers = load_llama(path)[1]["layers"]
    assert np.array_equal(layers[0]["gate_up"][:, 64:], stored[up].astype(np.float16).astype(np.float32).T)
    blocks, read = stored[down].reshape(-1, 32), layers[1]["down"].T.reshape(-1, 32)  # Q8_0: a scale for 32 numbers
    step = abs(blocks).max(1, keepdims=True) / 127
    assert 0 < (abs(read - blocks) / step).max() <= 0.5 + 127 / 2**11  # half a step, and the scale is a half-precision number
    assert all(len(np.unique(row)) <= 32 for row in np.round(read / step).astype(int))


BIAS, SMALL = np.zeros(32, np.float32), np.zeros((16, 16), np.float32)


@pytest.mark.parametrize("change, message", [
    (dict(architecture="gptneox"), "tiny.gguf holds a model of the architecture 'gptneox', 'llama' is needed"),
    (dict(drop=["llama.block_count"]), "tiny.gguf has no llama.block_count"),
    (dict(drop=["llama.attention.layer_norm_rms_epsilon"]), "has no llama.attention.layer_norm_rms_epsilon"),
    (dict(drop=["token_embd.weight"]), "tiny.gguf has no tensor token_embd.weight"),
    (dict(drop=["output_norm.weight"]), "has no tensor output_norm.weight"),
    (dict(drop=["blk.1.attn_v.weight"]), "has no tensor blk.1.attn_v.weight"),
    (dict(add={"llama.block_count": 3}), "has no tensor blk.2.attn_norm.weight"),
    (dict(add={"llama.block_count": 1}), "has 9 tensors that this decoder has no place for, blk.1.attn_k.weight among them"),
    (dict(more={"blk.0.attn_q.bias": BIAS}), "has 1 tensors that .* no place for, blk.0.attn_q.bias among"),
    (dict(more={"blk.0.attn_k.weight": SMALL}), r"blk.0.attn_k.weight is of shape \(16, 16\), \(16, 32\) is needed"),
    (dict(more={"token_embd.weight": BIAS}), r"token_embd.weight is of shape \(32,\), \(32, 32\) is needed"),
    (dict(more={"output_norm.weight": np.zeros(32, np.int8)}), "output_norm.weight is of a type that .* can't read: .*I8"),
    (dict(add={"llama.attention.head_count": 0}), "tiny.gguf: llama.attention.head_count = 0, it is at least 1"),
    (dict(add={"llama.attention.value_length": 4}), "llama.attention.value_length = 4, 8 is needed"),
    (dict(add={"llama.rope.dimension_count": 4}), "llama.rope.dimension_count = 4, 8 is needed"),
    (dict(add={"llama.rope.scaling.type": "yarn"}), "llama.rope.scaling.type = 'yarn', 'none' is needed"),
])  # fmt: skip
def test_a_model_of_another_kind_is_refused_by_name(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_llama(written(tmp_path, **change))


@pytest.mark.parametrize("load", [load_llama, load_tokenizer])
def test_a_file_that_is_not_a_whole_gguf_file_is_refused(load, tmp_path):
    whole = written(tmp_path).read_bytes()
    for data in [b"not a model", b"", *(whole[:n] for n in [*range(1, 5000, 250), len(whole) // 2, len(whole) - 1])]:
        (tmp_path / "part.gguf").write_bytes(data)
        with pytest.raises(ValueError, match="part.gguf can't be read as a whole GGUF file"):
            load(tmp_path / "part.gguf")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.gguf")


@pytest.mark.parametrize("load, package", [(load_llama, "gguf"), (load_tokenizer, "gguf"), (load_tokenizer, "tokenizers")])
def test_a_missing_package_gives_one_clear_error(load, package, monkeypatch, tmp_path):
    path = written(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"read with {package}, which is not installed:\n  pip install \"pagefault\[model\]\""):
        load(path)


TEXTS = ["", "the sea", " the  sea\n\tand the rest", "2024, 20 and 3.14", "naïve café: 東京 \N{GRINNING FACE}", "\0\x7f\r"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_survives_being_tokens(text, tmp_path):
    tokenizer = load_tokenizer(written(tmp_path))
    assert tokenizer.decode(np.array(tokenizer.encode(text), np.int32)) == text


def test_tokens_are_the_files_merges_digits_and_control_tokens(tmp_path):
    tokenizer, ids = load_tokenizer(written(tmp_path)), tiny.vocabulary().index
    assert tokenizer.encode("the the sea") == [ids("the"), ids("Ġthe"), ids("Ġsea")]
    assert tokenizer.encode("20") == [ids("2"), ids("0")]  # a digit is a token, whatever the merges say
    assert tokenizer.encode("a<|im_end|>b") == [ids("a"), 2, ids("b")] and tokenizer.eos == 2
    assert tokenizer.decode([1, ids("the"), 2]) == "the"


def test_a_message_is_put_as_the_files_template_puts_it(tmp_path):
    jinja2 = pytest.importorskip("jinja2", reason="a template is followed with the package jinja2, which JupyterLab needs")
    tokenizer = load_tokenizer(written(tmp_path))
    for text in ["What is a page table?", "{} {0} %s"]:
        form = jinja2.Template(tiny.TEMPLATE, keep_trailing_newline=True).render(messages=[dict(role="user", content=text)])
        assert tokenizer.chat(text) == tokenizer.encode(form) and form.endswith(f"{text}<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("change, message", [
    (dict(add={"tokenizer.ggml.pre": "llama-bpe"}), "tiny.gguf has a tokenizer of the kind gpt2/llama-bpe, gpt2/smollm is needed"),
    (dict(add={"tokenizer.ggml.model": "llama"}), "kind llama/smollm"),
    (dict(drop=["tokenizer.ggml.merges"]), "tiny.gguf has no tokenizer.ggml.merges"),
    (dict(drop=["tokenizer.ggml.eos_token_id"]), "has no tokenizer.ggml.eos_token_id"),
    (dict(add={"tokenizer.ggml.merges": ["t h", "q q"]}), "tokens and merges in tiny.gguf make no tokenizer: .*qq"),
    (dict(add={"tokenizer.ggml.merges": ["th"]}), "tokens and merges in tiny.gguf make no tokenizer"),
])  # fmt: skip
def test_a_tokenizer_of_another_kind_is_refused_by_name(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_tokenizer(written(tmp_path, **change))


@pytest.mark.parametrize("change", [dict(drop=["tokenizer.chat_template"]), dict(add={"tokenizer.chat_template": "[INST]"})])
def test_another_models_chat_form_is_refused(change, tmp_path):
    tokenizer = load_tokenizer(written(tmp_path, **change))
    with pytest.raises(ValueError, match="chat template isn't SmolLM2's"):
        tokenizer.chat("Hello")
    assert tokenizer.encode("the") == [tiny.vocabulary().index("the")]
