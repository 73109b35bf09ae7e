"""What a step costs, in whole nanoseconds: the same for every step, or what a GPU's memory and arithmetic allow."""

from dataclasses import dataclass
from math import sqrt

from .geometry import MODELS, KVGeometry

NS = 10**9


@dataclass(frozen=True)
class ConstantCost:
    """Each step takes step_ns, and besides prefill_token_ns for a token of a prompt, swap_block_ns for a block moved."""

    step_ns: int = 1_000_000
    prefill_token_ns: int = 0
    swap_block_ns: int = 0

    def compute_ns(self, batch):
        """Nanoseconds of a batch, without its swaps."""
        return self.step_ns + self.prefill_token_ns * batch.prefill_tokens

    def transfer_ns(self, num_blocks, block_size):
        """Nanoseconds to move so many blocks between the pool and the host."""
        return self.swap_block_ns * num_blocks


@dataclass(frozen=True)
class GPU:
    """What a GPU sustains: bytes a second reading weights, reading KV and over the bus to the host; FLOP a second in fp16."""

    weight_rate: float
    kv_rate: float
    flops: float
    bus_rate: float


@dataclass(frozen=True)
class Model:
    """A model's cache geometry, its parameters, and their bytes."""

    geometry: KVGeometry
    parameters: float
    weight_bytes: float


# a100 and h100: the weight rate and FLOP/s that fit published times of a step by batch size (Agrawal et al., Vidur, MLSys
# 2024: Llama-3-8B on an A100 9.88 ms and 67.5 us a token, Llama-2-7B on an H100 5.55 ms and 21.6 us). h200: the same
# shares of its peaks as its measured reading rates. gb200: assumed to have the h200's shares of its own peaks, 8 TB/s and 2,250
# TFLOP/s.
GPUS = {
    "a100": GPU(1.6255e12, 1.36e12, 237.9e12, 22e9),
    "h100": GPU(2.429e12, 2.06e12, 624e12, 45e9),
    "h200": GPU(3.4e12, 2.9e12, 600e12, 45e9),
    "gb200": GPU(5.67e12, 4.83e12, 1365e12, 200e9),
}
SERVED = {  # parameters as published, two bytes each
    "llama-2-7b": Model(MODELS["llama-2-7b"], 6.74e9, 13.48e9),
    "llama-3-8b": Model(MODELS["llama-3-8b"], 8.03e9, 16.06e9),
    "llama-3-70b": Model(MODELS["llama-3-70b"], 70.55e9, 141.1e9),
    "qwen-2.5-7b": Model(KVGeometry(28, 28, 4, 128), 7.62e9, 15.23e9),
}


def fed(batch):
    """What a batch asks of a model: tokens to feed, tokens whose K and V decoding reads, pairs of tokens among prompts."""
    context = sum([seq.table.num_tokens for seq in batch.decode]) - len(batch.decode)
    pairs = sum((end * (end + 1) - start * (start + 1)) // 2 for _, start, end in batch.prefill)
    return len(batch.decode) + batch.prefill_tokens, context, pairs


@dataclass(frozen=True)
class RooflineCost:
    """hypot(weights / memory rate, 2 x parameters x tokens / FLOP rate) + KV read + attention among prompts + overhead.

    hypot, not the greater of the two: against published times of steps by batch size it errs by 4.1 and 6.9%, the greater
    by 5.8 and 11.1%. Attention of a prompt's tokens to those before them: 4 x layers x heads x head_dim FLOP a pair, at
    half the rate. piece_ns: what each transfer takes beside its bytes, where a moved block isn't gathered first: it lies in
    2 x layers pieces.

    >>> RooflineCost(SERVED["llama-3-8b"], GPUS["h200"]).step_ns(num_tokens=1, context_tokens=0)
    5223605
    """

    model: Model
    gpu: GPU
    overhead_ns: int = 500_000
    piece_ns: int = 0

    def step_ns(self, num_tokens, context_tokens, prompt_pairs=0):
        """Nanoseconds of a step that feeds num_tokens and reads K and V of context_tokens."""
        model, gpu, shape = self.model, self.gpu, self.model.geometry
        reading, computing = model.weight_bytes / gpu.weight_rate, 2 * model.parameters * num_tokens / gpu.flops
        attention = 4 * shape.num_layers * shape.num_heads * shape.head_dim * prompt_pairs / (gpu.flops / 2)
        kv = context_tokens * shape.bytes_per_token / gpu.kv_rate
        seconds = sqrt(reading * reading + computing * computing) + kv + attention  # sqrt rounds alike on every machine
        return round(seconds * NS) + self.overhead_ns

    def compute_ns(self, batch):
        """Nanoseconds of a batch, without its swaps."""
        if not batch.decode and not batch.prefill:
            return self.overhead_ns
        return self.step_ns(*fed(batch))

    def transfer_ns(self, num_blocks, block_size):
        """Nanoseconds to move so many blocks between the pool and the host."""
        shape = self.model.geometry
        moving = round(num_blocks * block_size * shape.bytes_per_token / self.gpu.bus_rate * NS)
        return moving + num_blocks * 2 * shape.num_layers * self.piece_ns
