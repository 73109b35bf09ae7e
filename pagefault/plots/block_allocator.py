"""The figures of notebook 2."""

import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle

from .style import BLUE, GREEN, GREY, ORANGE, RED, SKY, bare, figure, show


def page_walk(table, block_size, num_tokens, num_blocks):
    """A sequence's pages above, the pool's frames below, and the table's entries as arrows between them."""
    ax = bare(figure(2.6, title=f"The table {list(table)}: where {num_tokens} tokens lie, in pages of {block_size}"))
    scale = num_blocks / (len(table) * block_size)  # the tokens are drawn as wide as the pool
    colors = (BLUE, ORANGE, GREEN, RED, SKY)
    for token in range(num_tokens):
        page = token // block_size
        ax.add_patch(Rectangle((token * scale, 2), scale, 0.6, fc=colors[page % 5], ec="white", alpha=0.85))
        ax.text((token + 0.5) * scale, 2.3, token, ha="center", va="center", fontsize=9)
    for block in range(num_blocks):
        held = block in table
        color = colors[table.index(block) % 5] if held else "white"
        ax.add_patch(Rectangle((block, 0), 1, 0.6, fc=color, ec=GREY, lw=0.6, alpha=0.85))
        if held or num_blocks <= 32:
            ax.text(block + 0.5, 0.3, block, ha="center", va="center", fontsize=8)
    for page, block in enumerate(table):
        end = min((page + 1) * block_size, num_tokens)
        start = ((page * block_size + end) / 2 * scale, 1.95)
        look = dict(arrowstyle="->", mutation_scale=12, color=colors[page % 5], lw=1.5)
        ax.add_patch(FancyArrowPatch(start, (block + 0.5, 0.65), **look))
        ax.text(start[0], 2.72, f"page {page}", ha="center", fontsize=9)
    ax.text(0, -0.3, f"the pool: {num_blocks} blocks, each with {block_size} slots", fontsize=9, va="center")
    ax.set(xlim=(-0.2, num_blocks + 0.2), ylim=(-0.5, 3.1))
    show(", ".join(f"page {page} lies in block {block}" for page, block in enumerate(table)) + ".")


def owners(held, num_blocks):
    """Whose each block is: int64 [num_blocks], a request's number in held = {number: blocks}, -1 where it is nobody's."""
    whose = np.full(num_blocks, -1)
    for number, blocks in held.items():
        whose[list(blocks)] = number
    return whose


