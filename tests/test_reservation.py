import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefault import DoubleFree, OutOfBlocks, RequestTooLarge, buddy, paper, reservation
from pagefault.buddy import BuddyAllocator
from pagefault.paper import ALPACA, FIGURE_2, NUM_SLOTS, SHAREGPT, SHARES, paper_lengths
from pagefault.reservation import SCHEMES, WARM_UP, memory_shares


def test_examples_in_docstrings():
    assert [doctest.testmod(module).failed for module in (buddy, paper, reservation)] == [0, 0, 0]


def state(memory):
    return {size: sorted(starts) for size, starts in memory._free.items()}, dict(memory._used)


def test_a_memory_starts_as_the_binary_pieces_of_its_size():
    free, used = state(BuddyAllocator(15_728))
    assert {size: starts for size, starts in free.items() if starts} == {
        8192: [0], 4096: [8192], 2048: [12_288], 1024: [14_336], 256: [15_360], 64: [15_616], 32: [15_680], 16: [15_712]}
    assert not used


def test_pieces_are_split_and_merged_by_hand():
    memory = BuddyAllocator(16)
    assert [memory.allocate(n) for n in (3, 1, 4, 2)] == [0, 4, 8, 6]  # 4, 1, 4 and 2 slots
    assert state(memory) == ({1: [5], 2: [], 4: [12], 8: [], 16: []}, {0: 4, 4: 1, 8: 4, 6: 2})
    assert (memory.num_free, memory.largest_free, memory.fits(4), memory.fits(5)) == (5, 4, True, False)
    memory.free(4)
    assert state(memory)[0] == {1: [], 2: [4], 4: [12], 8: [], 16: []}
    memory.free(6)
    memory.free(0)
    assert state(memory)[0] == {1: [], 2: [], 4: [12], 8: [0], 16: []}
    memory.free(8)
    assert state(memory) == state(BuddyAllocator(16))


def test_the_first_of_equal_pieces_is_taken():
    memory = BuddyAllocator(16)
    assert [memory.allocate(4) for _ in range(4)] == [0, 4, 8, 12]
    memory.free(12)
    memory.free(4)
    assert memory.allocate(3) == 4


def test_seven_requests_of_2048_slots_fit_and_no_more():
    memory = BuddyAllocator(NUM_SLOTS)
    starts = [memory.allocate(2048) for _ in range(7)]
    assert len(set(starts)) == 7 and memory.num_free == NUM_SLOTS - 7 * 2048 and not memory.fits(2048)


@given(st.integers(1, 300), st.lists(st.tuples(st.booleans(), st.integers(1, 100)), max_size=60))
def test_a_buddy_allocator_finds_a_piece_if_and_only_if_there_is_an_aligned_run_of_free_slots(num_slots, calls):
    memory, owner = BuddyAllocator(num_slots), np.full(num_slots, -1)  # owner: a plain map of the slots
    for frees, n in calls:
        before = state(memory)
        if frees and memory._used:
            start = sorted(memory._used)[n % len(memory._used)]
            memory.free(start)
            owner[owner == start] = -1
        elif (size := 1 << (n - 1).bit_length()) > max(memory._free):
            with pytest.raises(RequestTooLarge, match=f"{n} slots need a piece of {size}"):
                memory.allocate(n)
            assert state(memory) == before
        elif any((owner[i : i + size] < 0).all() for i in range(0, num_slots - size + 1, size)):
            assert memory.fits(n)
            start = memory.allocate(n)
            assert start % size == 0 and start + size <= num_slots and (owner[start : start + size] < 0).all()
            owner[start : start + size] = start
        else:
            assert not memory.fits(n)
            with pytest.raises(OutOfBlocks, match=f"a piece of {size} slots is asked for"):
                memory.allocate(n)
            assert state(memory) == before
        assert memory.num_free == (owner < 0).sum()
        assert sum(size * len(starts) for size, starts in memory._free.items()) == memory.num_free
    for start in list(memory._used):
        memory.free(start)
    assert state(memory) == state(BuddyAllocator(num_slots))


@pytest.mark.parametrize("call, error, message", [
    (lambda m: m.free(4), DoubleFree, "no piece that is in use starts at slot 4"),
    (lambda m: m.free(1), DoubleFree, "at slot 1"),
    (lambda m: m.free(0.0), TypeError, "start = 0.0, a whole number"),
    (lambda m: m.allocate(0), ValueError, "n = 0"),
    (lambda m: m.allocate(1.5), TypeError, "n = 1.5"),
    (lambda m: m.allocate(33), RequestTooLarge, "33 slots need a piece of 64; the largest of 48 is 32"),
    (lambda m: m.fits(33), RequestTooLarge, "33 slots"),
    (lambda m: m.allocate(32), OutOfBlocks, "a piece of 32 slots is asked for, and the largest of 28 free slots has 16"),
    (lambda m: BuddyAllocator(0), ValueError, "num_slots = 0"),
])
def test_a_refused_call_changes_nothing(call, error, message):
    memory = BuddyAllocator(48)
    assert [memory.allocate(n) for n in (12, 3)] == [32, 0]
    before = state(memory)
    with pytest.raises(error, match=message):
        call(memory)
    assert state(memory) == before


