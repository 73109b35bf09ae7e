from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefault import HostBlocks, Kernel, PagedCache
from pagefault.reference import on_host
from pagefault.storage import PIECES, copy_rounds, move_launch

SHAPES = {  # (num_blocks, block_size, num_kv_heads, head_dim), dtype: bytes of a piece, of a token and of a block
    "one head": ((7, 16, 1, 64), "float32", 16, 16),
    "grouped heads": ((6, 4, 8, 128), "float16", 16, 16),
    "odd": ((9, 3, 1, 5), "float16", 2, 2),
    "8 bytes a token": ((5, 3, 2, 2), "float16", 8, 8),
    "4 bytes a token, 12 a block": ((5, 3, 1, 1), "float32", 4, 4),
    "6 bytes a token, 24 a block": ((5, 4, 3, 1), "float16", 2, 8),
    "pages of one token": ((40, 1, 1, 80), "float16", 16, 16),
    "more than a thread block's pieces": ((3, 2, 3, 200), "float32", 16, 16),
    "float64": ((5, 2, 1, 3), "float64", 8, 16),
}


@dataclass
class Table:
    """As much of a BlockTable as a cache looks at."""

    blocks: list
    num_tokens: int


def tokens(cache, n, seed=0):
    """K and V of n tokens, random, for a cache."""
    numbers = np.random.default_rng(seed).standard_normal((2, n, *cache.k.shape[2:]))
    return cache.xp.asarray(numbers.astype(cache.k.dtype))


def full_cache(shape, dtype, xp, seed=0):
    """A cache with random numbers in all slots, and K and V as [2, num_blocks, ...] in the CPU's memory."""
    cache = PagedCache(*shape, dtype, xp)
    k, v = tokens(cache, shape[0] * shape[1], seed)
    cache.append(np.arange(len(k)), k, v)
    return cache, contents(cache)


def contents(cache):
    return np.array([on_host(cache.k), on_host(cache.v)])


