"""The checks of the exercises, a file a notebook: what a reader wrote is run, and gets a score."""
