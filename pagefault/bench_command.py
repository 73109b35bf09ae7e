"""The options of `python -m pagefault bench`."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from .benchmark import RECORDED, RUNGS, check, expected, measure, prepare, record
from .gpu import gpu_available
from .libraries import measure_libraries
from .serve import serve
from .simulate_command import share
from .workload import mixed_lengths
from .works import Work, inputs, pool_of, works

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def add_bench(commands):
    """Add the subcommand bench to argparse's `commands`."""
    parser = commands.add_parser(
        "bench", help="check the kernels, then time them on a GPU, or count what they ask of memory on a CPU",
        usage="python -m pagefault bench [options]",
        description="Check every kernel of the ladder over contiguous and paged caches; then time it, or, without a GPU, "
                    "count what it asks of memory. Exits with 1 if a check fails.")
    add = parser.add_argument
    add("--works", nargs="+", metavar="NAME", help="of " + ", ".join(w.name for w in works()) + " (on a GPU)")
    add("--seqs", type=int, metavar="N", help="sequences of the published mix, one head of 64, fp32, as the only work")
    add("--iters", type=int, default=15, metavar="N", help="measurements of each kernel (15)")
    add("--seed", type=int, default=0, metavar="N", help="of the random inputs, and of the mix with --seqs (0)")
    add("--shuffle-seed", type=int, default=1, metavar="N", help="of the order of blocks; 0: in order (1)")
    add("--block-size", type=int, default=16, metavar="N", help="tokens of a block (16; of int8 it is 16 always)")
    add("--tolerance", type=float, metavar="X", help="of the relative error (what each dtype needs)")
    add("--jobs", type=int, default=512, metavar="N", help="requests of the simulated server (512)")
    add("--workers", type=int, default=128, metavar="N", help="the most that it serves at once (128)")
    add("--watermark", type=share, default=0.05, metavar="X", help="share of its pool that newcomers leave free (5%%)")
    add("--skip-sim", action="store_true", help="the kernels alone")
    add("--quick", action="store_true", help="the first work alone, and few measurements")
    add("--json", action="store_true", help="print one JSON object")
    add("--output", type=Path, help="where to write the table; the module's own, with all works, unless given")
    parser.set_defaults(run=partial(_run, parser))


def _run(parser, args):
    known = {w.name: w for w in works()}
    if unknown := [name for name in args.works or () if name not in known]:
        parser.error(f"there are no works {', '.join(unknown)}")
    gpu, ignored = gpu_available(), {"--works": args.works, "--output": args.output}
    if not gpu and (given := [option for option, value in ignored.items() if value]):
        parser.error(f"{', '.join(given)}: times are measured on an NVIDIA GPU, and there is none here (or CuPy is not installed)")
    if args.works and args.seqs:
        parser.error("--works can't be used with --seqs")
    for name, least in (("seqs", 1), ("iters", 2), ("seed", 0), ("shuffle_seed", 0), ("block_size", 1), ("jobs", 1),
                        ("workers", 1)):
        value = getattr(args, name)
        most = 2**16 if name == "block_size" else 2**31 - 1
        if value is not None and not least <= value <= most:
            parser.error(f"--{name.replace('_', '-')} {value} is from {least} to {most:,}")
    if args.tolerance is not None and not 0 <= args.tolerance < math.inf:
        parser.error(f"--tolerance {args.tolerance} is a number from 0")
    try:
        if args.output:
            args.output.touch()
    except OSError as error:
        parser.error(str(error))
    chosen = [known[name] for name in args.works] if args.works else list(known.values())
    if args.seqs or not gpu:
        lengths = mixed_lengths(args.seqs or 32, args.seed if args.seqs else 42)
        chosen = [Work(f"{len(lengths)} mixed", tuple(lengths.tolist()), 1, 1, 64, "float32")]
    chosen = chosen[:1] if args.quick else chosen
    try:
        rows = _time(args, chosen) if gpu else _count(args, chosen[0])
        found = {"kernels": [{k: None if v != v else v for k, v in row.items()} for row in rows]}  # JSON has no NaN
    except ArithmeticError as error:
        if args.json:
            print(json.dumps({"failed": str(error)}, indent=2))
        parser.exit(1, f"FAILED: {error}\n")
    if not args.skip_sim:
        found["serving"] = _serve(args)
    if args.json:
        print(json.dumps(found, indent=2))


def _say(args, text):
    if not args.json:
        print(text, flush=True)


