"""From a model's shape to bytes of KV cache."""

from dataclasses import dataclass, fields, replace

from .errors import whole


@dataclass(frozen=True)
class KVGeometry:
    """What one token's K and V take in a model's cache.

    num_layers, num_heads (query heads), num_kv_heads, head_dim: the model's shape; head_dim is a figure of its
    own, not hidden size / heads. dtype_bytes: 4 for fp32, 2 for fp16. latent_dim: with multi-head latent attention
    (MLA) a layer caches one vector of so many numbers instead of K and V. window, num_window_layers: so many of
    the layers look back no further than `window` tokens, and keep no more.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int = 2
    latent_dim: int = 0
    window: int = 0
    num_window_layers: int = 0

    def __post_init__(self):
        for field in fields(self):
            least = 0 if field.name in ("latent_dim", "window", "num_window_layers") else 1
            object.__setattr__(self, field.name, whole(field.name, getattr(self, field.name), least))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads can't share {self.num_kv_heads} KV heads equally")
        if self.num_window_layers > self.num_layers or bool(self.window) != bool(self.num_window_layers):
            raise ValueError(f"window = {self.window} in {self.num_window_layers} of {self.num_layers} layers")

    @property
    def bytes_per_token_layer(self):
        """Bytes of one token in one layer: 2 x num_kv_heads x head_dim x dtype_bytes, for K and V."""
        return (self.latent_dim or 2 * self.num_kv_heads * self.head_dim) * self.dtype_bytes

    @property
    def bytes_per_token(self):
        """Bytes that one more token takes in all layers, as long as no window is full.

        >>> MODELS["llama-3-70b"].bytes_per_token
        327680
        """
        return self.num_layers * self.bytes_per_token_layer

    def bytes(self, seq_len):
        """Bytes of a sequence of seq_len tokens, windows taken into account."""
        seq_len = whole("seq_len", seq_len)
        kept = min(seq_len, self.window) if self.window else seq_len
        full = self.num_layers - self.num_window_layers
        return (full * seq_len + self.num_window_layers * kept) * self.bytes_per_token_layer

    def capacity(self, budget_bytes, seq_len):
        """How many sequences of seq_len tokens fit into budget_bytes.

        >>> MODELS["llama-3-70b"].capacity(80 * 10**9, 8192)
        29
        """
        if not 0 <= budget_bytes < float("inf"):
            raise ValueError(f"budget_bytes = {budget_bytes}")
        return int(budget_bytes // self.bytes(whole("seq_len", seq_len, 1)))

    def shard(self, tensor_parallel):
        """The geometry of one GPU of `tensor_parallel`: KV heads are split, and copied once there are too few;
        MLA's latent vector has no heads, and every GPU keeps all of it."""
        t = whole("tensor_parallel", tensor_parallel, 1)
        if self.num_heads % t or (self.num_kv_heads % t and t % self.num_kv_heads):
            raise ValueError(f"{self.num_heads} query and {self.num_kv_heads} KV heads can't be split over {t} GPUs")
        return replace(self, num_heads=self.num_heads // t, num_kv_heads=max(1, self.num_kv_heads // t))


# Shapes as in the models' published configurations (config.json), fp16 or bf16.
MODELS = {
    "llama-2-7b": KVGeometry(32, 32, 32, 128),
    "llama-3-8b": KVGeometry(32, 32, 8, 128),
    "llama-3-70b": KVGeometry(80, 64, 8, 128),
    "llama-3.1-70b": KVGeometry(80, 64, 8, 128),  # the same shape, for contexts to 131,072
    "opt-13b": KVGeometry(40, 40, 40, 128),
    "deepseek-v3": KVGeometry(61, 128, 128, 128, latent_dim=512 + 64),
    "mistral-7b-v0.1": KVGeometry(32, 32, 8, 128, window=4096, num_window_layers=32),
    "gemma-3-27b": KVGeometry(62, 32, 16, 128, window=1024, num_window_layers=52),
}
# The course's own small setting: one layer, one head, fp32: 512 bytes a token.
ONE_HEAD = KVGeometry(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=64, dtype_bytes=4)