def step_by_step(prompts, outputs, reserved, num_slots):
    """What memory_shares counts, in the plainest way: every step is played, every slot counted."""
    memory, live, waiting, starts, steps = BuddyAllocator(num_slots), [], list(range(len(prompts))), [], []
    while True:
        while waiting and memory.fits(reserved[waiting[0]]):
            i = waiting.pop(0)
            live.append([i, memory.allocate(reserved[i]), 0])
            starts.append(len(steps))
        if not waiting:
            break
        for request in live:
            request[2] += 1
        has = [(prompts[i] + age, prompts[i] + outputs[i], reserved[i]) for i, _, age in live]
        stored, total, slots = (sum(column) for column in zip(*has))
        shares = np.array([stored, total - stored, slots - total, num_slots - slots]) / num_slots
        steps.append([*shares, len(live)])
        for _, start, _ in [request for request in live if request[2] == outputs[request[0]]]:
            memory.free(start)
        live = [request for request in live if request[2] < outputs[request[0]]]
    counted = steps[starts[int(WARM_UP * len(prompts))] :]
    return np.mean(counted, 0) if counted else None


def paged_step_by_step(prompts, outputs, num_slots, block_size):
    """The same for paged memory, with arithmetic in place of a pool: {request: tokens}, oldest first."""
    def blocks(n):
        return -(-n // block_size)

    held, live, waiting, newest, steps = dict(enumerate(prompts)), {}, list(range(len(prompts))), -1, []
    num_blocks = num_slots // block_size
    while True:
        while waiting and blocks(held[waiting[0]] + 1) <= num_blocks - sum(map(blocks, live.values())):
            live[waiting[0]] = held[waiting[0]]
            newest = max(newest, waiting.pop(0))
        if newest == len(prompts) - 1:
            return np.mean(steps, 0) if steps else None
        for i in sorted(live):
            while i in live and sum(map(blocks, live.values())) - blocks(live[i]) + blocks(live[i] + 1) > num_blocks:
                victim = max(live)
                held[victim] = live.pop(victim)
                waiting.insert(0, victim)
            if i in live:
                live[i] += 1
        if newest >= int(WARM_UP * len(prompts)):
            stored, own = sum(live.values()), sum(map(blocks, live.values())) * block_size
            never = sum(max(0, blocks(n) * block_size - prompts[i] - outputs[i]) for i, n in live.items())
            steps.append([*np.array([stored, own - stored - never, never, num_slots - own]) / num_slots, len(live)])
        live = {i: n for i, n in live.items() if n < prompts[i] + outputs[i]}


REQUESTS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=30, max_size=60)


@settings(max_examples=40)
@given(REQUESTS, st.integers(32, 70), st.integers(1, 6))
def test_shares_are_those_of_a_server_played_step_by_step(requests, num_slots, block_size):
    prompts, outputs = (list(column) for column in zip(*requests))
    expected = {name: step_by_step(prompts, outputs, slots(np.array(prompts), np.array(outputs), 24).tolist(), num_slots)
                for name, slots in SCHEMES.items()}
    expected["paged"] = paged_step_by_step(prompts, outputs, num_slots, block_size)
    if any(row is None for row in expected.values()):
        with pytest.raises(ValueError, match="too few requests"):
            memory_shares(prompts, outputs, num_slots, 24, block_size)
    else:
        shares = memory_shares(prompts, outputs, num_slots, 24, block_size)
        np.testing.assert_allclose(shares, [expected[name] for name in shares.index], atol=1e-12)


def test_what_each_scheme_reserves():
    prompts, outputs = np.array([10, 10, 10, 10, 100]), np.array([1, 4, 5, 25, 1500])
    assert {name: slots(prompts, outputs, 2048).tolist() for name, slots in SCHEMES.items()} == {
        "max": [2048] * 5, "pow2": [11, 14, 18, 42, 2048], "oracle": [11, 14, 15, 35, 1600]}


def test_a_scheme_of_ones_own_is_counted():
    lengths = paper_lengths(500, 0)
    rows = memory_shares(*lengths, schemes={"half": lambda p, o, longest: np.where(p + o <= 1024, 1024, longest), **SCHEMES})
    assert rows.index.tolist() == ["half", "max", "pow2", "oracle", "paged"]
    assert rows.batch["max"] < rows.batch["half"] < rows.batch["oracle"]


@pytest.fixture(scope="module")
def simulated():
    return [memory_shares(*paper_lengths(2000, seed)) for seed in range(3)]