def longest_run(whose):
    """The largest number of free blocks side by side."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (whose == -1).astype(int), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def pool_map(snapshots, columns=16):
    """The pool as a map of blocks, each with the number of the request that has it; the two longest requests in colour.

    snapshots: {title: owners(...)}, at most three.
    """
    size = len(next(iter(snapshots.values())))
    rows = -(-size // columns)
    axes = np.atleast_1d(figure(0.2 * rows + 1.1, len(snapshots), f"The pool map: {size} blocks, and whose they are"))
    facts = []
    for ax, (title, whose) in zip(axes, snapshots.items()):
        numbers, counts = np.unique(whose[whose >= 0], return_counts=True)
        colors = dict(zip(numbers[np.argsort(-counts, kind="stable")].tolist(), (BLUE, ORANGE)))
        for block, owner in enumerate(whose.tolist()):
            row, column = divmod(block, columns)
            if owner == -1:
                ax.add_patch(Rectangle((column, row), 1, 1, fc="white", ec=GREY, lw=0.4, hatch="////"))
                continue
            fill = colors.get(owner, "#E5E5E5")
            ax.add_patch(Rectangle((column, row), 1, 1, fc=fill, ec="white", lw=0.6))
            ax.text(column + 0.5, row + 0.52, owner, ha="center", va="center", fontsize=5.8,
                    color="white" if fill == BLUE else "black", weight="bold" if owner in colors else "normal")
        free, run = int((whose == -1).sum()), longest_run(whose)
        bare(ax).set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
        ax.set_title(f"{title}\n{free} free, at most {run} side by side", fontsize=10)
        pieces = {owner: 1 + int((np.diff(np.flatnonzero(whose == owner)) > 1).sum()) for owner in colors}
        lie = " and ".join(f"request {owner} in {n} piece{'s' if n > 1 else ''}" for owner, n in pieces.items())
        facts.append(f"{title}: {free} of {size} blocks are free, at most {run} of them side by side; {lie}.")
    show("\n".join([*facts, "Numbers: the request that has the block. In colour: the two largest. Hatched: free."]))


def staircase(tokens, block_size):
    """Slots that a growing request has, by its tokens: a block at a time."""
    n = np.arange(1, tokens + 1)
    mapped = -(-n // block_size) * block_size
    ax = figure(3, title=f"A request grows to {tokens} tokens; blocks of {block_size}")
    ax.step(n, mapped, where="mid", color=BLUE)
    ax.plot(n, n, color=ORANGE, ls="--")
    ax.fill_between(n, n, mapped, step="mid", color=BLUE, alpha=0.15)
    ax.text(tokens * 1.01, mapped[-1], "slots it has", color=BLUE, va="center", fontsize=9)
    ax.text(tokens * 1.01, tokens, "tokens", color=ORANGE, va="center", fontsize=9)
    ax.annotate("mapped, empty", (block_size * 1.25, block_size * 1.75), (block_size * 0.6, block_size * 2.9), fontsize=9,
                ha="center", arrowprops=dict(arrowstyle="-", color=GREY))
    steps = [1, *(n[:-1][np.diff(mapped) > 0] + 1).tolist()]
    ax.set(xlabel="tokens", ylabel="slots", xlim=(0, tokens * 1.14), ylim=(0, mapped[-1] * 1.08), xticks=steps,
           yticks=np.unique(mapped))
    show(f"A new block at lengths {', '.join(map(str, steps))}; at most {(mapped - n).max()} slots are empty.")


def block_sizes(sweep, waste, seqs):
    """Waste and table length by block size. sweep: block_sweep's frame; waste: {block_size: empty slots a sequence} of
    many lengths spread evenly; seqs: how many sequences the sweep is of."""
    left, right = figure(3.6, 2, "The size of a block: what it wastes, and what its table costs (logarithmic axes)")
    sizes = np.array([size for size in waste if size > 1])
    left.loglog(sizes, (sizes - 1) / 2, color=GREY, lw=3, label="(B - 1) / 2")
    left.plot(sizes, [waste[size] for size in sizes], color=BLUE, marker="o", ls="", label="a million lengths, spread evenly")
    own = sweep[sweep.block_size > 1]
    look = dict(color=ORANGE, marker="s", ls="", mfc="none", ms=8, label=f"our {seqs} requests")
    left.plot(own.block_size, own.wasted / seqs, **look)
    left.set(xlabel="block size B (slots)", ylabel="empty slots a request")
    marks = [0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5, 127.5]
    left.set_yticks(marks, marks)
    left.legend(frameon=False, fontsize=9)
    right.loglog(sweep.block_size, sweep.table_entries, color=RED, marker="D")
    right.set(xlabel="block size B (slots)", ylabel="entries in a table for 2,048 tokens")
    for ax in (left, right):
        ax.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
        ax.minorticks_off()
    ticks = [8, 32, 128, 512, 2048]
    right.set_yticks(ticks, [f"{t:,}" for t in ticks])
    near = max(abs(w - (b - 1) / 2) for b, w in waste.items())
    show(f"Spread evenly, the waste is (B - 1) / 2 within {near:.2f} slots, for B from {min(waste)} to {max(waste)}. "
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
    ax = figure(3.8, title="Reserved by a contiguous cache / reserved in blocks of 16 (logarithmic axes)")
    facts, looks = [], ((BLUE, "o", "-"), (ORANGE, "s", "--"))
    for (name, times), (color, marker, dash) in zip(savings.items(), looks):
        ax.loglog(list(times), list(times.values()), color=color, marker=marker, ls=dash)
        last = list(times)[-1]
        ax.text(last * 1.08, times[last], name, color=color, va="center", fontsize=9)
        for maximum, share in over[name].items():
            if share > 0.001:
                above = times[maximum] == max(other[maximum] for other in savings.values())
                text, y = f"{100 * share:.1f}% longer", times[maximum] * (1.2 if above else 0.8)
                ax.text(maximum, y, text, color=color, ha="center", va="center", fontsize=8)
        facts.append(f"{name}: " + ", ".join(f"{t:.1f} times at {maximum:,}" for maximum, t in times.items()) + " slots.")
    ticks = list(next(iter(savings.values())))
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks], minor=False)
    ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"], minor=False)
    ax.minorticks_off()
    ax.set(xlabel="slots that a contiguous cache reserves for a request", ylabel="times", xlim=(ticks[0] * 0.8, ticks[-1] * 2.2))
    show("\n".join([*facts, "Longer: the share of requests that don't fit into the slots, and are left out."]))


def snapshot(tables, pool):
    """What copy_on_write draws of some tables: their blocks, and of each block in use the reference count and the tokens."""
    size, tokens = pool.block_size, {}
    for table in tables.values():
        for page, block in enumerate(table.blocks):
            tokens[block] = max(tokens.get(block, 0), min(size, table.num_tokens - page * size))
    used = {block: (pool.ref_count(block), n) for block, n in sorted(tokens.items())}
    return {name: list(table.blocks) for name, table in tables.items()}, used


def copy_on_write(steps):
    """Tables, and arrows to the blocks that they name, with reference counts. steps: {title: snapshot(...)}."""
    axes = figure(2.9, len(steps), "Fork, and copy on write")
    blocks = sorted({block for _, used in steps.values() for block in used})
    facts = []
    for ax, (title, (tables, used)) in zip(axes, steps.items()):
        bare(ax).set(xlim=(-0.2, 4.7), ylim=(len(blocks) + 0.1, -0.7))
        ax.set_title(title, fontsize=10)
        for i, (name, held) in enumerate(tables.items()):
            color, top = (BLUE, ORANGE)[i], i * (len(blocks) + 0.3) / len(tables)
            ax.text(0, top - 0.1, f"table of {name}", color=color, fontsize=9)
            for page, block in enumerate(held):
                y = top + 0.45 * page
                ax.add_patch(Rectangle((0, y), 0.9, 0.42, fc="white", ec=color))
                ax.text(0.45, y + 0.21, block, ha="center", va="center", fontsize=9)
                ax.add_patch(FancyArrowPatch((0.9, y + 0.21), (2.7, blocks.index(block) + 0.25 + 0.2 * i), arrowstyle="->",
                                             mutation_scale=9, color=color, ls=("-", "--")[i], shrinkA=0, shrinkB=0))
        for y, block in enumerate(blocks):
            count, tokens = used.get(block, (0, 0))
            ax.add_patch(Rectangle((2.7, y), 1.9, 0.7, fc=("white", "#DDEEFF", SKY)[min(count, 2)], ec=GREY))
            text = f"block {block}\n{f'count {count}, {tokens} tokens' if count else 'free'}"
            ax.text(3.65, y + 0.35, text, ha="center", va="center", fontsize=8.5)
        facts.append(f"{title}: " + ", ".join(f"block {b} has count {c} and {n} tokens" for b, (c, n) in used.items()) + ".")
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
        ax.text(x + 0.06, y - 0.33, f"block {entry.block}", fontsize=7.5, color="#555555", va="bottom")
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
    ax.plot(steps, tokens / block_size, color="black", lw=1.3, ls="--")
    at, early = int(len(rows) * 0.8), int(len(rows) * 0.3)
    ax.text(len(rows) * 0.01, num_blocks * 1.02, "the pool, from start to end", fontsize=9, va="bottom")
    ax.text(early, tokens[early] / block_size + 0.06 * num_blocks, f"live: tokens / {block_size}", ha="right", fontsize=9)
    ax.text(len(rows) * 0.99, num_blocks * 0.97, "on standby", ha="right", va="top", fontsize=9)
    ax.text(at, used[at] / 2, "in use", ha="center", va="center", color="white", fontsize=9)
    ax.set(xlabel="step of decoding", ylabel="blocks", xlim=(0, len(rows)), ylim=(0, num_blocks * 1.12))
    now, idle, most = (100 * x / num_blocks for x in (used[-1], standby[-1], used.max()))
    show(f"At the end {now:.0f}% of the pool is in use and {idle:.0f}% on standby; the most in use was {most:.0f}%. "
         f"Dashed: live tokens / {block_size}, the blocks that they would fill if none were shared. Both areas: mapped.")


def sharing(frame):
    """Blocks saved by sharing, as published and as simulated: frame has the columns method, data, n, paper, ours and how."""
    ax = figure(4.2, title="Blocks that the sequences of one request save by sharing")
    rows = np.arange(len(frame)) + frame.groupby(["method", "data"], sort=False).ngroup() * 0.6
    ax.hlines(rows, 100 * frame.paper, 100 * frame.ours, color=GREY, lw=2, zorder=0)
    for column, color, marker, label in (("paper", ORANGE, "s", "paper"), ("ours", BLUE, "o", "here")):
        ax.plot(100 * frame[column], rows, color=color, marker=marker, ls="", label=label)
    for y, row in zip(rows, frame.itertuples()):
        text = f"paper {100 * row.paper:.1f}, here {100 * row.ours:.1f}{' (fitted)' if row.how == 'fitted' else ''}"
        ax.text(100 * max(row.paper, row.ours) + 1.2, y, text, va="center", fontsize=8.5)
    ax.set(yticks=rows, yticklabels=[f"{row.method}, {row.data}, n = {row.n}" for row in frame.itertuples()], xlim=(0, 105),
           xlabel="blocks saved (%)")
    ax.invert_yaxis()
    ax.legend(loc="upper right", frameon=False)
    off = 100 * (frame.ours - frame.paper).abs()
    far, near = frame.loc[off.idxmax()], (off[frame.how != "fitted"] < 4).sum()
    show(f"Of {len(frame)} values one is fitted; {near} of the others come within 4 points of the paper's, the farthest is off by "
         f"{off.max():.0f} ({far.method}, {far.data}, n = {far.n}).")
