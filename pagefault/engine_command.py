"""The options of `python -m pagefault engine`: a model that really decodes, under several policies."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from .benchmark import record
from .calc_command import whole_number
from .cpu import on_cpu
from .decoder import Decoder
from .engine_runs import compare_policies, differences, policies, steps_by_rows, swaps_by_block_size
from .gpu import gpu_available, import_cupy
from .jobs import published_requests
from .llama import LLAMAS, random_weights


def add_engine(commands):
    """Add the subcommand engine to argparse's `commands`."""
    parser = commands.add_parser(
        "engine", help="decode the published mix with a model, under several policies, beside the simulated clock",
        usage="python -m pagefault engine [options]",
        description="Decode the published mix of requests with a model of random weights, under several policies: steps, "
                    "preemptions, throughput measured and simulated. On a GPU the model has the shape of Llama-3-8B, all of whose "
                    "layers have one layer's weights; without a GPU it is tiny, and requests have a sixteenth of their tokens.")
    add = parser.add_argument
    add("--jobs", type=whole_number(1, 10**6), metavar="N", help="how many requests (512 on a GPU, else 24)")
    add("--workers", type=whole_number(1, 1024), metavar="N", help="the most sequences that run at once (128 on a GPU, else 16)")
    add("--seed", type=whole_number(0, 2**32 - 1), default=42, metavar="N", help="of the lengths (42)")
    add("--output", type=Path, metavar="DIR", help="where to write the tables (on a GPU)")
    parser.set_defaults(run=partial(_run, parser))


def _run(parser, args):
    gpu = gpu_available()
    if args.output and not gpu:
        parser.error("--output: recorded times are a GPU's, and there is none here (or CuPy is not installed)")
    requests = published_requests(args.jobs or (512 if gpu else 24), args.seed)
    if not gpu:
        requests = [replace(r, prompt_tokens=-(-r.prompt_tokens // 16), output_tokens=-(-r.output_tokens // 16)) for r in requests]
        decoder = Decoder(LLAMAS["tiny"], random_weights(LLAMAS["tiny"]), num_blocks=32, max_len=128)
        with on_cpu(checked=False):
            compare_policies(decoder, requests, args.workers or 16, policies(128, 32))
        return
    cupy, workers = import_cupy(), args.workers or 128
    shape = LLAMAS["llama-3-8b"]
    weights = random_weights(shape, dtype=np.float16, xp=cupy, one_layer=True)
    decoder = Decoder(shape, weights, 4096, dtype=np.float16, xp=cupy).prepare()
    command = f"python -m pagefault engine --jobs {len(requests)} --workers {workers} --seed {args.seed}"

    def keep(name, rows):
        if args.output:
            args.output.mkdir(parents=True, exist_ok=True)
            record(rows, command, args.output / f"{name}.csv")

    rules = policies(2048, 4096)
    rows, cost = compare_policies(decoder, requests, workers, rules)
    keep("policies", rows)
    keep("fit", [vars(cost)])
    keep("swaps", swaps_by_block_size(decoder))
    eager = Decoder(shape, weights, 4096, row_counts=(1, 2, 4, 8, 16, 32, 64, 128), dtype=np.float16, xp=cupy, checked=True)
    keep("steps", steps_by_rows({"checked once": decoder, "checked at each launch": eager}))
    small = Decoder(shape, weights, 768, dtype=np.float16, xp=cupy).prepare()
    some = {name: rules[name] for name in ("reserved", "in pages, 0% free", "newest gives way", "newest is swapped")}
    keep("differences", differences(small, requests[:32], workers, some))
