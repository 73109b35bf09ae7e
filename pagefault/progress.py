"""A progress bar for what takes long: in a terminal, or where it is asked for, and never in stored outputs."""

import sys

from tqdm import tqdm


def progress_bar(total, unit, wanted=None):
    """A tqdm bar on stderr. wanted: True or False, or None to show it if stderr is a terminal."""
    return tqdm(total=total, unit=unit, disable=not (sys.stderr.isatty() if wanted is None else wanted), file=sys.stderr)
