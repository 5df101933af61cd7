"""The device driver as a program that trains with PyTorch meets it: with the driver's own memory between the segments.

Under which addresses a program gets its segments decides ties between free blocks of equal size, and whether a run of
granules is given back as a whole depends on what else lies in it. What was seen in recordings of training, generation
and an out-of-memory loop (PyTorch 2.11, driver 580, H200), as offsets of segments and of what lies between them:

- The first granule has 8 MiB taken at its lower end; below it lies an area of 13 granules that ends with a gap of
  2 MiB, where the first small segment goes.
- New granules are first taken from holes above the first one, one granule each, mostly every fourth, from the highest
  down: none to 11 of them, then from below everything else.
- Once kernels run, about 412 MiB of that area become free at once and are filled from the lower end up, after gaps in
  younger granules and before any new granule; about 1 GiB below it is skipped afterwards. It fits a stack for kernels
  that gave way to a larger one, which is a guess. cuBLAS seems to take 64 MiB of the area.
- Gaps of 8 MiB appear then, and of 2 MiB once in a few thousand events. What they lie in is not given back when the
  cache is emptied, and serves segments of any size before new granules do.

This is a typical process, not the recorded one, and not the next one: programs map memory of their own between
segments, so that of the same program one process has 9 holes and another none. How many there are here was chosen so
that the reserved peaks of training and generation under other settings come out: with 2, 304 of 336 of seeds 5, 6 and 7
of `benchmarks/whatif_gpu.py` do; with 12, which had been chosen on seed 0, 64 of the 112 of seed 5 did: generation used
no hole at all, the out-of-memory loop two or three before the area became free. Nothing can be right always: of 35
programs run twice under the same settings, 2 came to another peak. Which peaks depend on all this shows when they are
replayed with plain `TopDownDriver` addresses. Two programs are known to differ: one with random sizes on three streams
never uses the area, one on two streams uses it from the start.
"""

from __future__ import annotations

from jupyter_gpumem.units import MiB

from .driver import BOTTOM, GRANULE, TOP, Arena, TopDownDriver

CALLS = 4096
"""After so many operations the driver takes some memory of its own."""

_HOLES = 2
_EVERY = 4
_AREA = 13 * GRANULE
_STACK = 412 * MiB
_CUBLAS = 64 * MiB
_CODE = (8 * MiB, 8 * MiB)
_SCRAP = 2 * MiB
_LARGER_STACK = 32 * GRANULE
_BETWEEN = 2 * GRANULE


class ProcessDriver(TopDownDriver):
    """A driver that hands out addresses as in a process that uses a device for real.

    Args:
        capacity: bytes of physical memory that segments can have, or `None` without end.
        top: the address below which everything lies.
    """

    def __init__(self, capacity: int | None = None, top: int = TOP) -> None:
        super().__init__(capacity, (BOTTOM, top))
        first = self._lowest - (_HOLES * _EVERY + 1) * GRANULE
        self._holes = [
            (start, start + GRANULE) for start in range(first + _EVERY * GRANULE, self._lowest, _EVERY * GRANULE)
        ]
        # Nothing of these is ever empty: the driver's own memory stays.
        self._arenas.append(Arena(first + 8 * MiB, first + GRANULE, live=1))
        self._area = Arena(first - _BETWEEN - _SCRAP, first - _BETWEEN, live=1)
        self._arenas.append(self._area)
        self._lowest = first - _BETWEEN - _AREA
        self._stack = self._lowest
        self.begun = False

    def begin(self) -> None:
        """Let the program launch its first kernels."""
        self.begun = True
        self._area.live += 1
        self._area.give(self._stack + _CUBLAS, _STACK - _CUBLAS)
        for size in _CODE:
            self.keep(size)
        self._lowest -= _LARGER_STACK

    def keep(self, size: int = _SCRAP) -> None:
        """Take memory for the driver itself, for good."""
        self._place(size)
