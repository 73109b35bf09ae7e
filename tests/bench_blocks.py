"""Operations a second of the block allocator, beside the shape that small teaching engines have: python tests/bench_blocks.py"""

import statistics
import time
from collections import deque

from pagefault.blocks import BlockPool, BlockTable


class Block:
    def __init__(self, block_id):
        self.block_id, self.ref_count, self.tokens = block_id, 0, []

    def reset(self):
        self.ref_count, self.tokens = 1, []


class DequePool:
    """Block objects with their own counts; a deque of free ids, a set of used ones. No lock, no check, no sharing of tails."""

    def __init__(self, num_blocks, block_size):
        self.block_size, self.blocks = block_size, [Block(i) for i in range(num_blocks)]
        self.free_ids, self.used_ids = deque(range(num_blocks)), set()

    def take(self):
        block = self.blocks[self.free_ids[0]]
        assert block.ref_count == 0
        block.reset()
        self.free_ids.popleft()
        self.used_ids.add(block.block_id)
        return block


class DequeTable:
    def __init__(self, pool):
        self.pool, self.blocks, self.num_tokens = pool, [], 0

    def can_append(self, n):
        return len(self.pool.free_ids) >= -(-(self.num_tokens + n) // self.pool.block_size) - len(self.blocks)

    def append(self, n=1):
        if not self.can_append(n):
            raise MemoryError
        for _ in range(-(-(self.num_tokens + n) // self.pool.block_size) - len(self.blocks)):
            self.blocks.append(self.pool.take().block_id)
        self.num_tokens += n

    def free(self):
        for block_id in reversed(self.blocks):
            block = self.pool.blocks[block_id]
            block.ref_count -= 1
            if block.ref_count == 0:
                self.pool.used_ids.remove(block_id)
                self.pool.free_ids.append(block_id)
        self.blocks, self.num_tokens = [], 0


def serve(pool, table_type, prompt=400, output=100, rounds=400):
    """Microseconds an operation of each kind, the best of many: a sequence takes its prompt, grows token by token, leaves."""
    best, clock = {"allocate": [], "append": [], "free": []}, time.perf_counter
    for _ in range(rounds):
        table = table_type(pool)
        a = clock()
        table.append(prompt)
        b = clock()
        for _ in range(output):
            table.append()
        c = clock()
        table.free()
        for kind, used in zip(best, (b - a, (c - b) / output, clock() - c)):
            best[kind].append(1e6 * used)
    return {kind: min(times) for kind, times in best.items()}


if __name__ == "__main__":
    for num_blocks in (1_000, 10_000, 100_000, 1_000_000):
        pools = {"ours": (BlockPool(num_blocks, 16), BlockTable), "deque": (DequePool(num_blocks, 16), DequeTable)}
        runs = {name: [] for name in pools}
        for _ in range(7):
            for name, (pool, table_type) in pools.items():
                runs[name].append(serve(pool, table_type))
        ours, deques = ({kind: statistics.median(r[kind] for r in rs) for kind in rs[0]} for rs in runs.values())
        for kind in ours:
            print(f"{num_blocks:9,} blocks  {kind:8} {ours[kind]:6.2f} us, deque of objects {deques[kind]:6.2f} us, "
                  f"{deques[kind] / ours[kind]:.2f} times", flush=True)
        pool, waiting = BlockPool(num_blocks, 16), num_blocks // 2
        for block in pool.allocate(waiting):
            pool.keep(block, len)
        pool.free(range(waiting))
        start = time.perf_counter()
        evicted = pool.evict(num_blocks)
        print(f"{num_blocks:9,} blocks  evict    {1e6 * (time.perf_counter() - start) / evicted:6.2f} us")
        total, other = (t["allocate"] + 100 * t["append"] + t["free"] for t in (ours, deques))
        print(f"{num_blocks:9,} blocks  {102e6 / total:,.0f} operations a second, {102e6 / other:,.0f}, {other / total:.2f} times")
