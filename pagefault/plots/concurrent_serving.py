"""The figures of notebook 4."""

import numpy as np
from matplotlib.patches import Rectangle

from ..timeline import REDOES, RUNS, STALLS, seats
from .style import BLUE, GREEN, GREY, ORANGE, RED, bare, figure, show

COLORS = {RUNS: BLUE, STALLS: "black", REDOES: ORANGE}  # apart in grey as well
LOOKS = ((RED, "s", "-"), (BLUE, "o", "-"), (GREY, "^", "--"), (GREEN, "D", "-."), (ORANGE, "v", ":"))


def by_hand(runs, names="ABC"):
    """A few requests, step by step: the tokens that each has after it, and the blocks that are free. runs: {title: Timeline}."""
    rows = sum(len(run.states) + 2.3 for run in runs.values())
    longest = max(run.states.shape[1] for run in runs.values())
    ax, y, facts = bare(figure(0.24 * rows + 0.7, title="Three requests, eight pages of 4: tokens after each step")), 0.8, []
    for step in range(longest):
        ax.text(step + 0.47, 0.2, step + 1, ha="center", va="center", fontsize=7.5)
    ax.text(-0.3, 0.2, "step", ha="right", va="center", fontsize=8)
    for title, run in runs.items():
        steps = run.states.shape[1]
        ax.text(0, y + 0.55, title, fontsize=10, weight="bold", va="center")
        for row in range(len(run.states)):
            top = y + 1.1 + row
            ax.text(-0.3, top + 0.45, names[row], ha="right", va="center", fontsize=9)
            for step in np.flatnonzero(run.states[row]).tolist():
                state, text = run.states[row, step], str(run.tokens[row, step])
                ax.add_patch(Rectangle((step, top), 0.94, 0.88, fc=COLORS[state], ec="white"))
                ax.text(step + 0.47, top + 0.46, text, ha="center", va="center", fontsize=7.5,
                        color="black" if state == REDOES else "white")
        for row, step in run.preempted:
            ax.text(step + 0.47, y + 1.55 + row, "out", ha="center", va="center", fontsize=8, color=RED, weight="bold")
        ax.text(-0.3, y + 1.5 + len(run.states), "free", ha="right", va="center", fontsize=8, color="#555555")
        for step in range(steps):
            ax.text(step + 0.47, y + 1.5 + len(run.states), run.free[step], ha="center", va="center", fontsize=7.5, color="#555555")
        if run.deadlock:
            text = f"step {steps + 1}: all wait for a page that another one has"
            ax.text(steps + 0.3, y + 1.1 + len(run.states) / 2, text, va="center", fontsize=9)
        end = f"deadlock at step {steps + 1}" if run.deadlock else f"{steps} steps"
        facts.append(f"{title}: {end}, {len(run.preempted)} thrown out, {run.redone} tokens done again.")
        y += len(run.states) + 2.3
    ax.set(xlim=(-1.6, longest + 0.3), ylim=(y, 0))
    show("\n".join([*facts, "Blue: a new token. Black: it stalls. Orange: a token that it had before. out: it is thrown out."]))


def timelines(runs):
    """Who runs, stalls, or does again what was lost: a row a seat, one policy below the other. runs: {title: Timeline}."""
    pictures = {title: seats(run.states) for title, run in runs.items()}
    longest, count = max(p.shape[1] for p in pictures.values()), max(map(len, pictures.values()))
    title = "Who runs (blue), stalls (black), does again what was lost (orange); white: empty"
    ax = figure(0.021 * count * len(runs) + 1.3, title=title)
    colors = np.array([[255, 255, 255]] + [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (BLUE, "#000000", ORANGE)], np.uint8)
    facts = []
    for i, (title, picture) in enumerate(pictures.items()):
        top = i * 1.22 * count
        ax.imshow(colors[picture], extent=(0, picture.shape[1], top + len(picture), top), aspect="auto")
        heading = f"{title}: {picture.shape[1]:,} steps"
        ax.text(longest * 0.01, top - 0.015 * count, heading, va="bottom", fontsize=10, weight="bold")
        parts = [100 * float((picture == state).mean()) for state in (RUNS, STALLS, REDOES, 0)]
        facts.append("{}: {:,} steps; of the seats' time {:.0f}% new tokens, {:.0f}% stalled, {:.0f}% tokens done again, "
                     "{:.0f}% empty.".format(title, picture.shape[1], *parts))
    ax.set(xlim=(0, longest), ylim=(len(runs) * 1.22 * count - 0.2 * count, -0.17 * count), xlabel="step",
           ylabel=f"seats ({count} for each rule)" if len(runs) > 1 else f"{count} seats", yticks=[])
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.spines["left"].set_visible(False)
    show("\n".join(facts))


