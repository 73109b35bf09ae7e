"""The options of `python -m pagefault engine`: a model that really decodes, under several policies."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from .benchmark import record
from .calc_command import whole_number
from .cpu import on_cpu
from .decoder import Decoder
from .engine import Engine
from .engine_runs import compare_policies, differences, policies, steps_by_rows, swaps_by_block_size
from .gguf_file import load_llama
from .gpu import gpu_available, import_cupy
from .jobs import published_requests
from .llama import LLAMAS, random_weights
from .requests import Request
from .tokenizer import load_tokenizer

QUESTIONS = "What is a page table?", "Why is the sky blue?", "Tell me about the sea.", "How do I bake bread?"


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
    add("--gguf", type=Path, metavar="FILE", help="a small model's file, such as SmolLM2's: its answers to four questions instead")
    add("--tokens", type=whole_number(1, 1024), default=48, metavar="N", help="of each of these answers (48)")
    parser.set_defaults(run=partial(_run, parser))


def _run(parser, args):
    gpu = gpu_available()
    if args.output and not gpu:
        parser.error("--output: recorded times are a GPU's, and there is none here (or CuPy is not installed)")
    if args.gguf:
        try:
            return _answer(args.gguf, args.tokens, import_cupy() if gpu else np)
        except (ImportError, OSError, ValueError) as error:
            parser.error(str(error))
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
    small = Decoder(shape, weights, 256, dtype=np.float16, xp=cupy).prepare()
    some = {name: rules[name] for name in ("reserved", "in pages, 0% free", "newest gives way", "newest is swapped")}
    keep("differences", differences(small, requests[:16], workers, some))


def _answer(file, tokens, xp):
    """Print a model's answers, and whether they are the same where there is too little memory for all of them at once."""
    (shape, weights), tokenizer = load_llama(file), load_tokenizer(file)
    prompts = [tuple(tokenizer.chat(question)) for question in QUESTIONS]
    requests = [Request(len(prompt), tokens, tokens=prompt) for prompt in prompts]
    longest = max(request.total_tokens for request in requests)
    blocks, answers = -(-longest // 16), None
    for rule in (dict(num_blocks=4 * blocks), dict(num_blocks=2 * blocks + 2, preemption="swap", swap_blocks=2 * blocks + 2),
                 dict(num_blocks=2 * blocks + 2, preemption="keep")):
        engine = Engine(Decoder(shape, weights, rule.pop("num_blocks"), max_len=longest, row_counts=(4, 16, 64), xp=xp))
        with on_cpu(checked=False):
            found = engine.serve(requests, workers=len(requests), **rule).summary
        if answers is None:
            answers = engine.tokens
            for number, (question, prompt) in enumerate(zip(QUESTIONS, prompts)):
                print(f"> {question}\n{tokenizer.decode(answers[number, 0][len(prompt):])}")
        else:
            same = sum(engine.tokens[key] == answers[key] for key in answers)
            print(f"{found['preemptions']} preemptions, {found['swapped_blocks']} blocks moved: {same} of {len(answers)} answers "
                  "are the same")
