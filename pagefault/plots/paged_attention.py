"""The figures of notebook 3."""

import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle

from .measured import where_from
from .style import BLUE, GREEN, GREY, ORANGE, RED, SKY, bare, figure, show

CORE = "naive_attention", "online_softmax", "split_kv"  # the notebook's ladder without its deep dives
LOOKS = {"naive_attention": ("naive", BLUE, "o", ""), "online_softmax": ("online softmax", ORANGE, "s", "///"),
         "split_kv": ("split-KV", GREEN, "D", "..."), "tensor_core": ("tensor cores", SKY, "^", "xx"),
         "int8_pages": ("int8 pages", RED, "v", "\\\\\\"), "cudnn_sdpa": ("cuDNN, contiguous", GREY, "P", ""),
         "flash_sdpa": ("FlashAttention, contiguous", GREY, "X", "///")}


def chunks(lengths, lists):
    """How many tokens each thread block of a launch takes. lists: {title: chunks [n, 6] of chunks.chunk_list()}."""
    title = f"{len(lengths)} requests of one head: a bar is a thread block, its height its tokens"
    axes = np.atleast_1d(figure(3.4, len(lists), title))
    facts = []
    for ax, (title, rows) in zip(axes, lists.items()):
        tokens = rows[:, 2] - rows[:, 1]
        longest = rows[:, 0] == int(np.argmax(lengths))
        ax.bar(np.arange(len(tokens)), tokens, width=1, color=np.where(longest, ORANGE, BLUE), lw=0)
        ax.set(xlabel="thread block", ylabel="tokens", title=title, ylim=(0, max(lengths) * 1.08))
        facts.append(f"{title}: {len(tokens)} thread blocks, the longest takes {tokens.max():,} tokens.")
    show("\n".join([*facts, "Orange: the longest request."]))


def _times(table, kernel, work):
    """What a kernel takes for a work, over pages of 16 in random order if it takes pages, and merely reading its bytes."""
    rows = table[table.work == (f"{work} int8" if kernel == "int8_pages" else work)]
    reading, own = rows[rows.kernel == "read_ceiling"], rows[rows.kernel == kernel]
    if (own.layout == "paged").any():
        own = own[(own.layout == "paged") & (own.order == "shuffled") & (own.block_size == 16)]
    return (own.median_us.iloc[0], reading.median_us.iloc[0]) if len(own) else None


def ladder(table, works, kernels=CORE):
    """What share of the time a kernel needs merely to read its bytes: reading / kernel, by kernel and work.

    Over pages of 16, shuffled, or what a library takes; int8 reads half the bytes. table: benchmark.recorded(); works: {name
    of a work: label}; kernels: some of LOOKS. One that a work wasn't timed with is left out, if it isn't the plain one.
    """
    ax = figure(1 + 0.19 * len(works) * (len(kernels) + 1), title=f"How near to merely reading the bytes ({where_from(table)})")
    facts, high = [], 0.8 / len(kernels)
    for i, (work, label) in enumerate(works.items()):
        texts = []
        for j, kernel in enumerate(kernels):
            name, color, _, hatch = LOOKS[kernel]
            y, times = i + high * (j - (len(kernels) - 1) / 2), _times(table, kernel, work)
            if times is None:
                if kernel == "naive_attention":
                    ax.text(1, y, f"{name}: can't run", va="center", fontsize=8.5, color=color)
                continue
            share = 100 * times[1] / times[0]
            ax.barh(y, share, height=0.92 * high, color=color, hatch=hatch, ec="white")
            ax.text(share + 1, y, f"{name}: {share:.1f}%, {times[0]:,.1f} µs", va="center", fontsize=8.5,
                    bbox=dict(fc="white", ec="none", pad=0.5))
            texts.append(f"{name} {share:.1f}%")
        facts.append(f"{label}: " + ", ".join(texts))
    ax.set(yticks=range(len(works)), yticklabels=list(works.values()), xlim=(0, 135),
           xlabel="time of reading / time of the kernel (%)")
    ax.axvline(100, color=GREY, lw=1, ls=":")
    ax.invert_yaxis()
    show("\n".join(facts))


def walk_and_cost(table, block_table, work, label):
    """The page walk as arrows, and beside it what it costs by page size: a kernel over a pool / its twin over a contiguous cache.

    table: benchmark.recorded(); block_table: a short one, to be drawn; work: one whose block sizes were measured; label: its name.
    """
    walk, cost = figure(4, 2, f"The page walk, and what it costs ({where_from(table)})")
    bare(walk).set(xlim=(-0.3, 10.3), ylim=(-0.6, len(block_table) + 0.5))
    tall = (max(block_table) + 1) / len(block_table)
    for page, block in enumerate(block_table):
        y, color = len(block_table) - 1 - page, (BLUE, ORANGE, GREEN)[page % 3]
        walk.add_patch(Rectangle((0, y), 2.2, 0.7, fc="white", ec=color))
        walk.text(1.1, y + 0.35, f"page {page}", ha="center", va="center", fontsize=9)
        walk.add_patch(Rectangle((4, y), 1.2, 0.7, fc="white", ec="black"))
        walk.text(4.6, y + 0.35, block, ha="center", va="center", fontsize=9)
        to = len(block_table) - 0.15 - (block + 0.5) / tall
        for start, end in (((2.2, y + 0.35), (4, y + 0.35)), ((5.2, y + 0.35), (8, to))):
            walk.add_patch(FancyArrowPatch(start, end, arrowstyle="->", mutation_scale=10, color=color, shrinkA=0, shrinkB=0))
        walk.add_patch(Rectangle((8, to - 0.5 / tall), 2, 1 / tall, fc=color, ec="white", alpha=0.85))
    walk.add_patch(Rectangle((8, -0.15), 2, len(block_table), fill=False, ec=GREY))
    for x, text in ((1.1, "page of a sequence"), (4.6, "block table"), (9, "pool")):
        walk.text(x, len(block_table) + 0.15, text, ha="center", fontsize=10)
    facts = []
    for kernel in CORE:
        name, color, marker, _ = LOOKS[kernel]
        rows = table[(table.work == work) & (table.kernel == kernel) & (table.layout == "paged")]
        for order, dash in (("ordered", ":"), ("shuffled", "-")):
            some = rows[rows.order == order].drop_duplicates("block_size", keep="last").sort_values("block_size")
            if len(some) < 3:
                continue
            percent = 100 * (some.to_contiguous - 1)
            cost.plot(some.block_size, percent, color=color, marker=marker, ls=dash, mfc=color if order == "shuffled" else "white",
                      label=f"{name}, {order}")
            facts.append(f"{name}, {order}: {percent.min():.1f} to {percent.max():.1f}%")
    cost.axhspan(20, 26, color=GREY, alpha=0.25, lw=0)
    cost.text(1, 23, "the paper: 20 to 26%", fontsize=9, va="center")
    cost.axhline(1, color=RED, lw=1)
    cost.text(1.9, 1.2, "others: less than 1%", fontsize=9, color=RED)
    cost.set_xscale("log", base=2)
    cost.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    cost.set(xlabel="page size (tokens)", ylabel="longer than over a contiguous cache (%)", title=label, ylim=(0, 37))
    cost.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper center")
    show("Paging costs " + "; ".join(facts) + ".")