def cliff(frame, bound):
    """Throughput by the most sequences that run at once, as times the reserving server's: the mean of the seeds, and their range.

    frame: the recorded sweep "cliff"; bound: {seed: least steps}, of jobs.least_steps().
    """
    naive = frame[(frame.reserved > 0) & (frame.workers == frame.workers.max())].set_index("seed").steps
    bounds = [float(naive[seed] / steps) for seed, steps in bound.items()]
    most, span = float(np.mean(bounds)), f"{min(bounds):.2f} to {max(bounds):.2f}"
    ax = figure(4.6, title="When does it thrash? 2,048 requests, a pool of 65,536 slots")
    kinds = {"who needs a page waits, then\ngives up its own (published rule)": frame.victim == "requester",
             "the newest gives way at once": frame.victim == "newest", "2,048 slots reserved for each": frame.reserved > 0}
    lines = {}
    for (name, which), (color, marker, dash) in zip(kinds.items(), LOOKS):
        rows = frame[which].assign(times=lambda f: f.seed.map(naive) / f.steps)
        times = rows.groupby("workers").times.agg(["mean", "min", "max"])
        ax.fill_between(times.index, times["min"], times["max"], color=color, alpha=0.2, lw=0)
        ax.plot(times.index, times["mean"], color=color, marker=marker, ls=dash, ms=5)
        lines[name] = times["mean"]
    own, newest, reserving = lines.values()
    ax.axhline(most, color="black", ls=":")
    ax.axhspan(min(bounds), max(bounds), color="black", alpha=0.08, lw=0)
    ax.text(8, max(bounds) + 0.03, "no scheduler gets above this: every page in use in every step", fontsize=9, va="bottom")
    for name, (color, _, _), (x, y) in zip(lines, LOOKS, ((103, 0.34), (103, 2.28), (103, 1.06))):
        ax.text(x, y, name, color="#666666" if color == GREY else color, fontsize=10, va="bottom" if y < 2 else "center")
    ax.text(76, own[80] + 0.04, f"80 workers: {own[80]:.1f}", color=RED, fontsize=10, weight="bold", ha="right")
    ax.text(90, own[96] - 0.06, f"96 workers: {own[96]:.1f}", color=RED, fontsize=10, weight="bold", ha="right", va="center")
    ax.set_xscale("log", base=2)
    ticks = [8, 16, 32, 64, 128, 256]
    ax.set_xticks(ticks, [str(t) for t in ticks])
    ax.set(xlabel="requests that may run at once (logarithmic)", ylabel="throughput, times that of reserving",
           ylim=(0, max(bounds) + 0.3), xlim=(7.6, 280))
    show(f"The published rule: {own[80]:.1f} times the reserving server's throughput at 80 workers, {own[96]:.1f} times at 96. "
         f"Newest gives way: {newest[96]:.1f} at 96, {newest[256]:.2f} at 256. No scheduler gets above {most:.1f} "
         f"({span} by seed). "
         f"Reserving: {reserving[8]:.2f} at 8, {reserving[32]:.1f} from 32 on. Bands: {len(naive)} seeds.")


