"""python -m pagefault calc | simulate | bench"""

import argparse
import sys
from pathlib import Path

from .benchmark import RECORDED, measure, record, works
from .calc_command import add_calc
from .gpu import gpu_available
from .simulate_command import add_simulate


def bench(args):
    if not gpu_available():
        sys.exit("pagefault bench times kernels on an NVIDIA GPU, and there is none here (or CuPy is not installed)")
    chosen = [w for w in works() if not args.works or w.name in args.works]
    unknown = set(args.works or ()) - {w.name for w in chosen}
    if unknown or args.repeats < 1 or args.seed < 0:
        sys.exit(f"there are no works {sorted(unknown)}" if unknown else f"--repeats {args.repeats} --seed {args.seed}: too small")
    if args.works and args.output == RECORDED:
        sys.exit("with --works, give --output FILE: the module's own table keeps all works")
    args.output.touch()  # or say now that it can't be written
    options = f" --seed {args.seed} --repeats {args.repeats}" + (f" --works {' '.join(args.works)}" if args.works else "")
    rows = []
    for work in chosen:
        rows += measure(work, args.seed, args.repeats)
        for row in rows[-2:]:
            text = "{work:10} {kernel:16} {median_us:10.2f} us [{low_us:.2f} to {high_us:.2f}], error {error}"
            print(text.format(**row), flush=True)
        if args.output != RECORDED or work is chosen[-1]:
            record(rows, "python -m pagefault bench" + options, args.output)


def main():
    parser = argparse.ArgumentParser(prog="python -m pagefault", description=__doc__)
    commands = parser.add_subparsers(required=True)
    add_calc(commands)
    add_simulate(commands)
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
