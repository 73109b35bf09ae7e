"""python -m pagefault bench"""

import argparse
import sys
from pathlib import Path

from .benchmark import RECORDED, measure, record, works
from .gpu import gpu_available


def bench(args):
    if not gpu_available():
        sys.exit("pagefault bench times kernels on an NVIDIA GPU, and there is none here (or CuPy is not installed)")
    rows = []
    for work in works():
        if args.works and work.name not in args.works:
            continue
        rows += measure(work, args.seed, args.repeats)
        for row in rows[-2:]:
            text = "{work:10} {kernel:16} {median_us:10.2f} us [{low_us:.2f} to {high_us:.2f}], error {error}"
            print(text.format(**row), flush=True)
    if not rows:
        sys.exit(f"--works {' '.join(args.works)}: the works are {', '.join(w.name for w in works())}")
    options = f" --seed {args.seed} --repeats {args.repeats}" + (f" --works {' '.join(args.works)}" if args.works else "")
    record(rows, "python -m pagefault bench" + options, args.output)


def main():
    parser = argparse.ArgumentParser(prog="python -m pagefault", description=__doc__)
    commands = parser.add_subparsers(required=True)
    b = commands.add_parser("bench", help="check the kernels on a GPU, time them, and write the table of results")
    b.add_argument("--works", nargs="*", help="only these, of " + ", ".join(w.name for w in works()))
    b.add_argument("--seed", type=int, default=0, help="of the random inputs")
    b.add_argument("--repeats", type=int, default=9)
    b.add_argument("--output", type=Path, default=RECORDED, help="where to write; the module's own table unless given")
    b.set_defaults(run=bench)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