def watermarks(published, seeds, by_jobs):
    """Throughput by the reserve that newcomers leave free: published and ours, and ours by the number of jobs.

    published: {reserve: [a figure, or a range]}; seeds: {reserve: [times of each seed]}, the first of them the published one's;
    by_jobs: a frame of throughputs with a row a reserve and columns (jobs, "mean" | "min" | "max").
    """
    left, right = figure(4, 2, "The published rule: throughput by what newcomers leave free", sharey=True)
    places = np.arange(len(published))
    for place, (reserve, times) in zip(places, published.items()):
        left.plot([place - 0.15] * 2, [min(times) - 0.02, max(times) + 0.02], color=ORANGE, lw=7, solid_capstyle="butt")
        left.plot([place + 0.15] * len(seeds[reserve]), seeds[reserve], color=GREY, marker="_", ms=12, ls="")
        left.plot(place + 0.15, seeds[reserve][0], color=BLUE, marker="o", ms=7, ls="")
    left.text(1.7, 0.3, "orange: published\nblue: ours, seed 42\ngrey: ours, other seeds", fontsize=9, va="bottom")
    left.set(xticks=places, xticklabels=[f"{100 * r:.0f}%" for r in published], xlabel="reserve", title="512 jobs",
             ylabel="throughput, times that of reserving slots")
    for jobs, (color, marker, dash) in zip((512, 2048, 20_000), LOOKS):
        times, x = by_jobs[jobs], np.arange(len(by_jobs))
        right.fill_between(x, times["min"], times["max"], color=color, alpha=0.2, lw=0)
        right.plot(x, times["mean"], color=color, marker=marker, ls=dash, label=f"{jobs:,} jobs")
    right.set(xticks=x, xticklabels=[f"{100 * r:.0f}%" for r in by_jobs.index], xlabel="reserve",
              title="eight seeds each: mean and range")
    right.legend(frameon=False, fontsize=9, loc="lower right")
    for ax in (left, right):
        ax.axhline(1, color="black", lw=0.8, ls=":")
        ax.set_ylim(0, 2.8)
    spread = {jobs: by_jobs[jobs].iloc[0] for jobs in (512, 2048, 20_000)}
    best = {jobs: by_jobs[jobs]["mean"].idxmax() for jobs in spread}
    show("\n".join(f"{jobs:,} jobs: without a reserve {row['min']:.2f} to {row['max']:.2f}, best at {100 * best[jobs]:.0f}% "
                   f"({by_jobs[jobs]['mean'].max():.2f})." for jobs, row in spread.items()))


def causes(table, priced):
    """Throughput with each of three faults there or not, where prompts cost nothing, and where they have a price.

    Frames indexed by (victim, patience, preemption), with the columns mean, min, max; NaN where it never ends.
    """
    ax, facts, names = figure(3.8, title="2,048 jobs without a reserve, with and without three faults (eight seeds)"), [], []
    for y, ((victim, patience, how), row) in enumerate(table.iterrows()):
        faults = [name for name, there in (("own victim", victim == "requester"), ("waits", patience > 0),
                                           ("starts over", how == "restart")) if there]
        names.append(", ".join(faults) or "none of the three")
        other = priced["mean"].iloc[y]
        if row["mean"] != row["mean"]:
            ax.text(0.03, y, "never ends (livelock)", va="center", fontsize=9, color=RED)
            facts.append(f"{names[-1]}: never ends")
            continue
        ax.barh(y, row["mean"], height=0.7, color=ORANGE if patience else BLUE, hatch="///" if patience else "", ec="white")
        ax.plot([row["min"], row["max"]], [y, y], color="black", lw=1.5)
        ax.plot(other, y, marker="D", color="white", mec="black", ls="")
        ax.text(row["max"] + 0.04, y, f"{row['mean']:.2f}", va="center", fontsize=9)
        facts.append(f"{names[-1]}: {row['mean']:.2f} ({other:.2f})")
    ax.axvline(1, color="black", lw=0.8, ls=":")
    ax.set(yticks=range(len(names)), yticklabels=names, xlabel="throughput, times that of reserving slots", xlim=(0, 3))
    ax.invert_yaxis()
    show("\n".join(facts) + "\nHatched: it waits. Black: the range of the seeds. Diamonds, and in brackets: where a token of a "
         "prompt costs 1/200 of a step.")


def reserve_of_an_engine(real, ours):
    """A real engine's preemptions and throughput by reserve, and those of its simulation.

    Frames indexed by reserve, with the columns preemptions and tokens_per_second.
    """
    left, right = figure(3.4, 2, "A reserve in a real engine (vLLM, one GB200), and in its simulation")
    x = np.arange(len(real))
    for frame, name, color, marker, shift in ((real, "measured", ORANGE, "s", -0.18), (ours, "simulated", BLUE, "o", 0.18)):
        left.bar(x + shift, frame.preemptions, 0.34, color=color, hatch="///" if shift < 0 else "", ec="white", label=name)
        times = frame.tokens_per_second / frame.tokens_per_second.iloc[0]
        right.plot(x, 100 * (times - 1), color=color, marker=marker, label=name)
    left.set(ylabel="preemptions", ylim=(0, 1200))
    right.set(ylabel="throughput, against no reserve (%)", ylim=(-1, 10))
    right.axhline(0, color="black", lw=0.8, ls=":")
    for ax in (left, right):
        ax.set(xticks=x, xticklabels=[f"{100 * r:.0f}%" for r in real.index], xlabel="reserve")
        ax.legend(frameon=False, fontsize=9)
    gains = [100 * (f.tokens_per_second.max() / f.tokens_per_second.iloc[0] - 1) for f in (real, ours)]
    fall = [f"{f.preemptions.iloc[0]:,.0f} to {f.preemptions.min():,.0f}" for f in (real, ours)]
    show(f"The best reserve gains {gains[0]:.1f}% in the engine and {gains[1]:.1f}% in the simulation. Preemptions fall from "
         f"{fall[0]} at the least, and from {fall[1]}.")


