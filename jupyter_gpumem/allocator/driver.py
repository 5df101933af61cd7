"""What the allocator model gets its memory from: the device driver, with the addresses that it hands out.

Addresses matter: among free blocks of equal size the allocator takes the lowest, so the order in which a driver hands
out segments decides which block is reused, and in the end how much is reserved.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol

from jupyter_gpumem.units import GiB, MiB

PAGE = 2 * MiB
"""What the driver hands out physical memory in."""

GRANULE = 32 * MiB
"""What the driver hands out address space in."""

TOP = 0x7F00_0000_0000
BOTTOM = 0x3_0000_0000


class Driver(Protocol):
    """A source of device memory. Sizes and addresses are in bytes; a refusal is a plain answer, not an error."""

    @property
    def free(self) -> int | None:
        """Bytes that can still be handed out, or `None` when there is no end to them."""

    def allocate(self, size: int) -> int | None:
        """Return the address of a new segment, or `None` when memory is short."""

    def release(self, address: int, size: int) -> None:
        """Take a segment back."""

    def reserve(self, size: int) -> int | None:
        """Return the address of a range of address space without memory, or `None` when there is none left."""

    def unreserve(self, address: int, size: int) -> None:
        """Take a range of address space back."""

    def map(self, address: int, size: int) -> bool:
        """Put memory behind a part of a reserved range; false when memory is short."""

    def unmap(self, address: int, size: int) -> None:
        """Take the memory behind a part of a reserved range away."""


class Arena:
    """A run of granules, and where in it nothing is handed out; `gaps` are `(size, address)`, smallest first."""

    __slots__ = ("end", "gaps", "live", "start")

    def __init__(self, start: int, end: int, *, live: int = 0) -> None:
        self.start, self.end, self.live = start, end, live
        self.gaps = [(end - start, start)]

    def take(self, size: int) -> int | None:
        """Return an address in the smallest gap that is large enough, or `None`."""
        index = bisect_left(self.gaps, (size, 0))
        if index == len(self.gaps):
            return None
        room, address = self.gaps.pop(index)
        if room > size:
            insort(self.gaps, (room - size, address + size))
        self.live += 1
        return address

    def give(self, address: int, size: int) -> None:
        """Take a piece back, joined with the gaps on both sides of it."""
        start, end = address, address + size
        for gap in [gap for gap in self.gaps if gap[1] == end or gap[0] + gap[1] == address]:
            self.gaps.remove(gap)
            start, end = min(start, gap[1]), max(end, gap[0] + gap[1])
        insort(self.gaps, (end - start, start))
        self.live -= 1


class TopDownDriver:
    """A driver that hands out addresses as NVIDIA's does (seen on an H200, driver 580).

    A segment first goes into what is left of the granules in use, the youngest first; otherwise it gets granules of its
    own at the upper end of the highest free range that holds it, and sits at their lower end.

    Args:
        capacity: bytes of physical memory, or `None` without end.
        space: from where to where addresses are handed out: segments from the end down, ranges from the start up.
    """

    def __init__(self, capacity: int | None = None, space: tuple[int, int] = (BOTTOM, TOP)) -> None:
        self.capacity = capacity
        self.used = 0
        self._arenas: list[Arena] = []
        self._homes: dict[int, Arena] = {}
        self._holes: list[tuple[int, int]] = []
        self._ranges, self._lowest = space

    @property
    def free(self) -> int | None:
        return None if self.capacity is None else max(0, self.capacity - self.used)

    def allocate(self, size: int) -> int | None:
        size = -(-size // PAGE) * PAGE
        if not self._fits(size):
            return None
        placed = self._place(size)
        if placed is None:
            return None
        address, arena = placed
        self._homes[address] = arena
        self.used += size
        return address

    def release(self, address: int, size: int) -> None:
        size = -(-size // PAGE) * PAGE
        arena = self._homes.pop(address)
        arena.give(address, size)
        self.used -= size
        if not arena.live:
            self._arenas.remove(arena)
            self._add_hole(arena.start, arena.end)

    def reserve(self, size: int) -> int | None:
        if self._ranges + size > self._lowest:
            return None
        address = self._ranges
        self._ranges += -(-size // GRANULE) * GRANULE
        return address

    def unreserve(self, address: int, size: int) -> None:
        # Address space is plentiful, but the last range is easily had again.
        if address + -(-size // GRANULE) * GRANULE == self._ranges:
            self._ranges = address

    def map(self, address: int, size: int) -> bool:  # noqa: ARG002 - where does not matter here
        if not self._fits(size):
            return False
        self.used += size
        return True

    def unmap(self, address: int, size: int) -> None:  # noqa: ARG002
        self.used -= size

    def _place(self, size: int) -> tuple[int, Arena] | None:
        """Find addresses for a segment; returns the first and what it lies in, or `None` when there are none left."""
        for arena in reversed(self._arenas):
            address = arena.take(size)
            if address is not None:
                return address, arena
        room = -(-size // GRANULE) * GRANULE
        start = self._room(room)
        if start is None:
            return None
        arena = Arena(start, start + room)
        self._arenas.append(arena)
        arena.take(size)
        return start, arena

    def _fits(self, size: int) -> bool:
        return self.capacity is None or self.used + size <= self.capacity

    def _room(self, size: int) -> int | None:
        """Return the start of the highest free range of granules, taken from its upper end."""
        for index in range(len(self._holes) - 1, -1, -1):
            start, end = self._holes[index]
            if end - start >= size:
                if end - start == size:
                    del self._holes[index]
                else:
                    self._holes[index] = (start, end - size)
                return end - size
        if self._lowest - size < self._ranges:
            return None
        self._lowest -= size
        return self._lowest

    def _add_hole(self, start: int, end: int) -> None:
        index = bisect_left(self._holes, (start, end))
        if index < len(self._holes) and self._holes[index][0] == end:
            end = self._holes.pop(index)[1]
        if index and self._holes[index - 1][1] == start:
            index -= 1
            start = self._holes.pop(index)[0]
        if start == self._lowest:
            self._lowest = end
        else:
            self._holes.insert(index, (start, end))


LARGEST_SEGMENT = 1024 * GiB
"""Bytes of address space that an expandable segment reserves when the size of the device is not known."""
