"""Small helpers of the notebooks' own: a reader's prediction beside the result, and a kernel's source."""

from numbers import Integral, Real

from .gpu import gpu_available
from .translate import KERNELS


def array_module():
    """CuPy where a GPU can be used, else NumPy: kernels run where their arrays are."""
    if gpu_available():
        import cupy

        return cupy
    import numpy

    return numpy


def compare(prediction, result, unit, found="Counted"):
    """Print a reader's prediction, None if there is none, beside the result. found: how that was found, a word."""
    text = f"{result:,}" if isinstance(result, Integral) else f"{result:.1f}"
    if isinstance(prediction, Real) and not isinstance(prediction, bool):
        times = f" Yours is {prediction / result:.2f} times that." if result else ""
        print(f"You: {prediction:,} {unit}. {found}: {text} {unit}.{times}")
    else:
        print(f"You: no prediction. {found}: {text} {unit}.")


def kernel_source(file):
    """The text of one of the module's kernels."""
    return (KERNELS / file).read_text(encoding="utf-8")


def show_kernel(file, numbers=False):
    """Show one of the module's kernels, from its file; with numbers of its lines, if asked for."""
    from IPython.display import Markdown, display

    lines = kernel_source(file).splitlines()
    text = "\n".join(f"{i:3}  {line}".rstrip() if numbers else line for i, line in enumerate(lines, 1))
    display(Markdown(f"```cpp\n{text}\n```"))
