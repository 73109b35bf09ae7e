"""How all figures look: one width, Okabe and Ito's colours, labels beside what they name."""

import matplotlib.pyplot as plt

BLUE, ORANGE, GREEN, RED, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#999999"
WIDTH = 9  # inches
plt.rcParams["hatch.linewidth"] = 0.6


def figure(height, columns=1, title="", **options):
    """A figure of the course's width with `columns` axes, its title over all of them."""
    fig, axes = plt.subplots(1, columns, figsize=(WIDTH, height), layout="constrained", **options)
    fig.suptitle(title, fontsize=12)
    for ax in fig.axes:
        ax.spines[["top", "right"]].set_visible(False)
    return axes


def bare(ax):
    """An axes without ticks and frame, for a drawing."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    return ax


def show(sentence):
    """Print what the figure says, then show it."""
    print(sentence)
    plt.show()
