"""The module's own errors. A call that raises one has changed nothing."""


class KernelError(RuntimeError):
    """A kernel does not compile, can't be launched as asked, or went wrong while it ran."""


class RequestTooLarge(ValueError):
    """A sequence needs more than there will ever be, however long it waits."""