def recompute_or_swap(models, tokens=1000):
    """Time to compute so many tokens again, and to move them out and back, by the rate of the bus.

    models: {label: (seconds to compute them again, bytes to move, the GPU's bus rate in bytes a second)}.
    """
    ax = figure(4, title=f"{tokens:,} tokens thrown out: computed again (level), or moved out and back (falling)")
    rates, facts = np.geomspace(1e9, 300e9, 50), []
    for (label, (seconds, size, bus)), (color, marker, dash) in zip(models.items(), LOOKS):
        ax.loglog(rates / 1e9, 1e3 * size / rates, color=color, ls=dash)
        ax.axhline(1e3 * seconds, color=color, ls=dash, lw=1)
        cross = size / seconds / 1e9
        ax.plot(cross, 1e3 * seconds, color=color, marker=marker, ms=9)
        ax.plot(bus / 1e9, 1e3 * size / bus, color=color, marker="|", ms=16, mew=2.5)
        ax.text(bus / 1e9 * 0.94, 1e3 * size / bus * 0.72, "its bus", color=color, fontsize=8, ha="right", va="top")
        ax.text(310, 1e3 * size / 300e9, label, color=color, fontsize=9, va="center")
        facts.append(f"{label}: equal at {cross:.1f} GB/s, and its bus does {bus / 1e9:.0f}")
    ticks = [1, 2, 5, 10, 20, 50, 100, 200]
    ax.set_xticks(ticks, map(str, ticks))
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    ax.minorticks_off()
    ax.set(xlabel="GB a second between the GPU and where the pages go", ylabel="milliseconds", xlim=(1, 2000))
    show("\n".join(facts) + "\nMarkers: where both take as long. Bars: at the rate of the GPU's own bus.")


def arrivals(evenly, at_random, seconds):
    """Two ways in which as many requests come, as dots on a line; times in seconds."""
    ax = bare(figure(1.7, title=f"{len(at_random)} requests in about {seconds} seconds"))
    for y, (times, color) in enumerate(((at_random, RED), (evenly, BLUE))):
        ax.axhline(y, color=GREY, lw=0.8, zorder=0)
        ax.plot(times, np.full(len(times), y), "o", color=color, ms=8, alpha=0.7)
    ax.set(ylim=(-0.5, 1.5), xlim=(-0.02 * seconds, 1.05 * seconds), yticks=[0, 1], yticklabels=["at random", "evenly"])
    ax.set_xticks(range(seconds + 1), [f"{t} s" for t in range(seconds + 1)])
    gaps = np.diff(at_random)
    show(f"At random the gaps are {gaps.min():.2f} to {gaps.max():.2f} seconds, {gaps.mean():.2f} on average; evenly all are "
         f"{evenly[1]:.2f}.")


