"""The options of `python -m pagefault calc`."""

import argparse
import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from functools import partial

from .calc import mix_figures, mix_text, model_figures, model_text
from .geometry import MODELS, KVGeometry
from .traces import load_trace
from .workload import mixed_lengths

SHAPE = ("layers", "kv_heads", "head_dim", "dtype_bytes")  # what a custom model has to say
ONLY_MIX = ("seqs", "seed", "trace")
ONLY_MODEL = ("budget_gb", "budget_gib", "mean_len", "tensor_parallel", "heads", *SHAPE)
MOST = 2**31 - 1


def add_calc(commands):
    """Add the subcommand calc to argparse's `commands`."""
    parser = commands.add_parser(
        "calc", help="memory of a mix of sequences; how many sequences a model has room for",
        usage="python -m pagefault calc [options]",
        description="Memory of a mix of sequences, reserved and in blocks; or, of a model, how many there is room for.")
    add = parser.add_argument
    add("--seqs", type=whole_number(1, 10**5), metavar="N", help="sequences of the published mix (32)")
    add("--seed", type=whole_number(0, 2**32 - 1), metavar="N", help="of the mix (42)")
    add("--trace", metavar="FILE", help="lengths from a trace: Azure's CSV or Mooncake's JSONL, also gzipped")
    add("--block-size", type=whole_number(1, MOST), default=16, metavar="N", help="tokens of a block (16)")
    add("--max-len", type=whole_number(1, MOST), metavar="N", help="tokens reserved for a sequence (2048; for a model 8192)")
    add("--json", action="store_true", help="print one JSON object")
    add = parser.add_argument_group("models").add_argument
    add("--model", metavar="NAME", help=", ".join(MODELS) + " or custom")
    add("--budget-gb", type=decimal, metavar="X", help="memory for the cache of a GPU, in 10^9 bytes (80)")
    add("--budget-gib", type=decimal, metavar="X", help="the same in 2^30 bytes")
    add("--mean-len", type=whole_number(1, MOST), metavar="N", help="tokens that a sequence stores on average (2000)")
    add("--tensor-parallel", type=whole_number(1, 10**6), metavar="N", help="GPUs that the heads are split over (1)")
    add("--dtype-bytes", type=whole_number(1, 16), metavar="N", help="of a number in the cache (2)")
    for name in ("layers", "kv-heads", "head-dim"):
        add(f"--{name}", type=whole_number(1, 10**4), metavar="N", help="of a custom model")
    add("--heads", type=whole_number(1, 10**6), metavar="N", help="query heads of a custom model, if known")
    parser.set_defaults(run=partial(_run, parser))


def _run(parser, args):
    mix = args.model is None
    if given := [name for name in (ONLY_MODEL if mix else ONLY_MIX) if getattr(args, name) is not None]:
        parser.error(f"{_options(given)} can't be used {'without' if mix else 'with'} --model")
    try:
        found, lines = _mix(args) if mix else _model(args)
    except (OSError, ValueError) as error:
        parser.error(printable(str(error)))
    print(json.dumps(found, indent=2) if args.json else "\n".join(lines))


def _mix(args):
    if args.trace is None:
        seed = 42 if args.seed is None else args.seed
        lengths, title = mixed_lengths(args.seqs or 32, seed), f"the published mix, seed {seed}"
    elif args.seqs or args.seed is not None:
        raise ValueError("--trace can't be used with --seqs or --seed")
    else:
        seed, trace = None, load_trace(args.trace)
        lengths, title = trace.total_tokens, trace.name
    figures = mix_figures(lengths, args.max_len or 2048, args.block_size)
    return {"lengths_of": title, "seed": seed} | figures, [printable(title)[:80], *mix_text(figures)]


def _model(args):
    if args.budget_gb and args.budget_gib:
        raise ValueError("--budget-gb can't be used with --budget-gib")
    budget = int(args.budget_gib * 2**30 if args.budget_gib else (args.budget_gb or 80) * 10**9)
    max_len, gpus = args.max_len or 8192, args.tensor_parallel or 1
    mean_len = args.mean_len or min(2000, max_len)
    if mean_len > max_len:
        raise ValueError(f"--mean-len {mean_len:,} is more than --max-len {max_len:,}")
    name, model = _geometry(args, gpus)
    geometry = model.shard(gpus)
    figures = model_figures(geometry, budget, max_len, mean_len, args.block_size)
    part = "all of the latent vector" if model.latent_dim else f"{geometry.num_kv_heads:,} of {model.num_kv_heads:,} KV heads"
    title = name if gpus == 1 else f"{name}, on each of {gpus:,} GPUs: {part}"
    return {"model": name, "tensor_parallel": gpus} | figures, [title, *model_text(geometry, figures)]


def _geometry(args, gpus):
    shape = [getattr(args, name) for name in SHAPE]
    if args.model.lower() == "custom":
        if None in shape:
            raise ValueError(f"--model custom needs {_options(n for n, value in zip(SHAPE, shape) if value is None)}")
        layers, kv_heads, head_dim, dtype_bytes = shape
        if kv_heads % gpus and gpus % kv_heads:
            raise ValueError(f"{kv_heads:,} KV heads can't be split over {gpus:,} GPUs")
        heads = args.heads or math.lcm(kv_heads, gpus)  # without --heads, as many query heads as can be split
        return "custom", KVGeometry(layers, heads, kv_heads, head_dim, dtype_bytes)
    plain = {re.sub(r"[^a-z0-9]", "", name): name for name in MODELS}
    name = plain.get(re.sub(r"[^a-z0-9]", "", args.model.lower()))
    if name is None:
        raise ValueError(f"--model {args.model[:40]!r}: there are {', '.join(MODELS)} and custom")
    if given := [n for n in ("layers", "kv_heads", "head_dim", "heads") if getattr(args, n) is not None]:
        raise ValueError(f"{_options(given)} can't be used with --model {name}, only with --model custom")
    return name, replace(MODELS[name], dtype_bytes=args.dtype_bytes or MODELS[name].dtype_bytes)


def whole_number(least, most):
    def parse(text):
        if not re.fullmatch("[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {least:,} to {most:,}")
        return int(text)
    return parse


def decimal(text):
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or not Fraction(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number above 0 and below 1,000,000,000")
    return Fraction(text)


def _options(names):
    return ", ".join("--" + name.replace("_", "-") for name in names)


def printable(text):
    return "".join(c if c.isprintable() else "?" for c in text)