def test_every_bar_of_figure_2_is_within_four_points(simulated):
    mean = sum(simulated) / len(simulated)
    published = FIGURE_2[SHARES].notna()
    assert published.sum().sum() == 13  # of the paged server one share is printed
    assert (100 * (mean - FIGURE_2)[SHARES]).abs().max().max() < 4
    for shares in simulated:
        assert (100 * (shares - mean)[SHARES]).abs().max().max() < 2
        assert shares[SHARES].sum(axis=1).tolist() == pytest.approx([1] * 4) and (shares[SHARES] >= 0).all().all()


def test_the_fitted_bar_is_within_half_a_point_and_the_batches_within_a_tenth(simulated):
    mean = sum(simulated) / len(simulated)
    assert (100 * (mean - FIGURE_2).loc["max", SHARES]).abs().max() < 0.5
    assert (mean.batch / FIGURE_2.batch - 1).abs().max() < 0.11 and mean.batch["max"] == 7


def test_max_leaves_8_9_percent_by_arithmetic(simulated):
    assert round(1 - 7 * 2048 / NUM_SLOTS, 3) == 0.089 == round(simulated[0].external["max"], 3)


def test_three_parts_of_the_fitted_bar_ask_for_one_spread_of_the_outputs():
    (prompt, output), slots = SHAREGPT, NUM_SLOTS / 7
    stored, later, internal = (slots * share for share in FIGURE_2.loc["max", SHARES[:3]])
    spreads = 2 * (stored - prompt) / output - 1, 2 * later / output - 1, (2048 - internal - prompt) / output - 1
    assert np.sqrt(spreads) == pytest.approx([0.870, 0.877, 0.879], abs=5e-4)


def test_the_spread_of_the_prompts_hardly_matters():
    rows = [memory_shares(*paper_lengths(800, 0, prompt_cv=cv))[SHARES] for cv in (0.5, 1.5)]
    assert (100 * (rows[0] - rows[1])).abs().max().max() < 2.5


@pytest.mark.parametrize("means, kinds", [(SHAREGPT, (1.0, 0.88)), (ALPACA, (1.0, 0.88)), (ALPACA, (0.3, 0.5))])
def test_lengths_have_the_means_and_the_spread_they_are_asked_for(means, kinds):
    for lengths, mean, cv in zip(paper_lengths(4000, 1, means, *kinds), means, kinds):
        assert lengths.dtype == np.int64 and lengths.min() >= 1
        assert lengths.mean() == pytest.approx(mean, rel=0.015) and lengths.std() / lengths.mean() == pytest.approx(cv, rel=0.03)


@given(st.integers(0, 50), st.integers(0, 2**32 - 1), st.integers(2, 300))
def test_a_request_is_never_longer_than_the_maximum(n, seed, longest):
    prompts, outputs = paper_lengths(n, seed, max_seq_len=longest)
    assert len(prompts) == len(outputs) == n and (prompts >= 1).all() and (outputs >= 1).all()
    assert (prompts + outputs <= longest).all()


@pytest.mark.parametrize("call, error, message", [
    (lambda: memory_shares([5], [5, 5]), ValueError, "1 prompts and 2 outputs"),
    (lambda: memory_shares([], []), ValueError, "0 prompts and 0 outputs"),
    (lambda: memory_shares([5, 0], [5, 5]), ValueError, "of at least one token each"),
    (lambda: memory_shares([5.0], [5]), ValueError, "whole numbers, not float64"),
    (lambda: memory_shares([2000], [49]), RequestTooLarge, "2,049 tokens; 2,048 are allowed, and 15,728 slots"),
    (lambda: memory_shares([50], [50], 99, 200, 10), RequestTooLarge, "100 tokens; 200 are allowed, and 99 slots are there"),
    (lambda: memory_shares([5] * 9, [5] * 9, 1000), RequestTooLarge, "need a piece of 2,048; the largest of 1,000 is 512"),
    (lambda: memory_shares([5] * 7, [5] * 7), ValueError, "too few requests"),
    (lambda: memory_shares([5], [5], schemes={"prompt": lambda p, o, m: p}), ValueError,
     "prompt reserves 5 slots for request 0, which has 10 tokens"),
    (lambda: memory_shares([5], [5], 0), ValueError, "num_slots = 0"),
    (lambda: memory_shares([5], [5], block_size=0), ValueError, "block_size = 0"),
    (lambda: paper_lengths(-1, 0), ValueError, "num_requests = -1"),
    (lambda: paper_lengths(1, None), TypeError, "seed = None"),
    (lambda: paper_lengths(1, 0, (0, 5)), ValueError, r"means \(0, 5\) and CVs"),
    (lambda: paper_lengths(1, 0, max_seq_len=1), ValueError, "max_seq_len = 1"),
])
def test_what_cannot_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
