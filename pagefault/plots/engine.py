"""The figures of notebook 4's last deep dive."""

import numpy as np

from .measured import where_from
from .style import BLUE, GREEN, GREY, ORANGE, RED, figure, show


def measured_and_simulated(policies, swaps):
    """Throughput by policy, measured and simulated; and how long 1,024 tokens take to the host and back, by page size.

    policies, swaps: recorded frames of `python -m pagefault engine`.
    """
    left, right = figure(4, 2, f"A model that really decodes ({where_from(policies)})")
    y = np.arange(len(policies))
    left.barh(y - 0.2, policies.measured_tokens_s, height=0.38, color=BLUE, label="measured")
    left.barh(y + 0.2, policies.simulated_tokens_s, height=0.38, color=ORANGE, hatch="///", ec="white", label="simulated")
    for i, row in enumerate(policies.itertuples()):
        ratio = row.measured_tokens_s / row.simulated_tokens_s
        text = f"{ratio:.3f}{' (fitted)' if row.fitted else ''}"
        left.text(max(row.measured_tokens_s, row.simulated_tokens_s) + 60, i, text, va="center", fontsize=8.5)
    left.set(yticks=y, yticklabels=policies.policy, xlabel="tokens a second; measured / simulated", xlim=(0, 8200))
    left.invert_yaxis()
    left.legend(frameon=False, loc="upper right", fontsize=8.5)
    for way, color, marker in (("a copy a block", RED, "s"), ("gathered first", GREEN, "o")):
        some = swaps[swaps.way == way]
        right.plot(some["size"], some.median_us / 1e3, color=color, marker=marker, label=way)
    again = swaps[(swaps.way == "computed again") & (swaps.tokens == 1024)].median_us.iloc[0] / 1e3
    right.axhline(again, color=GREY, ls="--")
    right.text(256, again * 1.07, "computed again", color="#555555", fontsize=9, ha="right")
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    sizes = sorted(set(swaps["size"]) - {0})
    right.set_xticks(sizes, [str(n) for n in sizes])
    right.set_yticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
    right.minorticks_off()
    right.set(xlabel="page size (tokens)", ylim=(4.5, 110), ylabel="ms for 1,024 tokens, out and in", title="swapping")
    right.legend(frameon=False, fontsize=9)
    show("\n".join(f"{row.policy:18} {row.measured_tokens_s:7,.0f} tokens a second measured, {row.simulated_tokens_s:7,.0f} "
                   f"simulated: {row.measured_tokens_s / row.simulated_tokens_s:.3f}" for row in policies.itertuples()))