def same(a, b):
    """Whether arrays are equal to the bit."""
    a, b = (np.ascontiguousarray(on_host(x)) for x in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("case", SHAPES)
def test_tokens_land_in_their_slots_and_nothing_else_changes(xp, case):
    shape, dtype, piece, _ = SHAPES[case]
    cache = PagedCache(*shape, dtype, xp)
    want = contents(cache)
    slots = np.random.default_rng(1).permutation(shape[0] * shape[1])[: shape[0] * shape[1] // 2]
    k, v = tokens(cache, len(slots))
    assert f"<{PIECES[piece]}>" in cache.append_launch(slots, k, v).kernel.name
    cache.append(slots, k, v)
    want.reshape(2, -1, *shape[2:])[:, slots] = on_host(k), on_host(v)
    assert same(contents(cache), want) and cache.nbytes == want.nbytes


def test_slots_may_be_of_any_whole_type_and_on_the_gpu(xp):
    for slots in ([9, 2, 30], np.array([9, 2, 30], np.int32), xp.asarray([9, 2, 30]), xp.asarray([9, 2, 30], np.uint8)):
        cache = PagedCache(4, 8, 2, 4, "float32", xp)
        k, v = tokens(cache, 3)
        cache.append(slots, k, v)
        assert same(cache.k.reshape(-1, 2, 4)[[9, 2, 30]], k) and same(cache.v.reshape(-1, 2, 4)[[9, 2, 30]], v)


def test_tokens_may_lie_anywhere_and_be_of_another_type(xp):
    cache = PagedCache(2, 4, 2, 8, "float16", xp)
    whole = tokens(cache, 20)
    bytes_ = np.zeros(1 + whole[:, :3].nbytes, np.uint8)
    odd = bytes_[1:].view(np.float16).reshape(2, 3, 2, 8)  # at an odd address
    odd[:] = on_host(whole[:, :3])
    for k, v in {
        "one element off": whole.reshape(-1)[1:193].reshape(2, 6, 2, 8)[:, :3],
        "every other token": whole[:, :6:2],
        "at an odd address": xp.asarray(odd),
        "one for all": xp.broadcast_to(whole[:, :1], (2, 3, 2, 8)),
        "float64": whole[:, :3].astype(float),
        "whole numbers": (10 * whole[:, :3]).astype(np.int8),
    }.values():
        cache.append([6, 1, 3], k, v)
        assert same(cache.k.reshape(8, 2, 8)[[6, 1, 3]], k.astype(np.float16))
        assert same(cache.v.reshape(8, 2, 8)[[6, 1, 3]], v.astype(np.float16))
    cache.append([5], *whole[:, 0])  # one token, [num_kv_heads, head_dim]
    assert same(cache.k[1, 1], whole[0, 0])


COPIES = {  # pairs, and in how many launches
    "none": ([], 0),
    "one": ([(2, 0)], 1),
    "one source, two targets": ([(2, 0), (2, 1)], 1),
    "apart": ([(0, 1), (2, 3), (4, 5)], 1),
    "onto itself": ([(3, 3)], 0),
    "a chain": ([(0, 1), (1, 2), (2, 3)], 3),
    "a chain backwards": ([(2, 3), (1, 2), (0, 1)], 3),
    "written twice": ([(0, 5), (1, 5)], 2),
    "exchanged through a third": ([(0, 4), (1, 0), (4, 1)], 3),
    "two chains side by side": ([(0, 1), (1, 2), (3, 4), (4, 5)], 2),
    "read, then written, then read": ([(0, 1), (2, 0), (0, 3)], 3),
}


@pytest.mark.parametrize("case", COPIES)
def test_blocks_are_copied_as_if_one_after_another(xp, case, monkeypatch):
    pairs, launches = COPIES[case]
    seen, run = [], Kernel.__call__
    monkeypatch.setattr(Kernel, "__call__", lambda kernel, *a, **o: seen.append(kernel.name) or run(kernel, *a, **o))
    for shape, dtype, _, piece in SHAPES.values():
        cache, want = full_cache((6, *shape[1:]), dtype, xp)
        for source, target in pairs:
            want[:, target] = want[:, source]
        seen.clear()
        cache.copy_blocks(pairs)
        assert same(contents(cache), want) and seen == [f"copy_blocks<{PIECES[piece]}>"] * launches


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_rounds_of_copies_are_in_no_need_of_an_order_and_as_few_as_can_be(pairs):
    rounds, pool = copy_rounds(pairs), list("abcdef")
    for together in rounds:
        targets = [t for _, t in together]
        assert len(set(targets)) == len(targets) and not {s for s, _ in together} & set(targets)
        for source, target in together:
            pool[target] = pool[source]
    want, longest = list("abcdef"), []
    for i, (source, target) in enumerate(pairs):
        want[target] = want[source]
        waits = [longest[j] for j, (s, t) in enumerate(pairs[:i]) if s != t and (t in (source, target) or s == target)]
        longest.append(0 if source == target else 1 + max(waits, default=0))
    assert pool == want and len(rounds) == max(longest, default=0)


def test_a_chain_in_one_launch_would_be_a_race():
    cache, _ = full_cache((4, 2, 1, 8), "float32", np)
    launch = move_launch(np, "copy_blocks", np.array([(0, 1), (1, 2)]), cache.k[0].nbytes, (cache.k, cache.v))
    assert any("race on k_pool" in fault for fault in launch.check())
    rounds = [np.array(r) for r in copy_rounds([(0, 1), (1, 2)])]
    assert [move_launch(np, "copy_blocks", r, cache.k[0].nbytes, (cache.k, cache.v)).check() for r in rounds] == [[], []]
    assert cache.append_launch([5, 2], *tokens(cache, 2)).check() == []


@pytest.mark.parametrize("case", SHAPES)
def test_gathered_blocks_are_staged_in_order_and_go_back_into_others(xp, case):
    shape, dtype, _, piece = SHAPES[case]
    cache, before = full_cache(shape, dtype, xp)
    staging = cache.gather_blocks([2, 0, 2])
    assert same(staging, before[:, [2, 0, 2]])
    cache.scatter_blocks(staging[:, :2], [1, 2])
    before[:, [1, 2]] = before[:, [2, 0]]
    assert same(contents(cache), before)


def test_a_sequence_is_read_back_through_its_table(xp):
    cache = PagedCache(6, 4, 2, 8, "float32", xp)
    k, v = tokens(cache, 11)
    table = Table([4, 1, 3], 11)
    cache.append([4 * table.blocks[i // 4] + i % 4 for i in range(11)], k, v)
    assert all(map(same, cache.read(table), (k, v)))
    for n in range(11):  # tokens past the end, and blocks that hold none, are not read
        assert all(map(same, cache.read(Table([4, 1, 3, 99], n)), (k[:n], v[:n])))
    table.blocks = [1, 4, 3]
    assert same(cache.read(table)[0], k[[4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10]])


def test_what_is_swapped_out_comes_back_into_other_blocks(xp):
    cache, before = full_cache((8, 4, 2, 8), "float16", xp)
    host = HostBlocks(cache, 9)
    host.k[:], host.v[:] = 1, 2
    host.swap_out([5, 0, 3], [7, 1, 2])
    assert isinstance(host.k, np.ndarray) and same(np.stack([host.k, host.v])[:, [7, 1, 2]], before[:, [5, 0, 3]])
    assert (host.k[[0, 3, 4, 5, 6, 8]] == 1).all() and (host.v[[0, 3, 4, 5, 6, 8]] == 2).all()
    cache.poison([5, 0, 3])
    assert np.isnan(contents(cache)[:, [5, 0, 3]]).all() and same(contents(cache)[:, [1, 2, 4, 6, 7]], before[:, [1, 2, 4, 6, 7]])
    host.swap_in([2, 7, 1], [3, 6, 5])
    host.k[:] = host.v[:] = 7  # the copies have ended
    assert same(contents(cache)[:, [3, 6, 5]], before[:, [3, 5, 0]])


def test_nothing_to_move_is_no_launch(xp, monkeypatch):
    cache, before = full_cache((3, 2, 1, 4), "float32", xp)
    monkeypatch.setattr(Kernel, "__call__", None)
    cache.append([], *tokens(cache, 0))
    cache.copy_blocks([])
    cache.poison([])
    host = HostBlocks(cache, 0)
    host.swap_out([], [])
    host.swap_in([], [])
    k, v = cache.read(Table([], 0))
    assert k.shape == v.shape == (0, 1, 4) and same(contents(cache), before)


def test_more_than_65536_at_once(xp):
    n = 65_536 + 4
    cache, before = full_cache((2 * n, 1, 1, 2), "float16", xp)
    order = np.random.default_rng(0).permutation(2 * n)
    cache.copy_blocks(order.reshape(n, 2))
    before[:, order[1::2]] = before[:, order[::2]]
    assert same(contents(cache), before)
    assert same(cache.gather_blocks(order), before[:, order])


K1, K2 = (np.zeros((n, 2, 4), np.float32) for n in (1, 2))
BAD = [
    (lambda c: c.append([64], K1, K1), IndexError, "slot 64 of 64"),
    (lambda c: c.append([3, -1], K2, K2), IndexError, "slot -1 of 64"),
    (lambda c: c.append(np.array([2**64 - 1, 0], np.uint64), K2, K2), IndexError, "slot 18,446,744,073,709,551,615 of 64"),
    (lambda c: c.append([7, 7], K2, K2), ValueError, "slot 7 is there more than once"),
    (lambda c: c.append([7], K2, K2), ValueError, "1 slots for 2 tokens"),
    (lambda c: c.append([], K1, K1), ValueError, "0 slots for 1 tokens"),
    (lambda c: c.append([1.0], K1, K1), TypeError, "slots are whole numbers, not float64"),
    (lambda c: c.append([True], K1, K1), TypeError, "slots are whole numbers, not bool"),
    (lambda c: c.append([[1]], K1, K1), ValueError, r"slots \[1, 1\] are \[n\]"),
    (lambda c: c.append(1, K1, K1), ValueError, r"slots \[\] are \[n\]"),
    (lambda c: c.append([1], K1, K2), ValueError, r"k \[1, 2, 4\] and v \[2, 2, 4\] are both \[tokens, 2, 4\]"),
    (lambda c: c.append([1], K1[..., :3], K1[..., :3]), ValueError, r"k \[1, 2, 3\]"),
    (lambda c: c.append([1], K1 * 1j, K1), TypeError, "real numbers, not complex64"),
    (lambda c: c.append([1], K1, K1 + np.float64(1e300)), ValueError, r"up to 1e\+300 is beyond float32"),
    (lambda c: c.copy_blocks([(0, 1), (2, 16)]), IndexError, "block 16 of 16"),
    (lambda c: c.copy_blocks([(-1, 1)]), IndexError, "block -1 of 16"),
    (lambda c: c.copy_blocks([0, 1]), ValueError, r"blocks \[2\] are \[n, 2\]"),
    (lambda c: c.copy_blocks([(0, 1, 2)]), ValueError, r"blocks \[1, 3\] are \[n, 2\]"),
    (lambda c: c.copy_blocks([(0, 0.5)]), TypeError, "blocks are whole numbers, not float64"),
    (lambda c: c.gather_blocks([16]), IndexError, "block 16 of 16"),
    (lambda c: c.scatter_blocks(c.gather_blocks([1, 2]), [4, 4]), ValueError, "block 4 is there more than once"),
    (lambda c: c.scatter_blocks(c.gather_blocks([1, 2]), [4]), ValueError, r"1 blocks are float32 \[2, 1, .* not float32 \[2, 2,"),
    (lambda c: HostBlocks(c, 3).swap_in([1], [16]), IndexError, "block 16 of 16"),
    (lambda c: HostBlocks(c, 3).swap_in([1, 2], [4, 4]), ValueError, "block 4 is there more than once"),
    (lambda c: HostBlocks(c, 3).swap_in([1], [4, 5]), ValueError, "2 blocks and 1 host blocks"),
    (lambda c: HostBlocks(c, 3).swap_out([16], [0]), IndexError, "block 16 of 16"),
    (lambda c: HostBlocks(c, 3).swap_out([1], [3]), IndexError, "host block 3 of 3"),
    (lambda c: HostBlocks(c, 3).swap_out([1, 2], [2, 2]), ValueError, "host block 2 is there more than once"),
    (lambda c: HostBlocks(c, 3).swap_out([1, 2], [0]), ValueError, "2 blocks and 1 host blocks"),
    (lambda c: HostBlocks(c, -1), ValueError, "num_blocks = -1"),
    (lambda c: c.poison([3, 16]), IndexError, "block 16 of 16"),
    (lambda c: c.read(Table([1, 2], 9)), ValueError, "9 tokens take 3 blocks of 4, and the table has 2"),
    (lambda c: c.read(Table([1, -1], 8)), IndexError, "block -1 of 16"),
    (lambda c: c.read(Table([1], 1.5)), TypeError, "num_tokens = 1.5, a whole number"),
    (lambda c: PagedCache(0, 1, 1, 1), ValueError, "num_blocks = 0"),
    (lambda c: PagedCache(1, 16.0, 1, 1), TypeError, "block_size = 16.0"),
    (lambda c: PagedCache(1, 1, 1, 1, np.int8), TypeError, "dtype = int8"),
]


@pytest.mark.parametrize("call, error, message", BAD)
def test_what_cannot_be_is_refused_and_changes_nothing(call, error, message):
    cache, before = full_cache((16, 4, 2, 4), "float32", np)
    with pytest.raises(error, match=message):
        call(cache)
    assert same(contents(cache), before)


HUGE = {  # beyond 2^31 elements, slots, and pieces of 16 bytes
    "131,074 blocks": ((131_074, 16, 8, 128), "float16"),
    "2^31 + 16 slots": ((2**27 + 1, 16, 1, 1), "float16"),
    "2^31 + 4096 pieces": ((2**20 + 2, 16, 8, 128), "float16"),
}


def use_the_end(cache):
    """Append to the last two blocks, copy, stage and read them; all of it is checked."""
    last, size = cache.num_blocks - 1, cache.block_size
    table, (k, v) = Table([last, last - 1], size + 3), tokens(cache, size + 3)
    cache.append([last * size + i for i in range(size)] + [(last - 1) * size + i for i in range(3)], k, v)
    assert same(cache.k[last], k[:size]) and same(cache.v[last - 1, :3], v[size:])
    assert all(map(same, cache.read(table), (k, v)))
    cache.copy_blocks([(last, 5), (last - 1, last), (5, last - 1)])
    assert all(map(same, cache.read(Table([last - 1, last], size + 3)), (k, v)))
    host = HostBlocks(cache, 2)
    host.swap_out([last, last - 1], [1, 0])
    host.swap_in([1, 0], [last - 1, last])
    assert all(map(same, cache.read(table), (k, v)))


@pytest.mark.parametrize("case", HUGE)
def test_addresses_beyond_2_31(case, tmp_path, monkeypatch):
    def sparse(shape, value, dtype):  # as large as it is said to be, with memory for what is touched
        files.append(tmp_path / str(len(files)))
        return np.memmap(files[-1], dtype, "w+", shape=shape)

    shape, dtype = HUGE[case]
    files = []
    monkeypatch.setattr(np, "full", sparse)
    cache = PagedCache(*shape, dtype)
    assert cache.k.size > 2**31 and 131_072 * 16 * 8 * 128 == 2**31
    use_the_end(cache)
    assert sum(file.stat().st_blocks for file in files) * 512 < 2**20


@pytest.mark.gpu
@pytest.mark.parametrize("case", HUGE)
def test_addresses_beyond_2_31_on_a_gpu(case):
    import cupy

    shape, dtype = HUGE[case]
    need, free = 2 * np.prod(shape, dtype=object) * np.dtype(dtype).itemsize, cupy.cuda.runtime.memGetInfo()[0]
    if free < 1.05 * need:
        pytest.skip(f"needs {need / 1e9:.0f} GB of the GPU's memory, and {free / 1e9:.0f} are free")
    use_the_end(PagedCache(*shape, dtype, cupy))
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.gpu
def test_swaps_wait_for_their_copies_on_any_stream():
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        cache, before = full_cache((2048, 16, 8, 128), "float16", cupy)
        order, host = np.random.default_rng(0).permutation(2048), HostBlocks(cache, 2048)
        for there in (np.arange(2048), order[::-1], np.roll(np.arange(2048), 700)):
            host.swap_out(order, there)
            cache.poison(order)
            assert same(np.stack([host.k, host.v])[:, there], before[:, order])
            host.swap_in(there, order)
            host.k[:] = host.v[:] = 7
            assert same(contents(cache), before)


@pytest.mark.parametrize("heads, dim, dtype, offset", [(1, 128, "float16", 0), (8, 128, "float16", 0), (1, 64, "float32", 0),
                                                       (1, 128, "float16", 1)])
def test_append_asks_for_no_sector_twice(heads, dim, dtype, offset):
    cache = PagedCache(8, 16, heads, dim, dtype)
    n = 5 * heads * dim
    k, v = np.zeros(offset + 2 * n, dtype)[offset:].reshape(2, 5, heads, dim)  # from a sector's start on, or one element past it
    profile = cache.append_launch([100, 3, 77, 16, 40], k, v).profile()
    row, piece = heads * dim * cache.k.itemsize, 2 if offset else 16
    warps = 5 * -(-row // piece // 32)
    for x in "kv":
        lines = profile.lines[profile.lines.source == f"{x}_pool[to] = {x}[from];"].set_index("access")
        load, store = lines.loc["global load"], lines.loc["global store"]
        assert load.bytes == store.bytes == 5 * row and load.requests == store.requests == warps
        assert store.sectors == 5 * row // 32
        assert load.sectors == (5 * row // 32 if not offset else 3 * warps)
    slots = profile.lines[profile.lines.source.str.contains("= slots", regex=False)]
    assert slots.sectors.sum() == slots.requests.sum() == warps
