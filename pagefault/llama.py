"""A Llama's shape and its weights."""

from dataclasses import dataclass, fields

import numpy as np

from .errors import whole


@dataclass(frozen=True)
class LlamaShape:
    """Layers, sizes and heads of a decoder as Llama's; vocabulary: how many tokens there are.

    Its parts: RMSNorm, attention with grouped queries and RoPE, SwiGLU. head_dim is a multiple of 8, at most 256.

    >>> f"{LLAMAS['llama-3-8b'].parameters:,}"
    '8,030,261,248'
    """

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    def __post_init__(self):
        for field in fields(self)[:7]:
            whole(field.name, getattr(self, field.name), 1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads can't share {self.num_kv_heads} KV heads equally")
        if self.head_dim % 8 or self.head_dim > 256:
            raise ValueError(f"head_dim = {self.head_dim}; it is a multiple of 8 up to 256")

    @property
    def layer_shapes(self):
        """Name and shape of each weight of a layer; matrices are [in, out], with q, k and v, and gate and up, side by side."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {"attention_norm": (self.hidden,), "qkv": (self.hidden, q_size + 2 * kv_size),
                "attention_out": (q_size, self.hidden),
                "mlp_norm": (self.hidden,), "gate_up": (self.hidden, 2 * self.mlp), "down": (self.mlp, self.hidden)}

    @property
    def parameters(self):
        """How many numbers the weights are, embedding and output both counted."""
        layer = sum(int(np.prod(shape)) for shape in self.layer_shapes.values())
        return self.num_layers * layer + (2 * self.vocabulary + 1) * self.hidden


LLAMAS = {  # the second as published in its config.json
    "tiny": LlamaShape(2, 128, 4, 2, 64, 256, 512),
    "llama-3-8b": LlamaShape(32, 4096, 32, 8, 128, 14_336, 128_256, 500_000.0),
}


def random_weights(shape, seed=0, dtype=np.float32, xp=np, one_layer=False):
    """Weights for a LlamaShape, normally distributed, such that a row keeps about its size.

    A dict of arrays of xp: "embedding" [vocabulary, hidden], "norm" [hidden], "output" [hidden, vocabulary], and "layers", a
    list of dicts as layer_shapes says. one_layer: all layers have the weights of the first. What they decode
    means nothing, and takes the time of a real model's.
    """
    random = xp.random.default_rng(seed)

    def normal(rows, columns, deviation=None):
        matrix = xp.empty((rows, columns), dtype)
        for start in range(0, rows, 1024):  # a part at a time, since they are drawn in fp32
            part = matrix[start : start + 1024]
            part[:] = random.standard_normal(part.shape, dtype=np.float32) * (deviation or rows**-0.5)
        return matrix

    layers = []
    for _ in range(1 if one_layer else shape.num_layers):
        layers.append({name: xp.ones(size, dtype) if len(size) == 1 else normal(*size)
                       for name, size in shape.layer_shapes.items()})
    return {"embedding": normal(shape.vocabulary, shape.hidden, 1), "norm": xp.ones(shape.hidden, dtype),
            "output": normal(shape.hidden, shape.vocabulary), "layers": layers * shape.num_layers if one_layer else layers}


def checked_weights(shape, weights, dtype, xp):
    """Weights as random_weights describes them, in a dtype and as xp's arrays; raises ValueError for one of another shape."""
    def checked(name, array, size):
        if np.shape(array) != size:
            raise ValueError(f"{name} is {list(np.shape(array))}, and the shape says {list(size)}")
        return xp.ascontiguousarray(xp.asarray(array, dtype))

    sizes = {"embedding": (shape.vocabulary, shape.hidden), "norm": (shape.hidden,), "output": (shape.hidden, shape.vocabulary)}
    if len(weights["layers"]) != shape.num_layers:
        raise ValueError(f"weights of {len(weights['layers'])} layers, and the shape has {shape.num_layers}")
    done = {}  # a layer's weights may serve several
    for number, layer in enumerate(weights["layers"]):
        if id(layer) not in done:
            done[id(layer)] = {name: checked(f"layer {number}'s {name}", layer[name], size)
                               for name, size in shape.layer_shapes.items()}
    return {name: checked(name, weights[name], size) for name, size in sizes.items()} | {
        "layers": [done[id(layer)] for layer in weights["layers"]]}
