"""A buddy allocator: pieces of a power of two, halved until one just fits, and merged again when they are free."""

from .errors import DoubleFree, OutOfBlocks, RequestTooLarge, whole


class BuddyAllocator:
    """num_slots token slots, handed out in pieces whose size is a power of two and whose start is a multiple of it.

    num_slots needn't be a power of two: it starts as one piece for each of its binary digits, the largest first
    (15,728 = 8192 + 4096 + 2048 + 1024 + 256 + 64 + 32 + 16), and these are never merged.

    >>> memory = BuddyAllocator(48)
    >>> memory.allocate(5), memory.allocate(9), memory.num_free, memory.largest_free
    (32, 0, 24, 16)
    """

    def __init__(self, num_slots):
        self.num_slots = whole("num_slots", num_slots, 1, 2**31 - 1)
        self._free = {1 << digit: set() for digit in range(num_slots.bit_length())}  # size: starts
        self._used = {}  # start: size
        start = 0
        for size in reversed(self._free):
            if num_slots & size:
                self._free[size].add(start)
                start += size

    @property
    def num_free(self):
        """How many slots are in no piece that is in use."""
        return self.num_slots - sum(self._used.values())

    @property
    def largest_free(self):
        """The largest piece that can be had, in slots; 0 if there is none."""
        return max((size for size, starts in self._free.items() if starts), default=0)

    def fits(self, n):
        """Whether allocate(n) finds a piece. Raises RequestTooLarge if it never will."""
        return self._piece(n) <= self.largest_free

    def allocate(self, n):
        """The first slot of a piece of at least n slots: the first of the smallest that do, halved as often as it goes.

        Raises OutOfBlocks if no free piece is large enough, however many small ones there are.
        """
        size = self._piece(n)
        have = next((have for have, starts in self._free.items() if have >= size and starts), None)
        if have is None:
            raise OutOfBlocks(f"a piece of {size:,} slots is asked for, and the largest of {self.num_free:,} free slots has "
                              f"{self.largest_free:,}")
        start = min(self._free[have])
        self._free[have].remove(start)
        while have > size:
            have //= 2
            self._free[have].add(start + have)
        self._used[start] = size
        return start

    def free(self, start):
        """Give a piece back by its first slot; it is merged with its other half, its buddy, for as long as that is free."""
        if whole("start", start) not in self._used:
            raise DoubleFree(f"no piece that is in use starts at slot {start:,}")
        size = self._used.pop(start)
        while (buddy := start ^ size) in self._free[size]:
            self._free[size].remove(buddy)
            start, size = min(start, buddy), 2 * size
        self._free[size].add(start)

    def _piece(self, n):
        size = 1 << (whole("n", n, 1) - 1).bit_length()
        if size not in self._free:
            raise RequestTooLarge(f"{n:,} slots need a piece of {size:,}; the largest of {self.num_slots:,} is {max(self._free):,}")
        return size
