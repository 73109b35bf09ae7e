"""What a cache takes, reserved and in blocks: the figures of `python -m pagefault calc`, and their text with formulas."""

import textwrap

import numpy as np

from .geometry import ONE_HEAD
from .memory import block_sweep, contiguous_memory, paged_memory


def mix_figures(lengths, max_len, block_size):
    """The memory of some sequences with ONE_HEAD's geometry: {name with its unit: figure}.

    lengths: [num_seqs] tokens; one longer than max_len is cut off there, as a server does, and counted.

    >>> mix_figures([1, 16, 17, 100], 2048, 16)["internal_fragmentation_tokens_per_sequence"]
    10.5
    """
    lengths = np.asarray(lengths)
    cut = np.minimum(lengths, max_len)
    naive, paged = contiguous_memory(cut, max_len), paged_memory(cut, block_size)
    if not paged.stored:
        raise ValueError("there is no token in these sequences")

    def mb(tokens):
        return int(tokens) * ONE_HEAD.bytes_per_token / 1e6

    sweep = block_sweep(cut, max_len, sorted({1, 16, 64, 256, block_size}))
    return {
        "sequences": len(cut), "over_max_len_sequences": int((lengths > max_len).sum()), "max_len_tokens": max_len,
        "block_size_tokens": block_size, "bytes_per_token": ONE_HEAD.bytes_per_token, "tokens": paged.stored,
        "blocks": paged.reserved // block_size, "paged_mb": mb(paged.reserved), "naive_mb": mb(naive.reserved),
        "saving_x": naive.reserved / paged.reserved,
        "naive_utilization_percent": 100 * naive.utilization, "paged_utilization_percent": 100 * paged.utilization,
        "internal_fragmentation_tokens_per_sequence": paged.wasted / len(cut),
        "sweep": [{"block_size_tokens": row.block_size, "blocks": row.blocks, "reserved_mb": mb(row.reserved),
                   "wasted_mb": mb(row.wasted), "utilization_percent": 100 * row.utilization, "saving_x": row.saving,
                   "table_entries": row.table_entries} for row in sweep.itertuples(index=False)],
    }


def mix_text(f):
    """The lines for the figures f of mix_figures, at most 80 columns wide."""
    size, most, over = f["block_size_tokens"], f["max_len_tokens"], f["over_max_len_sequences"]
    yield _line("sequences", _number(f["sequences"]))
    yield _line(f"longer than {most:,} tokens, cut off there ({100 * over / f['sequences']:.2f} %)", _number(over))
    yield _line("tokens, of one head of 64 in fp32: 2 x 64 x 4 = 512 B each", _number(f["tokens"]))
    yield _line(f"blocks = sum over the sequences of ceil(tokens / {size:,})", _number(f["blocks"]))
    yield _line(f"paged  = blocks x {size:,} x 512 B", _number(f["paged_mb"], 3) + " MB")
    yield _line(f"naive  = sequences x {most:,} x 512 B", _number(f["naive_mb"], 3) + " MB")
    yield _line("saving = naive / paged", _number(f["saving_x"], 3) + "x")
    yield _line("utilization = tokens / reserved tokens, naive -> paged",
                f"{f['naive_utilization_percent']:.2f} -> {f['paged_utilization_percent']:.2f} %")
    yield _line("internal fragmentation = (reserved tokens - tokens) / sequences, paged",
                _number(f["internal_fragmentation_tokens_per_sequence"], 3))
    yield ""
    yield _columns("block size", "blocks", "MB", "MB wasted", "used", "table entries")
    for row in f["sweep"]:
        yield _columns(_number(row["block_size_tokens"]), _number(row["blocks"]), _number(row["reserved_mb"], 2),
                       _number(row["wasted_mb"], 2), f"{row['utilization_percent']:.1f} %", _number(row["table_entries"]))
    yield f"table entries = ceil({most:,} / block size); 1 MB = 10^6 bytes"


