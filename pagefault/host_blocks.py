"""Blocks in the memory of the computer that a GPU sits in, to which a cache's blocks are swapped."""

import numpy as np

from .errors import whole
from .storage import row_numbers


class HostBlocks:
    """Room for blocks of a PagedCache in the CPU's memory, pinned if the cache is a GPU's.

    k, v: [num_blocks, block_size, num_kv_heads, head_dim], NumPy's. They are made here, once, and not when something has to
    move: the driver takes longer to pin memory than the bus takes to fill it. Which host block is whose a BlockPool knows.
    """

    def __init__(self, cache, num_blocks):
        empty = np.empty
        if cache.xp is not np:
            from cupyx import empty_pinned as empty
        shape = whole("num_blocks", num_blocks, 0), *cache.k.shape[1:]
        self.k, self.v = (empty(shape, cache.k.dtype) for _ in "kv")
        self.cache, self.num_blocks = cache, shape[0]

    def swap_out(self, blocks, host_blocks):
        """Copy blocks of the cache to as many host blocks, each named once, in their order.

        They are gathered first, then copied in one piece for each run of host blocks that follow one another. The copies have
        ended when this returns: the blocks may be written. Raises IndexError for a block that isn't there.
        """
        host_blocks = self._numbers(blocks, host_blocks)
        for here, there in self._pieces(self.cache.gather_blocks(blocks), host_blocks):
            if self.cache.xp is np:
                there[:] = here
            else:
                here.get(out=there, blocking=False)
        self._wait()

    def swap_in(self, host_blocks, blocks):
        """Copy host blocks to as many blocks of the cache, each of all named once, in their order.

        The host blocks may be written when this returns. Raises IndexError for a block that isn't there.
        """
        host_blocks = self._numbers(blocks, host_blocks)
        row_numbers("block", blocks, self.cache.num_blocks, once=True)
        staging = self.cache.xp.empty((2, len(host_blocks), *self.k.shape[1:]), self.k.dtype)
        for here, there in self._pieces(staging, host_blocks):
            if self.cache.xp is np:
                here[:] = there
            else:
                here.set(there)
        self._wait()
        self.cache.scatter_blocks(staging, blocks)

    def _numbers(self, blocks, host_blocks):
        host_blocks = row_numbers("host block", host_blocks, self.num_blocks, once=True)
        if len(blocks) != len(host_blocks):
            raise ValueError(f"{len(blocks)} blocks and {len(host_blocks)} host blocks")
        return host_blocks

    def _pieces(self, staging, host_blocks):
        """Pairs of arrays that hold the same: of staging, and of the host's."""
        for run in np.split(np.arange(len(host_blocks)), np.flatnonzero(np.diff(host_blocks) != 1) + 1):
            if len(run):
                i, start = run[0], host_blocks[run[0]]
                for here, there in zip(staging, (self.k, self.v)):
                    yield here[i : i + len(run)], there[start : start + len(run)]

    def _wait(self):
        if self.cache.xp is not np:
            self.cache.xp.cuda.get_current_stream().synchronize()
