"""python -m pagefault calc | simulate | bench | engine | class"""

import argparse

from .bench_command import add_bench
from .calc_command import add_calc
from .class_command import add_class
from .engine_command import add_engine
from .simulate_command import add_simulate


def main():
    parser = argparse.ArgumentParser(prog="python -m pagefault", description=__doc__)
    commands = parser.add_subparsers(required=True)
    add_calc(commands)
    add_simulate(commands)
    add_bench(commands)
    add_engine(commands)
    add_class(commands)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
