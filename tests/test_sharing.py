import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefault import sharing
from pagefault.paper import ALPACA, FIGURE_15, SHAREGPT, paper_lengths
from pagefault.sharing import SWAP, beam_search, figure_15, parallel_sampling


def test_examples_in_docstrings():
    assert doctest.testmod(sharing).failed == 0


def saved(requests, n, swap, block_size, seed):
    """What beam_search returns, from histories alone: a block is shared by those with the same history to its end."""
    random, used, alone, name = np.random.RandomState(seed), 0, 0, 0
    for prompt, output in requests:
        beams = [("prompt",) * prompt] * n
        until_swap = random.geometric(swap) if swap else output + 1
        for step in range(output):
            if until_swap == 0:
                beams = [beams[0], *beams[:-1]]
                until_swap = random.geometric(swap)
            until_swap -= 1
            beams = [(*beam, name + i) for i, beam in enumerate(beams)]
            name += n
            starts = range(0, prompt + step + 1, block_size)
            used += len({beam[: start + block_size] for beam in beams for start in starts})
            alone += n * len(starts)
    return 1 - used / alone


REQUESTS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=5)


@given(REQUESTS, st.integers(2, 5), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(1, 7), st.integers(0, 99))
def test_beams_share_the_blocks_whose_history_they_have_in_common(requests, width, swap, block_size, seed):
    lengths = list(zip(*requests))
    assert beam_search(*lengths, width, swap, block_size, seed) == pytest.approx(saved(requests, width, swap, block_size, seed))


@given(REQUESTS, st.integers(1, 6), st.integers(1, 20))
def test_samples_share_the_full_blocks_of_their_prompt(requests, n, block_size):
    full = sum(prompt // block_size * output for prompt, output in requests)
    all_blocks = sum(-(-(prompt + step) // block_size) for prompt, output in requests for step in range(1, output + 1))
    ours = parallel_sampling(*zip(*requests), n, block_size)
    assert ours == pytest.approx((n - 1) * full / (n * all_blocks)) and 0 <= ours <= (n - 1) / n


def test_the_more_often_beams_swap_the_more_they_share():
    lengths = paper_lengths(100, 0, ALPACA)
    shares = [beam_search(*lengths, 4, swap) for swap in (0.0, 0.02, 0.1, 0.5, 1.0)]
    assert shares == sorted(shares) and shares[0] == parallel_sampling(*lengths, 4) and shares[-1] < 3 / 4


@pytest.fixture(scope="module")
def figure():
    return figure_15(150).ours


def test_figure_15_beside_the_paper_says_what_was_fitted():
    ours = figure_15(20)
    assert list(ours) == ["method", "data", "n", "paper", "ours", "off", "how"]
    assert ours.paper.tolist() == FIGURE_15.paper.tolist() and (ours.off == ours.ours - ours.paper).all()
    assert ours[ours.how == "fitted"][["method", "data", "n"]].values.tolist() == [["beam search", "Alpaca", 4]]


def test_parallel_sampling_follows_from_the_lengths_within_four_points():
    off = []
    for row in FIGURE_15[FIGURE_15.method == "parallel sampling"].itertuples():
        lengths = (paper_lengths(500, seed, ALPACA if row.data == "Alpaca" else SHAREGPT) for seed in range(3))
        off.append(100 * (np.mean([parallel_sampling(*pair, row.n) for pair in lengths]) - row.paper))
    assert off == pytest.approx([1.2, 2.4, 2.3, 0, -3.5], abs=0.5)  # Alpaca 2, 4, 6, ShareGPT 2, 6


def test_one_number_fitted_to_one_bar_gives_all_three_of_beam_search_on_alpaca(figure):
    alpaca = (FIGURE_15.method == "beam search") & (FIGURE_15.data == "Alpaca")
    assert (100 * (figure - FIGURE_15.paper)[alpaca]).abs().max() < 0.7


def test_the_same_number_shares_too_much_on_sharegpt_and_a_smaller_one_does_not(figure):
    sharegpt = (FIGURE_15.method == "beam search") & (FIGURE_15.data == "ShareGPT")
    assert (100 * (figure - FIGURE_15.paper)[sharegpt]).tolist() == pytest.approx([3.6, 12.0], abs=0.5)
    lengths = [paper_lengths(300, seed, SHAREGPT) for seed in range(3)]
    calm = [100 * np.mean([beam_search(*pair, width, 0.024) for pair in lengths]) for width in (2, 6)]
    assert calm == pytest.approx([44.3, 63.2], abs=0.5) and SWAP == 0.22


@pytest.mark.parametrize("call, error, message", [
    (lambda: parallel_sampling([5], [5], 0), ValueError, "n = 0"),
    (lambda: parallel_sampling([5], [5, 5], 2), ValueError, "1 prompts and 2 outputs"),
    (lambda: parallel_sampling([], [], 2), ValueError, "0 prompts and 0 outputs"),
    (lambda: parallel_sampling([5], [0], 2), ValueError, "of at least one token each"),
    (lambda: parallel_sampling([5], [5], 2, 0), ValueError, "block_size = 0"),
    (lambda: beam_search([5], [5], 1), ValueError, "width = 1"),
    (lambda: beam_search([5], [5], 2.0), TypeError, "width = 2.0"),
    (lambda: beam_search([5], [5], 2, 1.1), ValueError, "swap = 1.1, it is a share"),
    (lambda: beam_search([5], [5], 2, float("nan")), ValueError, "swap = nan"),
    (lambda: beam_search([5], [5], 2, seed=-1), ValueError, "seed = -1"),
    (lambda: figure_15(0), ValueError, "0 prompts and 0 outputs"),
])
def test_what_cannot_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
