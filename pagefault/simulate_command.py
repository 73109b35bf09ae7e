"""The options of `python -m pagefault simulate`: a server in pages beside one that reserves, on the same requests."""

import argparse
import json
import re
import sys
from functools import partial

from .calc_command import MOST, decimal, printable, whole_number
from .costs import GPUS, SERVED, ConstantCost, RooflineCost
from .errors import Deadlock, Livelock
from .jobs import published_requests, trace_requests, with_arrivals
from .policies import VICTIMS, watermark
from .scheduler import PREEMPTIONS
from .simulator import simulate
from .traces import load_trace
from .workload import poisson_arrivals

FIGURES = ("steps", "preemptions", "mean_decoding", "tokens_per_second", "recompute_tax", "wait_mean_ms", "ttft_p50_ms",
           "ttft_p99_ms", "per_token_p50_ms", "end_to_end_p50_ms", "end_to_end_p99_ms")


def add_simulate(commands):
    """Add the subcommand simulate to argparse's `commands`."""
    parser = commands.add_parser(
        "simulate", help="serve requests from a pool of blocks, and from reserved memory, on a simulated clock",
        usage="python -m pagefault simulate [options]",
        description="Serve requests from a pool of blocks, and from memory reserved for each, on a simulated clock. Without "
        "options it is a published experiment: 512 jobs, 128 threads that share a pool, 1 ms a step. With --model, it is an "
        "engine whose steps take what the GPU's memory and arithmetic allow.")
    add = parser.add_argument
    add("--jobs", type=whole_number(1, 10**6), metavar="N", help="how many requests (512; of a trace all)")
    add("--workers", type=whole_number(1, 10**5), default=128, metavar="N", help="the most sequences that run at once (128)")
    add("--watermark", type=share, default=0.0, metavar="X", help="share of the pool that newcomers leave free, 0.05 or 5%% (0)")
    add("--victim", type=_one_of(VICTIMS), default="requester", metavar="RULE", help=", ".join(VICTIMS) + " (requester)")
    add("--patience", type=_patience, default=32, metavar="N", help="steps to wait for a block, or `endless` (32)")
    add("--preemption", type=_one_of(PREEMPTIONS), default="restart", metavar="HOW", help=", ".join(PREEMPTIONS) + " (restart)")
    add("--swap-blocks", type=whole_number(1, MOST), metavar="N", help="blocks of host memory to swap to (as the pool)")
    add("--seed", type=whole_number(0, 2**32 - 1), default=42, metavar="N", help="of the lengths and arrivals (42)")
    add("--trace", metavar="FILE", help="requests of a trace: Azure's CSV or Mooncake's JSONL, also gzipped")
    add("--model", type=_one_of(SERVED), metavar="NAME", help=", ".join(SERVED))
    add("--gpu", type=_one_of(GPUS), metavar="NAME", help=", ".join(GPUS) + " (h200)")
    add("--rate", type=_rate, metavar="X", help="requests a second, at random times; or `all` at once (all; a trace's own times)")
    add("--max-len", type=whole_number(1, MOST), metavar="N",
        help="tokens reserved for each; longer requests are left out (2048; of a trace 8192)")
    add("--pool-blocks", type=whole_number(1, MOST), default=4096, metavar="N", help="blocks of 16 tokens (4096)")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=partial(_run, parser))


def _run(parser, args):
    if args.gpu and not args.model:
        parser.error("--gpu can't be used without --model")
    if args.swap_blocks and args.preemption != "swap":
        parser.error("--swap-blocks can't be used without --preemption swap")
    max_len = args.max_len or (8192 if args.trace else 2048)
    try:
        requests, title, left_out = _requests(args, max_len)
        cost = RooflineCost(SERVED[args.model], GPUS[args.gpu or "h200"]) if args.model else ConstantCost()
        common = dict(num_blocks=args.pool_blocks, cost=cost, workers=args.workers)
        paged = dict(admission=watermark(args.watermark), victim=VICTIMS[args.victim], patience=args.patience,
                     preemption=args.preemption, like_threads=not args.model,
                     swap_blocks=(args.swap_blocks or args.pool_blocks) if args.preemption == "swap" else 0)
        found = {"requests_of": title, "requests": len(requests), "left_out": left_out, "max_len_tokens": max_len}
        found["naive"] = simulate(requests, reserve=max_len, **common).summary
        found["paged"] = simulate(requests, **common, **paged).summary
    except (Deadlock, Livelock) as error:
        kind = type(error).__name__.lower()
        print(json.dumps(found | {"outcome": kind, "error": str(error)}, indent=2) if args.json else f"{kind}: {error}")
        sys.exit(1)
    except (OSError, ValueError) as error:
        parser.error(printable(str(error)))
    naive, own = (found[name]["tokens_per_second"] for name in ("naive", "paged"))
    found |= {"outcome": "finished", "throughput_x": own / naive if naive else 0.0}
    print(json.dumps(found, indent=2) if args.json else "\n".join(_text(found)))


def _requests(args, max_len):
    if args.trace:
        trace = load_trace(args.trace)
        requests, title = trace_requests(trace, args.jobs, max_len), trace.name
        left_out = int((trace.total_tokens > max_len).sum())
    else:
        requests, title = published_requests(args.jobs or 512, args.seed), f"the published mix, seed {args.seed}"
        left_out = sum(request.total_tokens > max_len for request in requests)
        requests = [request for request in requests if request.total_tokens <= max_len]
    if args.rate == "all":
        requests = with_arrivals(requests, 0)
    elif args.rate:
        requests = with_arrivals(requests, poisson_arrivals(len(requests), args.rate, args.seed))
    return requests, printable(title)[:80], left_out


def _text(found):
    left_out = f", {found['left_out']:,} longer than {found['max_len_tokens']:,} tokens left out" if found["left_out"] else ""
    yield f"{found['requests']:,} requests{left_out}:"
    yield found["requests_of"]
    yield f"{'':20}{'reserved':>14}{'in pages':>14}"
    for name in FIGURES:
        values = (found[kind][name] for kind in ("naive", "paged"))
        yield f"{name.replace('_', ' '):20}" + "".join(f"{v:14,d}" if isinstance(v, int) else f"{v:14,.2f}" for v in values)
    yield f"{'throughput':20}{1:13.2f}x{found['throughput_x']:13.2f}x"


def share(text):
    """A watermark as the command line has it, "0.05" or "5%"."""
    if not re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,6})?%|0(\.[0-9]{1,9})?", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a share from 0 to below 1, or from 0% to below 100%")
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _patience(text):
    return None if text == "endless" else whole_number(0, MOST)(text)


def _rate(text):
    return text if text == "all" else float(decimal(text))


def _one_of(names):
    plain = {re.sub("[^a-z0-9]", "", name): name for name in names}

    def parse(text):
        name = plain.get(re.sub("[^a-z0-9]", "", text.lower()))
        if name is None:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: there are {', '.join(names)}")
        return name
    return parse
