"""What Kwon et al. measured for PagedAttention, and request lengths that have the means they give.

Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023: OPT-13B on one GPU, with 12 GiB
for the KV cache, serving requests as long as those of two data sets.
"""

import numpy as np
import pandas as pd

from .errors import whole

NUM_SLOTS = 12 * 2**30 // 819_200  # 15,728 tokens of OPT-13B
MAX_SEQ_LEN = 2048
SHAREGPT, ALPACA = (161.31, 337.99), (19.31, 58.45)  # mean tokens of a prompt and of an output (Fig. 11)
EVEN = 101  # of so many sorted draws one is kept, the middle one: a small sample then has the mean and CV of a large one
SHARES = ["stored", "reserved_later", "internal", "external"]

# Shares of the KV memory (Fig. 2; of the paged server only one is printed) and requests served at once (Fig. 13a, ShareGPT).
FIGURE_2 = pd.DataFrame(
    [[0.204, 0.133, 0.573, 0.089, 7.00],
     [0.268, 0.179, 0.136, 0.416, 9.81],
     [0.382, 0.252, 0.000, 0.366, 13.62],
     [0.963, np.nan, np.nan, np.nan, 30.42]],
    index=["max", "pow2", "oracle", "paged"], columns=[*SHARES, "batch"],
)  # fmt: skip

# The share of its blocks that a request of n sequences needn't have because they share (Fig. 15, and section 6.3 for ShareGPT).
FIGURE_15 = pd.DataFrame(
    [("parallel sampling", "Alpaca", 2, 0.0609), ("parallel sampling", "Alpaca", 4, 0.0853),
     ("parallel sampling", "Alpaca", 6, 0.0979), ("parallel sampling", "ShareGPT", 2, 0.162),
     ("parallel sampling", "ShareGPT", 6, 0.305), ("beam search", "Alpaca", 2, 0.3756),
     ("beam search", "Alpaca", 4, 0.5313), ("beam search", "Alpaca", 6, 0.5516),
     ("beam search", "ShareGPT", 2, 0.443), ("beam search", "ShareGPT", 6, 0.663)],
    columns=["method", "data", "n", "paper"],
)  # fmt: skip


def paper_lengths(num_requests, seed, means=SHAREGPT, prompt_cv=1.0, output_cv=0.88, max_seq_len=MAX_SEQ_LEN):
    """Draw prompts and outputs with these means; two int64 [num_requests], together at most max_seq_len tokens each.

    The paper gives means alone. Prompts are lognormal, outputs Gamma, both cut off at max_seq_len. A coefficient of
    variation (CV, standard deviation / mean) of 1 for the prompts is an exponential's, the least that one assumes of a
    positive number whose mean is all that is known; the results hardly depend on it. The outputs' 0.88 is fitted to one
    bar of Fig. 2, "max": a request is served for as many steps as it has outputs, so long ones count more, and holds
    prompt + output (1 + CV^2) / 2 tokens on average; the bar's three parts ask for 0.87, 0.88 and 0.88.

    >>> [lengths.tolist() for lengths in paper_lengths(4, 0)]
    [[289, 43, 82, 149], [193, 63, 629, 373]]
    """
    prompt_mean, output_mean = means
    longest = whole("max_seq_len", max_seq_len, 2, 2**31 - 1)
    if not min(*means, prompt_cv, output_cv) > 0:
        raise ValueError(f"means {means} and CVs {prompt_cv}, {output_cv}: they are above 0")
    num_requests = whole("num_requests", num_requests)
    random = np.random.RandomState(whole("seed", seed, 0, 2**32 - 1))
    sigma = np.sqrt(np.log1p(prompt_cv**2))
    prompts = prompt_mean * np.exp(sigma * _even(random.standard_normal, num_requests, random) - sigma**2 / 2)
    shape = 1 / output_cv**2
    outputs = output_mean / shape * _even(lambda n: random.standard_gamma(shape, n), num_requests, random)
    prompts = prompts.round().clip(1, longest - 1).astype(np.int64)
    return prompts, np.minimum(outputs.round().clip(1, longest).astype(np.int64), longest - prompts)


def _even(draw, n, random):
    return random.permutation(np.sort(draw(EVEN * n))[EVEN // 2 :: EVEN])
