"""The figures of notebook 2."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle

from .style import BLUE, GREEN, GREY, ORANGE, RED, SKY, bare, figure, show


def owners(tables, num_blocks):
    """Whose each block is: int64 [num_blocks], a table's key in `tables`, -1 where a block is nobody's."""
    whose = np.full(num_blocks, -1)
    for name, table in tables.items():
        whose[table.blocks] = name
    return whose


def longest_run(whose):
    """The largest number of free blocks side by side."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (whose == -1).astype(int), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def pool_map(snapshots, highlight, columns=24):
    """The pool as a map of blocks, each with the number of the request that has it; some requests in colour.

    snapshots: {title: owners(...)}, at most two; highlight: up to three request numbers a snapshot.
    """
    size = len(next(iter(snapshots.values())))
    title = f"The pool map: {size} blocks, and whose they are"
    axes = np.atleast_1d(figure(0.19 * -(-size // columns) + 1.1, len(snapshots), title))
    facts = []
    for ax, (title, whose), picked in zip(axes, snapshots.items(), highlight):
        colors = dict(zip(picked, (BLUE, ORANGE, GREEN)))
        for block, owner in enumerate(whose):
            row, column = divmod(block, columns)
            fill = colors.get(owner, "white" if owner == -1 else "#E5E5E5")
            ax.add_patch(Rectangle((column, row), 1, 1, fc=fill, ec="white" if owner != -1 else "#DDDDDD", lw=0.6))
            if owner != -1:
                ax.text(column + 0.5, row + 0.52, owner, ha="center", va="center", fontsize=5.2,
                        color="white" if fill == BLUE else "black", weight="bold" if owner in colors else "normal")
        free, run = int((whose == -1).sum()), longest_run(whose)
        bare(ax).set(xlim=(0, columns), ylim=(-(-size // columns), 0), aspect="equal")
        ax.set_title(f"{title}\n{free} free, at most {run} side by side", fontsize=10)
        pieces = {owner: 1 + int((np.diff(np.flatnonzero(whose == owner)) > 1).sum()) for owner in picked}
        lie = ", ".join(f"request {owner} in {n} piece{'s' if n > 1 else ''}" for owner, n in pieces.items())
        facts.append(f"{title}: {free} of {size} blocks are free, at most {run} of them side by side; {lie}.")
    show("\n".join([*facts, "Numbers: the request that has the block. White: free."]))


def staircase(tokens, block_size, reserved):
    """Slots that a growing request has, by its tokens: reserved at once, or a block at a time."""
    n = np.arange(1, tokens + 1)
    mapped = -(-n // block_size) * block_size
    ax = figure(3, title=f"A request grows to {tokens} tokens; blocks of {block_size}")
    ax.step(n, mapped, where="pre", color=BLUE)
    ax.plot(n, n, color=ORANGE, ls="--")
    ax.fill_between(n, n, mapped, step="pre", color=BLUE, alpha=0.15)
    ax.text(tokens * 1.01, mapped[-1], "slots it has", color=BLUE, va="bottom", fontsize=9)
    ax.text(tokens * 1.01, tokens, "tokens", color=ORANGE, va="top", fontsize=9)
    ax.text(2, mapped[-1] * 0.97, f"(a contiguous cache: {reserved:,} slots from the first token on)", fontsize=9, va="top")
    ax.set(xlabel="tokens", ylabel="slots", xlim=(0, tokens * 1.14), ylim=(0, mapped[-1] * 1.08),
           xticks=range(0, tokens + 1, block_size))
    steps = ", ".join(str(i) for i in n[:-1][np.diff(mapped) > 0] + 1)
    show(f"A new block at tokens 1, {steps}; at most {(mapped - n).max()} slots are empty. Shaded: mapped and empty.")


def block_sizes(sweep, waste, seqs):
    """Waste and table length by block size. sweep: block_sweep's frame; waste: {block_size: empty slots a sequence} of
    many lengths spread evenly; seqs: how many sequences the sweep is of."""
    left, right = figure(3.6, 2, "The size of a block: what it wastes, and what its table costs")
    sizes = np.array(list(waste))
    left.plot(sizes, (sizes - 1) / 2, color=GREY, lw=3, label="(B - 1) / 2")
    left.plot(sizes, list(waste.values()), color=BLUE, marker="o", ls="", label="a million lengths, spread evenly")
    own = dict(color=ORANGE, marker="s", ls="", mfc="none", ms=8, label=f"our {seqs} requests")
    left.plot(sweep.block_size, sweep.wasted / seqs, **own)
    left.set_xscale("log", base=2), left.set_yscale("symlog", linthresh=1)
    left.set(xlabel="block size B (slots)", ylabel="empty slots a request", ylim=(-0.1, 300))
    marks = [0, 0.5, 1.5, 7.5, 31.5, 127.5]
    left.set_yticks(marks, marks), left.minorticks_off()
    left.legend(frameon=False, fontsize=9)
    right.plot(sweep.block_size, sweep.table_entries, color=RED, marker="D")
    right.set_xscale("log", base=2), right.set_yscale("log", base=2)
    right.set(xlabel="block size B (slots)", ylabel="entries in a request's table")
    for ax in (left, right):
        ax.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    ticks = [8, 32, 128, 512, 2048]
    right.set_yticks(ticks, [f"{t:,}" for t in ticks])
    near = max(abs(w - (b - 1) / 2) / b for b, w in waste.items())
    show(f"Spread evenly, the waste is (B - 1) / 2 within {100 * near:.1f}% of a block, for B from {sizes[0]} to {sizes[-1]}. "
         f"Our {seqs} requests at 16: {sweep.set_index('block_size').wasted[16] / seqs:.2f}.")


KINDS = {"stored": (BLUE, ""), "reserved_later": (SKY, "///"), "internal": (ORANGE, "..."), "external": ("white", "xx")}
NAMES = {"stored": "holds a token", "reserved_later": "reserved, used later", "internal": "reserved, never used",
         "external": "free but unusable, and other"}


def reservation_schemes(paper, ours):
    """Shares of the KV memory under schemes of reserving, as published and as simulated: frames of a row a scheme."""
    ax = figure(4.4, title="KV memory of a full server, by what its slots hold")
    rows, labels, facts = [], [], []
    for i, scheme in enumerate(ours.index):
        for j, (source, frame) in enumerate((("paper", paper), ("here", ours))):
            if scheme in frame.index:
                rows.append((2.5 * i + 0.95 * j, frame.loc[scheme, list(KINDS)].fillna(0)))
                labels.append(f"{scheme}, {source}")
        facts.append(f"{scheme}: " + ", ".join(f"{NAMES[kind]} {100 * ours.loc[scheme, kind]:.1f}%" for kind in KINDS))
    for kind, (color, hatch) in KINDS.items():
        left = [100 * shares[: list(KINDS).index(kind)].sum() for _, shares in rows]
        width = [100 * shares[kind] for _, shares in rows]
        ax.barh([y for y, _ in rows], width, left=left, height=0.85, fc=color, ec="black", lw=0.6, hatch=hatch, label=NAMES[kind])
        for (y, _), x, w in zip(rows, left, width):
            if w >= 4:
                solid = kind == "stored"
                ax.text(x + w / 2, y, f"{w:.1f}", ha="center", va="center", fontsize=8.5, color="white" if solid else "black",
                        bbox=None if solid else dict(fc="white", ec="none", pad=0.8))
    ax.set(yticks=[y for y, _ in rows], yticklabels=labels, xlim=(0, 100), xlabel="share of all slots (%)")
    ax.invert_yaxis()
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False, fontsize=9)
    show("\n".join(facts))


def saving_by_maximum(savings, over):
    """How many times less a paged cache reserves than a contiguous one, by the maximum that the latter reserves.

    savings: {name: {maximum: times}}; over: {name: {maximum: share of the requests that are longer}}.
    """
    ax = figure(3.6, title="Reserved by a contiguous cache / reserved in blocks of 16")
    facts, looks = [], ((BLUE, "o", "-"), (ORANGE, "s", "--"), (GREEN, "D", "-."))
    for (name, times), (color, marker, dash) in zip(savings.items(), looks):
        ax.loglog(list(times), list(times.values()), color=color, marker=marker, ls=dash)
        ax.text(list(times)[-1] * 1.08, list(times.values())[-1], name, color=color, va="center", fontsize=9)
        small, large = list(times)[0], list(times)[-1]
        longer = f"{100 * over[name][small]:.1f}% of the requests are longer"
        facts.append(f"{name}: {times[small]:.1f} times at {small:,} slots ({longer}), {times[large]:.1f} times at {large:,}.")
    ticks = list(next(iter(savings.values())))
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks], minor=False)
    ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"], minor=False)
    plt.minorticks_off()
    ax.set(xlabel="slots that a contiguous cache reserves for a request", ylabel="times", xlim=(ticks[0] * 0.9, ticks[-1] * 2.2))
    show("\n".join(facts))


def snapshot(tables, pool):
    """What copy_on_write draws of some tables: their blocks, and the reference counts of all blocks in use."""
    used = sorted({block for table in tables.values() for block in table.blocks})
    return {name: list(table.blocks) for name, table in tables.items()}, {block: pool.ref_count(block) for block in used}


def copy_on_write(steps):
    """Tables, and arrows to the blocks that they name, with reference counts. steps: {title: snapshot(...)}."""
    axes = figure(3.1, len(steps), "Fork, and copy on write")
    blocks = sorted({block for _, counts in steps.values() for block in counts})
    facts = []
    for ax, (title, (tables, counts)) in zip(axes, steps.items()):
        bare(ax).set(xlim=(-0.2, 4.6), ylim=(len(blocks) + 0.1, -0.7), title=title)
        for i, (name, held) in enumerate(tables.items()):
            color, top = (BLUE, ORANGE)[i], i * (len(blocks) + 0.3) / len(tables)
            ax.text(0, top - 0.1, f"table of {name}", color=color, fontsize=9)
            for page, block in enumerate(held):
                y = top + 0.45 * page
                ax.add_patch(Rectangle((0, y), 0.9, 0.42, fc="white", ec=color))
                ax.text(0.45, y + 0.21, block, ha="center", va="center", fontsize=9)
                ax.add_patch(FancyArrowPatch((0.9, y + 0.21), (3, blocks.index(block) + 0.35), arrowstyle="->", mutation_scale=9,
                                             color=color, ls=("-", "--")[i], shrinkA=0, shrinkB=0))
        for y, block in enumerate(blocks):
            count = counts.get(block, 0)
            ax.add_patch(Rectangle((3, y), 1.5, 0.7, fc=("white", "#DDEEFF", SKY)[min(count, 2)], ec=GREY if count else "#DDDDDD"))
            ax.text(3.75, y + 0.35, f"block {block}: {count or 'free'}", ha="center", va="center", fontsize=9)
        facts.append(f"{title}: " + ", ".join(f"block {b} has count {c}" for b, c in counts.items()) + ".")
    show("\n".join(facts))


def prefix_tree(cache, words, in_use=()):
    """The blocks of a prefix cache as a tree, with their tokens as words; those in use have a thick frame.

    words: a list, a token id's word. in_use: ids of blocks that sequences have.
    """
    entries = list(cache.entries)
    children, rows = {}, {}
    for entry in entries:
        children.setdefault(entry.parent, []).append(entry)
    depth = {entry: 0 for entry in children.get(None, [])}

    def place(entry, level, row):
        depth[entry] = level
        below = [place(child, level + 1, row + i) for i, child in enumerate(children.get(entry, []))]
        rows[entry] = np.mean([rows[c] for c in children[entry]]) if below else row
        return entry

    for i, root in enumerate(children.get(None, [])):
        place(root, 0, 2 * i)
    height = 0.75 * (max(rows.values(), default=0) + 1) + 0.9
    ax = bare(figure(height, title="The prefix cache: a block is found through those before it"))
    for entry in entries:
        x, y, used = 3.1 * depth[entry], rows[entry], entry.block in in_use
        look = dict(fc="#DDEEFF", ec=BLUE, lw=2.2) if used else dict(fc="white", ec=GREY, ls="--")
        ax.add_patch(Rectangle((x, y - 0.3), 2.6, 0.6, **look))
        ax.text(x + 1.3, y, " ".join(words[t] for t in entry.tokens), ha="center", va="center", fontsize=9)
        ax.text(x + 0.06, y - 0.33, f"block {entry.block}", fontsize=7.5, color=GREY, va="bottom")
        if entry.parent is not None:
            ax.plot([3.1 * depth[entry.parent] + 2.6, x], [rows[entry.parent], y], color=GREY, lw=1)
    ax.set(xlim=(-0.1, 3.1 * (max(depth.values(), default=0) + 1)), ylim=(max(rows.values(), default=0) + 0.6, -0.75))
    used = sum(entry.block in in_use for entry in entries)
    show(f"{len(entries)} cached blocks: {used} in use, {len(entries) - used} on standby. Solid: in use. Dashed: on standby.")


def pool_over_time(rows, num_blocks, block_size):
    """What of a pool is mapped, in use, and holds tokens, step by step. rows: [steps, 3] blocks in use, on standby, tokens."""
    used, standby, tokens = np.array(rows).T
    ax = figure(3.6, title=f"A pool of {num_blocks:,} blocks of {block_size} while a server works")
    steps = np.arange(len(rows))
    ax.axhline(num_blocks, color="black", lw=1.5)
    ax.fill_between(steps, used, used + standby, color=SKY, alpha=0.5, hatch="//", ec=SKY, lw=0)
    ax.fill_between(steps, 0, used, color=BLUE, alpha=0.85, lw=0)
    ax.plot(steps, tokens / block_size, color=ORANGE, lw=1.5, ls="--")
    at = int(len(rows) * 0.8)
    ax.text(len(rows) * 0.01, num_blocks * 1.02, "the pool: what the driver calls used, from start to end", fontsize=9, va="bottom")
    ax.text(at, used[at] + standby[at] / 2, "on standby", ha="center", va="center", fontsize=9, backgroundcolor="white")
    ax.text(at, used[at] / 2, "in use", ha="center", va="center", color="white", fontsize=9)
    ax.set(xlabel="step of decoding", ylabel="blocks", xlim=(0, len(rows)), ylim=(0, num_blocks * 1.12))
    now, idle, most = (100 * x / num_blocks for x in (used[-1], standby[-1], used.max()))
    show(f"At the end {now:.0f}% of the pool is in use and {idle:.0f}% on standby; the most in use was {most:.0f}%. "
         f"Dashed: blocks that the tokens in use would fill if none were shared.")


def sharing(frame):
    """Blocks saved by sharing, as published and as simulated: frame has the columns method, data, n, paper, ours and how."""
    ax = figure(4.2, title="Blocks that the sequences of one request save by sharing")
    rows = np.arange(len(frame)) + frame.groupby(["method", "data"], sort=False).ngroup() * 0.6
    ax.hlines(rows, 100 * frame.paper, 100 * frame.ours, color=GREY, lw=2, zorder=0)
    for column, color, marker, label in (("paper", ORANGE, "s", "the paper's"), ("ours", BLUE, "o", "ours")):
        ax.plot(100 * frame[column], rows, color=color, marker=marker, ls="", label=label)
    for y, row in zip(rows, frame.itertuples()):
        text = f"{100 * row.paper:.1f} and {100 * row.ours:.1f}{'  (fitted)' if row.how == 'fitted' else ''}"
        ax.text(100 * max(row.paper, row.ours) + 1.2, y, text, va="center", fontsize=8.5)
    ax.set(yticks=rows, yticklabels=[f"{row.method}, {row.data}, n = {row.n}" for row in frame.itertuples()], xlim=(0, 92),
           xlabel="blocks saved (%)")
    ax.invert_yaxis()
    ax.legend(loc="upper right", frameon=False)
    off = 100 * (frame.ours - frame.paper).abs()
    far, near = frame.loc[off.idxmax()], (off[frame.how != "fitted"] < 4).sum()
    show(f"Of {len(frame)} values one is fitted; {near} of the others come within 4 points of the paper's, the farthest is off by "
         f"{off.max():.0f} ({far.method}, {far.data}, n = {far.n}).")
