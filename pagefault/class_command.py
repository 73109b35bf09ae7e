"""The options of `python -m pagefault class`."""

from functools import partial
from pathlib import Path

from .calc_command import whole_number
from .editions import EDITIONS, write_editions

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def add_class(commands):
    """Add the subcommand class to argparse's `commands`."""
    parser = commands.add_parser(
        "class", help="the notebooks for a class: students', solved, or an nbgrader assignment",
        usage="python -m pagefault class students|solved|nbgrader DEST [options]",
        description="Write the notebooks for a class, without outputs: for students (no solutions), solved, or as assignments "
                    "of nbgrader, whose checks are grade cells.")
    add = parser.add_argument
    add("edition", choices=EDITIONS)
    add("dest", metavar="DEST", help="the folder to write to")
    add("--seed", type=whole_number(0, 2**32 - 1), metavar="N", help="a class's own: other numbers, other hidden inputs")
    add("--install", metavar="SPEC", help="a first cell that runs pip install SPEC: for hosted notebooks")
    add("--notebooks", default=NOTEBOOKS, metavar="DIR", help="where the course's notebooks are (beside the module)")
    parser.set_defaults(run=partial(_run, parser))


def _run(parser, args):
    try:
        files = write_editions(args.notebooks, args.edition, args.dest, seed=args.seed, install=args.install)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print("\n".join(map(str, files)))