def model_figures(geometry, budget_bytes, max_len, mean_len, block_size):
    """How many sequences budget_bytes hold on a GPU with this KVGeometry: {name with its unit: figure}.

    Reserved: budget // bytes of max_len tokens. Paged: budget // bytes of a block in all layers // blocks of mean_len
    tokens, which is budget // bytes of these whole blocks. Layers with a window have as many blocks as it can touch.

    >>> from pagefault import MODELS
    >>> figures = model_figures(MODELS["llama-3-70b"], 80 * 10**9, 8192, 2000, 16)
    >>> figures["reserved_sequences"], figures["paged_sequences"]
    (29, 122)
    """
    blocks, windows = -(-mean_len // block_size), geometry.num_window_layers
    in_window = min(blocks, -(-(geometry.window - 1) // block_size) + 1) if windows else 0
    layer_blocks = (geometry.num_layers - windows) * blocks + windows * in_window
    paged_bytes = layer_blocks * block_size * geometry.bytes_per_token_layer
    reserved, paged = geometry.capacity(budget_bytes, max_len), budget_bytes // paged_bytes
    return {
        "num_layers": geometry.num_layers, "num_kv_heads": geometry.num_kv_heads, "head_dim": geometry.head_dim,
        "latent_dim": geometry.latent_dim, "dtype_bytes": geometry.dtype_bytes,
        "bytes_per_token_layer": geometry.bytes_per_token_layer, "bytes_per_token": geometry.bytes_per_token,
        "budget_bytes": budget_bytes, "budget_gb": budget_bytes / 1e9, "budget_gib": budget_bytes / 2**30,
        "max_len_tokens": max_len, "mean_len_tokens": mean_len, "block_size_tokens": block_size,
        "reserved_bytes_per_sequence": geometry.bytes(max_len), "reserved_sequences": reserved,
        "blocks_per_sequence": blocks, "paged_bytes_per_sequence": paged_bytes,
        "paged_sequences": paged, "paged_to_reserved_x": paged / reserved if reserved else None,
    }


def model_text(geometry, f):
    """The lines for the figures f of model_figures, at most 80 columns wide."""
    g, size = geometry, f["block_size_tokens"]
    layer = f"latent {g.latent_dim:,}" if g.latent_dim else f"2 x {g.num_kv_heads:,} KV heads x {g.head_dim:,}"
    yield _line(f"bytes a token = {g.num_layers:,} layers x {layer} x {g.dtype_bytes}", f"{g.bytes_per_token:,} B")
    if g.window:
        yield _line(f"layers that keep no more than {g.window:,} tokens", _number(g.num_window_layers))
    gb, gib = _number(f["budget_gb"], 3), _number(f["budget_gib"], 3)
    yield _line(f"memory for the cache: {gb} GB = {gib} GiB", f"{f['budget_bytes']:,} B")
    yield _line(f"reserved: bytes of {f['max_len_tokens']:,} tokens", f"{f['reserved_bytes_per_sequence']:,} B")
    yield _line("reserved: sequences = memory // these bytes", f"{f['reserved_sequences']:,}")
    yield _line(f"paged: blocks of a sequence = ceil({f['mean_len_tokens']:,} / {size:,})", f"{f['blocks_per_sequence']:,}")
    block = "bytes of these blocks" if g.window else f"({size:,} x {g.bytes_per_token:,} B) // {f['blocks_per_sequence']:,}"
    yield _line(f"paged: sequences = memory // {block}", f"{f['paged_sequences']:,}")
    ratio = f["paged_to_reserved_x"]
    yield _line("paged / reserved", "-" if ratio is None else _number(ratio, 2) + "x")


def _number(value, decimals=0):
    text = f"{value:,.{decimals}f}"
    return text if len(text) <= 13 else f"{value:.6g}"


def _line(label, value):
    if len(label) + len(value) < 80:
        return f"{label} {value:>{79 - len(label)}}"
    return "\n".join([*textwrap.wrap(label, 80), f"{value:>80}"])


def _columns(*cells):
    return " ".join(cell.rjust(width) for cell, width in zip(cells, (13, 13, 13, 13, 8, 14)))