def load(frame, kinds):
    """By the rate at which requests come: time to the first token for chats, and tokens a second where answers are long.

    frame: the recorded sweep "load"; kinds: {label: which of its rows}. Means of the seeds, and their ranges as bands.
    """
    left, right = figure(4.4, 2, "Llama-3-8B on an A100, 20 GB of cache: what comes in, and what the server makes of it")
    facts = []
    for (label, which), (color, marker, _) in zip(kinds.items(), LOOKS):
        rows, said = frame[which], []
        chats, answers = (rows[rows.traffic == kind].groupby("rate") for kind in ("azure-conv", "answers"))
        for percentile, dash, fill in (("ttft_p50_ms", "-", color), ("ttft_p99_ms", "--", "white")) if len(chats) else ():
            times = chats[percentile].agg(["mean", "min", "max"]) / 1e3
            left.semilogy(times.index, times["mean"], color=color, marker=marker, ms=5, ls=dash, mfc=fill)
            left.fill_between(times.index, times["min"], times["max"], color=color, alpha=0.15, lw=0)
        if len(chats):
            said.append(f"p99 below a second up to {times.index[times['mean'] < 1].max():.0f} chats a second")
        speed = answers.tokens_per_second.agg(["mean", "min", "max"])
        right.plot(speed.index, speed["mean"], color=color, marker=marker, ms=5, label=label)
        right.fill_between(speed.index, speed["min"], speed["max"], color=color, alpha=0.15, lw=0)
        said.append(f"long answers: at most {speed['mean'].max():,.0f} tokens a second, {speed['mean'].iloc[-1]:,.0f} "
                    f"({speed['min'].iloc[-1]:,.0f} to {speed['max'].iloc[-1]:,.0f}) at a rate of {speed.index[-1]:.0f}")
        facts.append(f"{label}: " + "; ".join(said))
    left.text(12, 0.08, "solid: half are below\ndashed: 99% are below", fontsize=9, va="bottom", ha="right")
    left.set(xlabel="requests a second", ylabel="seconds to the first token (logarithmic)")
    left.set_title("chats: Azure's lengths", fontsize=11)
    left.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    right.set(xlabel="requests a second", ylabel="tokens a second", ylim=(0, 1.35 * max(frame.tokens_per_second)))
    right.set_title("long answers: prompts of 300, answers of 1,000", fontsize=11)
    right.yaxis.set_major_formatter("{x:,.0f}")
    right.legend(frameon=False, fontsize=8, loc="upper left")
    show("\n".join(facts) + ".\nBands: the range of the seeds.")


def chunks(frame):
    """What a token budget does: the longest wait between two tokens, and the time to the first one. frame: a row a budget."""
    ax = figure(3.6, title="Long prompts in chunks: Llama-3-8B on an H200 (logarithmic axes)")
    looks = (("longest_step_ms", "the longest wait between two tokens", BLUE, "o", "-"),
             ("ttft_p50_ms", "time to the first token, p50", ORANGE, "s", "--"),
             ("ttft_p99_ms", "time to the first token, p99", RED, "D", "-."))
    for column, label, color, marker, dash in looks:
        ax.loglog(frame.index, frame[column], color=color, marker=marker, ls=dash, label=label)
    ticks = frame.index.tolist()
    ax.set_xticks(ticks, [f"{t:,}" if t < 10**5 else "none" for t in ticks], minor=False)
    ax.set_yticks([30, 100, 300, 1000, 3000, 10_000], ["30", "100", "300", "1,000", "3,000", "10,000"])
    ax.minorticks_off()
    ax.set(xlabel="the most tokens that a step feeds", ylabel="milliseconds", ylim=(20, 10**5))
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    names = {budget: f"{budget:,} tokens a step" if budget < 10**5 else "no limit" for budget in frame.index}
    show("\n".join(f"{names[budget]}: the longest wait between two tokens {row.longest_step_ms:,.0f} ms; the first token "
                   f"{row.ttft_p50_ms:,.0f} ms (p50), {row.ttft_p99_ms:,.0f} ms (p99)" for budget, row in frame.iterrows()))


def swap_by_page_size(table):
    """Throughput of recompute and of swap by page size. table: a row a page size, a column a way."""
    ax = figure(3.6, title="Thrown out: computed again, or moved to the host (Llama-3-8B, A100)")
    for (name, rates), (color, marker, dash) in zip(table.items(), LOOKS):
        ax.plot(rates.index, rates, color=color, marker=marker, ls=dash, label=name)
    ax.set_xscale("log", base=2)
    ax.set_xticks(table.index, [str(size) for size in table.index])
    ax.minorticks_off()
    low, high = table.min().min(), table.max().max()
    low, high = low - 0.1 * (high - low), high + 0.6 * (high - low)  # room for the legend
    ax.set(xlabel="page size (tokens)", ylabel="tokens a second (not from 0)", ylim=(low, high))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.legend(frameon=False, fontsize=9, loc="upper right", ncols=2)
    show("\n".join(f"{name}: {rates.iloc[0]:,.0f} tokens a second at {rates.index[0]}, {rates[16]:,.0f} at 16, "
                   f"{rates.iloc[-1]:,.0f} at {rates.index[-1]}." for name, rates in table.items()))