def _serve(args):
    """The published serving experiment on a simulated clock: in pages beside reserved memory."""
    common = dict(jobs=args.jobs, workers=args.workers)
    naive, paged = serve(**common, reserved=2048), serve(**common, share=args.watermark)
    times = paged["tokens_per_second"] / naive["tokens_per_second"]
    _say(args, f"simulated server, {args.jobs:,} jobs, {args.workers:,} workers, watermark {100 * args.watermark:g}%: "
         f"{paged['preemptions']:,} preemptions, {paged['mean_decoding']:.1f} decoding, throughput {times:.2f}x of reserved memory")
    return dict(jobs=args.jobs, workers=args.workers, watermark=args.watermark, preemptions=paged["preemptions"],
                mean_decoding=paged["mean_decoding"], throughput_x=times)


def _time(args, chosen):
    full = not (args.works or args.seqs or args.quick)
    output = args.output or (RECORDED if full else None)
    if output:
        output.touch()  # or say now that it can't be written
    options = f" --seed {args.seed} --iters {args.iters} --shuffle-seed {args.shuffle_seed} --block-size {args.block_size}"
    options += " --quick" * args.quick + ("" if args.tolerance is None else f" --tolerance {args.tolerance:g}")
    names = f" --works {' '.join(args.works)}" if args.works else f" --seqs {args.seqs}" if args.seqs else ""
    rows, orders = [], ("shuffled", "ordered") if args.shuffle_seed else ("ordered",)
    for work in chosen:
        sizes = SIZES if full and work.name == "W2" else (16 if work.dtype == "int8" else args.block_size,)
        plain = work.name.startswith("32 x")  # notebook 1's: the plain kernel by context
        pages = () if plain else [(size, order) for size in sizes for order in orders]
        iters = 3 if args.quick else args.iters
        prepared = prepare(work, args.seed)
        rows += measure(work, args.seed, iters, ("naive_attention",) if plain else work.rungs, pages, args.tolerance,
                        args.shuffle_seed, prepared)
        if work.name in ("W2", "W3", "W4"):
            more, missing = measure_libraries(work, prepared, iters)
            rows += more
            for kernel, reason in missing:
                _say(args, f"{work.name:10} {kernel:16} is left out: {reason}")
        for row in rows:
            if row["work"] == work.name:
                _say(args, "{work:10} {kernel:16} {layout:10} {block_size:4} {order:8} {median_us:10.2f} us [{low_us:.2f} to "
                     "{high_us:.2f}], {to_contiguous:.3f} of contiguous, error {error}".format(**row))
        if args.output or (output and work is chosen[-1]):  # whoever names a file has there what was measured so far
            record(rows, "python -m pagefault bench" + options + names, output)
    return rows


def _count(args, work):
    """Check every rung on the CPU, and count what it asks of memory."""
    order = "shuffled" if args.shuffle_seed else "ordered"
    _say(args, f"no GPU: checked on the CPU, and counted what the kernels ask of memory. {work.name} sequences, "
         f"{sum(work.seq_lens):,} tokens")
    _say(args, f"{'kernel':16} {'cache':10} {'requests':>10} {'sectors':>10} {'a request':>9}  error")
    rows = []
    for kernel, launch in RUNGS.items():
        of = replace(work, dtype=next(d for d in ("float32", "float16", "int8") if kernel in replace(work, dtype=d).rungs))
        size = 16 if of.dtype == "int8" else args.block_size
        q, *cache = inputs(of, args.seed, np)
        exact = expected(of, q, *cache)
        *pool, tables = pool_of(cache, of.seq_lens, size, order, args.shuffle_seed)
        twins = {"contiguous": launch(q, *cache, of.seq_lens), "paged": launch(q, *pool, of.seq_lens, tables)}
        for layout, one in twins.items():
            error, load = check(of, one, exact, args.tolerance), one.profile().total.loc["global load"]
            row = dict(kernel=kernel, layout=layout, block_size=size if layout == "paged" else 0,
                       requests=int(load.requests), sectors=int(load.sectors), error=float(error))
            rows.append(row)
            _say(args, "{kernel:16} {layout:10} {requests:10,} {sectors:10,} {each:9.2f}  {error:.1e}".format(
                each=load.sectors / load.requests, **row))
        if twins["contiguous"].out.tobytes() != twins["paged"].out.tobytes():
            raise ArithmeticError(f"{kernel} gives other bytes over a pool than over a contiguous cache")
    return rows
