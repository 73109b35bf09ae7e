"""The figures of notebook 1."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from ..memory import contiguous_memory
from .style import BLUE, GREEN, GREY, ORANGE, RED, SKY, bare, figure, show


def triangles(steps=12):
    """The K and V that each step of decoding computes, without and with a cache."""
    axes = figure(4.2, 2, f"K and V of {steps} tokens, generated one at a time")
    for ax, cached in zip(axes, (False, True)):
        for step in range(steps):
            for token in range(step + 1):
                new = token == step or not cached
                ax.add_patch(Rectangle((token, step), 0.9, 0.9, facecolor=ORANGE if new else "white",
                                       edgecolor=ORANGE if new else BLUE, hatch="" if new else "///"))
        rows = steps if cached else steps * (steps + 1) // 2
        ax.set(xlim=(-0.2, steps), ylim=(steps, -0.2), xlabel="token", ylabel="step", aspect="equal",
               title=f"{'with' if cached else 'without'} a cache: {rows} computed")
    ax.text(steps * 0.97, steps * 0.12, "solid: computed in this step\nhatched: read from the cache", ha="right", fontsize=9)
    show(f"Without a cache {steps * (steps + 1) // 2} pairs of K and V are computed for {steps} tokens, with one {steps}.")


def parking_lot(lengths_by_seed, max_seq_len):
    """Reserved slots as a row a sequence: the solid part holds tokens."""
    title = "The parking lot: slots reserved for each request, and slots that hold a token"
    axes = np.atleast_1d(figure(6.2, len(lengths_by_seed), title))
    for ax, (seed, lengths) in zip(axes, lengths_by_seed.items()):
        memory, rows = contiguous_memory(lengths, max_seq_len), np.arange(len(lengths))
        ax.barh(rows, max_seq_len, height=0.85, facecolor="white", edgecolor=GREY, hatch="////", lw=0.4)
        ax.barh(rows, lengths, height=0.85, color=BLUE)
        for row, n in zip(rows, lengths):
            ax.text(max_seq_len * 1.02, row, f"{100 * n / max_seq_len:.0f}%", va="center", fontsize=7.5)
        ax.set(xlim=(0, max_seq_len * 1.1), ylim=(len(lengths) - 0.4, -0.6), xlabel="token slots", ylabel="request",
               xticks=np.linspace(0, max_seq_len, 5), yticks=rows[::4])
        ax.set_title(f"seed {seed}: {100 * memory.utilization:.1f}% in use", fontsize=14, color=BLUE, weight="bold")
    facts = [(seed, contiguous_memory(n, max_seq_len)) for seed, n in lengths_by_seed.items()]
    texts = (f"seed {seed}: {m.stored:,} of {m.reserved:,} slots hold a token, {100 * m.utilization:.1f}%" for seed, m in facts)
    show("\n".join([*texts, "Solid: holds a token. Hatched: reserved and empty."]))


def utilization_by_mix(lengths_by_mix, max_seq_len):
    """The part of the reserved memory that holds tokens, for several mixes of requests."""
    used = {name: contiguous_memory(n, max_seq_len).utilization for name, n in lengths_by_mix.items()}
    count = len(next(iter(lengths_by_mix.values())))
    ax = figure(2.8, title=f"{count:,} requests of a mix, {max_seq_len:,} slots reserved for each")
    rows = np.arange(len(used))
    ax.barh(rows, 100, height=0.7, facecolor="white", edgecolor=GREY, hatch="////", lw=0.4)
    ax.barh(rows, [100 * u for u in used.values()], height=0.7, color=BLUE)
    for row, u in zip(rows, used.values()):
        ax.text(100 * u + 1, row, f"{100 * u:.1f}%", va="center", color="black", backgroundcolor="white", fontsize=9)
    ax.set(yticks=rows, yticklabels=used, xlabel="share of the reserved slots that hold a token (%)", xlim=(0, 100))
    ax.invert_yaxis()
    show("In use: " + ", ".join(f"{name} {100 * u:.1f}%" for name, u in used.items()) + ".")


def thread_hierarchy(grid=4, block=128, pick=2, warp=1):
    """A grid of thread blocks; one thread block's warps; one warp's threads."""
    ax = bare(figure(3.9, title=f"A launch of {grid} thread blocks of {block} threads"))
    if block % 32 or not (0 <= pick < grid and 0 <= warp < block // 32):
        raise ValueError(f"thread block {pick} of {grid}, warp {warp} of {block} / 32")
    warps, left = block // 32, pick * block + warp * 32

    def row(y, count, labels, chosen, color):
        for i in range(count):
            fill = color if i == chosen else "white"
            ax.add_patch(Rectangle((100 * i / count + 0.4, y), 100 / count - 0.8, 0.8, facecolor=fill, edgecolor=color, lw=1.2))
            ax.text(100 * (i + 0.5) / count, y + 0.4, labels(i), ha="center", va="center", fontsize=10 if count < 9 else 7)

    def zoom(y, count, chosen):
        for x, to in ((100 * chosen / count, 0), (100 * (chosen + 1) / count, 100)):
            ax.plot([x, to], [y, y - 0.7], color=GREY, lw=0.8)

    row(3, grid, lambda i: f"thread block {i}", pick, SKY), zoom(3, grid, pick)
    row(1.5, warps, lambda i: f"warp {i}: {32 * i} to {32 * i + 31}", warp, ORANGE), zoom(1.5, warps, warp)
    row(0, 32, lambda i: str(32 * warp + i), 5, GREEN)
    index = f"{pick} * {block} + {32 * warp + 5} = {left + 5}"
    ax.text(0, -0.45, f"The green thread's i = blockIdx.x * blockDim.x + threadIdx.x = {index}")
    ax.set(xlim=(-1, 101), ylim=(-0.8, 4))
    show(f"{grid} thread blocks x {block} threads = {grid * block} threads, in {grid * warps} warps of 32.")


def reduction_tree(values):
    """How threads add up a power of two of numbers in rounds; between two rounds all of them wait."""
    n = len(values)
    if n < 2 or n & (n - 1):
        raise ValueError(f"{n} values, a power of two is needed")
    ax = bare(figure(3.6, title=f"{n} numbers added up by a tree, in {n.bit_length() - 1} rounds"))
    level, half = list(values), n // 2
    for depth in range(n.bit_length()):
        for t in range(n >> depth):
            ax.text(t, -depth, level[t], ha="center", va="center", fontsize=11, bbox=dict(boxstyle="round", fc="white", ec=BLUE))
        if depth:
            ax.axhline(0.5 - depth, color=RED, ls="--", lw=1, xmax=0.97)
            ax.text(n - 0.4, 0.53 - depth, "barrier", color=RED, ha="right", fontsize=9)
        if n >> (depth + 1):
            for t in range(half):
                for source in (t, t + half):
                    ax.plot([source, t], [-depth - 0.2, -depth - 0.8], color=GREY, lw=1, zorder=0)
            level, half = [level[t] + level[t + half] for t in range(half)], half // 2
    ax.set(xlim=(-0.6, n - 0.3), ylim=(0.5 - n.bit_length(), 0.5))
    show(f"{' + '.join(map(str, values))} = {sum(values)}, in {n.bit_length() - 1} rounds with a barrier before each.")


def sectors(lanes=32, row_bytes=256):
    """The 32-byte sectors that a warp's load touches: one thread a row, and lanes along a row; rows of fp32."""
    axes = figure(4.6, 2, f"One load of a warp: {lanes} lanes, 4 bytes each, from rows of {row_bytes} bytes")
    facts, ways = [], {"one thread a row": lambda lane: lane * row_bytes, "lanes along a row": lambda lane: 4 * lane}
    for ax, (name, address) in zip(axes, ways.items()):
        touched = {address(i) // 32 for i in range(lanes)}
        for sector in range(lanes * row_bytes // 32):
            row, column = divmod(sector, row_bytes // 32)
            ax.add_patch(Rectangle((32 * column, row), 32, 1, fc=ORANGE if sector in touched else "white", ec=GREY, lw=0.4))
        for i in range(lanes):
            ax.add_patch(Rectangle((address(i) % row_bytes, address(i) // row_bytes), 4, 1, fc=BLUE, ec="white", lw=0.3))
        ax.set(xlim=(0, row_bytes), ylim=(lanes, 0), xticks=range(0, row_bytes + 1, 32), xlabel="byte in the row", ylabel="row",
               title=f"{name}: {len(touched)} sectors")
        facts.append(f"{name}: {len(touched)} sectors, {32 * len(touched):,} bytes moved for {4 * lanes} asked for")
    show("\n".join([*facts, "Blue: asked for. Orange: moved with it."]))


def cache_growth(models, longest=131_072):
    """Bytes of one sequence's cache by its length, in several models."""
    ax = figure(3.8, title="One sequence's KV cache by its length (fp16)")
    lengths = np.unique(np.geomspace(256, longest, 60).astype(int))
    if len(models) > 5:
        raise ValueError(f"{len(models)} models, and five lines can be told apart")
    looks = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (RED, ":"), (GREY, (0, (5, 1))))
    for (name, model), (color, dash) in zip(models.items(), looks):
        ax.loglog(lengths, [model.bytes(int(n)) / 1e9 for n in lengths], color=color, ls=dash, label=name)
        up = {"gemma-3-27b": "bottom", "deepseek-v3": "top"}.get(name, "center")  # two that end close together
        ax.text(longest * 1.05, model.bytes(longest) / 1e9, name, color=color, va=up, fontsize=9)
    ax.set(xlabel="tokens", ylabel="cache (GB)", xlim=(256, longest * 3.2))
    ax.set_xticks([256, 1024, 4096, 16384, 65536], ["256", "1,024", "4,096", "16,384", "65,536"], minor=False)
    plt.minorticks_off()
    ends = ", ".join(f"{name} {model.bytes(longest) / 1e9:.2f} GB" for name, model in models.items())
    show(f"At {longest:,} tokens: {ends}.")
