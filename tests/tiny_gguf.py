"""A GGUF file of a tiny Llama with random weights and a small byte-level BPE vocabulary, as llama.cpp's tools write it."""

import numpy as np

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP = 2, 32, 4, 2, 8, 64
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e", "Ġ the", "2 0", "Ġ s", "Ġs e", "Ġse a"]
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    "trained by Hugging Face<|im_end|>\n' }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + "
    "m['content'] + '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def byte_alphabet():
    """The 256 characters that stand for bytes in a byte-level vocabulary (GPT-2's): printable ones for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in printable] + [chr(256 + n) for n in range(256 - len(printable))]


def vocabulary():
    return CONTROL + byte_alphabet() + [merge.replace(" ", "") for merge in MERGES]


def metadata(head_dim=HEAD_DIM):
    kinds = [3] * len(CONTROL) + [1] * (len(vocabulary()) - len(CONTROL))
    llama = {
        "block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": MLP, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "rope.freq_base": 500_000.0, "attention.layer_norm_rms_epsilon": 2.0**-17,
        "rope.dimension_count": head_dim,
    }  # fmt: skip
    tokenizer = {
        "ggml.model": "gpt2", "ggml.pre": "smollm", "ggml.tokens": vocabulary(), "ggml.token_type": kinds,
        "ggml.merges": MERGES, "ggml.eos_token_id": 2, "chat_template": TEMPLATE,
    }  # fmt: skip
    return {f"llama.{key}": llama[key] for key in llama} | {f"tokenizer.{key}": tokenizer[key] for key in tokenizer}


def tensors(seed=0, head_dim=HEAD_DIM, untied=False):
    """{name: float32 array}, matrices [out, in]."""
    random = np.random.RandomState(seed)
    layer = {
        "attn_norm": (HIDDEN,), "attn_q": (HEADS * head_dim, HIDDEN), "attn_k": (KV_HEADS * head_dim, HIDDEN),
        "attn_v": (KV_HEADS * head_dim, HIDDEN), "attn_output": (HIDDEN, HEADS * head_dim), "ffn_norm": (HIDDEN,),
        "ffn_gate": (MLP, HIDDEN), "ffn_up": (MLP, HIDDEN), "ffn_down": (HIDDEN, MLP),
    }  # fmt: skip
    shapes = {"token_embd": (len(vocabulary()), HIDDEN), "output_norm": (HIDDEN,)}
    shapes |= {f"blk.{i}.{part}": layer[part] for i in range(LAYERS) for part in layer}
    shapes |= {"output": (len(vocabulary()), HIDDEN)} if untied else {}
    return {f"{name}.weight": random.randn(*shape).astype(np.float32) / 4 for name, shape in shapes.items()}


def write_gguf(path, weights, keys, architecture="llama", q8_0=()):
    """Write tensors and metadata; those named in q8_0 as 8-bit blocks of 32, other arrays as they are."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    for name, array in weights.items():
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind) if name in q8_0 else writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
