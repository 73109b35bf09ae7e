"""Figures of measured times: the recorded table's, and beside them what was measured just now."""

import matplotlib.pyplot as plt
import numpy as np

from .style import BLUE, GREEN, GREY, ORANGE, RED, figure, show

LOOKS = {"naive_attention": (BLUE, "o", "naive_attention"), "read_ceiling": (GREY, "s", "reading the bytes once")}


def where_from(table):
    """'NVIDIA H200, recorded 2026-11-29', for a title."""
    return f"{table.device.iloc[0]}, recorded {table.date.iloc[0]}"


def latency_by_context(table, live=None):
    """Time by context of 32 equal sequences with one fp32 head of 64: a kernel's, and reading the same bytes.

    table: benchmark.recorded(); live: a row of benchmark.measure() for one of its works, drawn beside it.
    """
    sweep = table[table.work.str.startswith("32 x ")]
    ax = figure(4, title=f"32 sequences, one head of 64, fp32 ({where_from(table)})")
    for kernel, rows in sweep.groupby("kernel", sort=False):
        color, marker, label = LOOKS[kernel]
        context = rows.tokens / rows.num_seqs
        ax.fill_between(context, rows.low_us, rows.high_us, color=color, alpha=0.3)
        ax.loglog(context, rows.median_us, color=color, marker=marker, ms=4)
        ax.text(context.iloc[-1] * 1.1, rows.median_us.iloc[-1], label, color=color, va="center", fontsize=9)
    for row in live or []:
        ax.plot(row["tokens"] / row["num_seqs"], row["median_us"], marker="*", ms=14, color=RED, ls="")
        ax.text(row["tokens"] / row["num_seqs"] * 1.1, row["median_us"] * 0.7, "here, now", color=RED, fontsize=9)
    ticks = [128, 512, 2048, 8192, 32768]
    ax.set(xlabel="tokens a sequence", ylabel="microseconds", xlim=(110, 32768 * 5))
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks], minor=False)
    plt.minorticks_off()
    us = sweep.pivot(index="tokens", columns="kernel", values="median_us")
    times = us.naive_attention / us.read_ceiling
    show(f"naive_attention takes {us.naive_attention.iloc[0]:.0f} to {us.naive_attention.iloc[-1]:,.0f} microseconds, "
         f"{times.min():.0f} to {times.max():.0f} times as long as reading its bytes once.")


def roofline(table, works, peak_tflops=67.0):
    """Arithmetic a second by arithmetic a byte: what the memory and the processors allow, and what kernels reach.

    works: {name of a work: label}; peak_tflops: fp32 without tensor cores, the vendor's figure for the recorded GPU.
    """
    ceiling = table[table.kernel == "read_ceiling"].assign(rate=lambda t: t.bytes / t.median_us / 1e6)
    best = ceiling.rate.max()  # TB/s
    ax = figure(4, title=f"Roofline of naive_attention ({where_from(table)})")
    x = np.geomspace(0.1, 100, 200)
    ax.loglog(x, np.minimum(best * x, peak_tflops), color="black")
    ax.text(0.12, best * 0.12 * 1.5, f"memory: {best:.1f} TB/s, measured", rotation=22, fontsize=9)
    ax.text(25, peak_tflops * 1.15, f"processors: {peak_tflops:.0f} TFLOP/s (fp32)", fontsize=9)
    facts = []
    for (work, label), color, marker in zip(works.items(), (BLUE, ORANGE, GREEN), "o^D"):
        at = table[(table.work == work) & (table.layout == "contiguous")].set_index("kernel")
        at = at.loc[["read_ceiling", "naive_attention"]]
        intensity, tflops = at.flop["naive_attention"] / at.bytes["naive_attention"], at.flop / at.median_us / 1e6
        share = at.median_us["read_ceiling"] / at.median_us["naive_attention"]
        ax.plot([intensity] * 2, tflops, color=color, ls=":", lw=1)
        ax.plot(intensity, tflops["naive_attention"], marker=marker, color=color, ms=8)
        reached = f"{100 * share:.1f}% of its ceiling"
        ax.text(intensity * 1.15, tflops["naive_attention"], f"{label}: {reached}", color=color, va="center")
        facts.append(f"{label}: {intensity:g} FLOP a byte, {tflops['naive_attention']:.3f} TFLOP/s, {reached}")
    ax.set(xlabel="arithmetic intensity (FLOP a byte of K and V)", ylabel="TFLOP/s", xlim=(0.1, 100), ylim=(0.01, 150))
    show("\n".join(facts))
