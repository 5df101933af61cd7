"""Whether the model is right about a recording: a replay under the recorded settings against the recorded events."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from jupyter_gpumem.records import Check

from .driver import TopDownDriver
from .model import Allocator
from .replay import Player, Replay
from .start import END, adopt
from .trace import ALLOC, FAIL, FREE, MAP, UNMAP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .start import Held
    from .trace import Circumstances, Trace


_ELSEWHERE = (END, 1 << 63)
"""Addresses for memory that the recorded allocator did not get."""


class RecordedDriver(TopDownDriver):
    """A driver that answers as the recorded one did, and counts how often it is not asked what that one was asked.

    Where the model departs from the recording it gets memory elsewhere, so that the rest can still be compared.
    """

    def __init__(self) -> None:
        super().__init__(space=_ELSEWHERE)
        self.mismatches = 0
        self._spans: list[tuple[int, int]] = []
        self._window: Sequence[tuple[int, int, int]] = ()
        self._next = 0
        self._fails = False

    def occupy(self, address: int, size: int) -> bool:
        """Take a span of addresses; false when a part of it is taken, as two segments never are in a real recording."""
        span = (address, address + size)
        index = bisect_left(self._spans, span)
        before, after = self._spans[max(0, index - 1) : index], self._spans[index : index + 1]
        if span[1] > _ELSEWHERE[0] or any(low < span[1] and span[0] < high for low, high in (*before, *after)):
            return False
        self._spans.insert(index, span)
        return True

    def _vacate(self, address: int) -> bool:
        index = bisect_left(self._spans, (address, 0))
        if index < len(self._spans) and self._spans[index][0] == address:
            del self._spans[index]
            return True
        return False

    def open(self, window: Sequence[tuple[int, int, int]], *, fails: bool = False) -> None:
        """Expect these `(kind, address, size)`, and after them a refusal if the recorded request failed."""
        self._window, self._next, self._fails = window, 0, fails

    def close(self) -> None:
        """Count what was expected and did not come."""
        self.mismatches += len(self._window) - self._next
        self._window, self._next, self._fails = (), 0, False

    @property
    def free(self) -> int | None:
        return None

    def allocate(self, size: int) -> int | None:
        kind, address, recorded = self._expected()
        if kind == ALLOC and recorded == size and self.occupy(address, size):
            self._next += 1
            return address
        if self._refuses():
            return None
        self.mismatches += 1
        return super().allocate(size)

    def release(self, address: int, size: int) -> None:
        self._give_back(FREE, address, size)
        if not self._vacate(address):
            super().release(address, size)

    def reserve(self, size: int) -> int | None:
        kind, address, _ = self._expected()
        if kind == MAP and self.occupy(address, size):
            return address
        return super().reserve(size)

    def unreserve(self, address: int, size: int) -> None:
        if not self._vacate(address):
            super().unreserve(address, size)

    def map(self, address: int, size: int) -> bool:
        if self._expected() == (MAP, address, size):
            self._next += 1
            return True
        if self._refuses():
            return False
        self.mismatches += 1
        return True

    def unmap(self, address: int, size: int) -> None:
        self._give_back(UNMAP, address, size)

    def _expected(self) -> tuple[int, int, int]:
        return self._window[self._next] if self._next < len(self._window) else (-1, 0, 0)

    def _refuses(self) -> bool:
        # The recorded driver refused if memory was given back next, or if that was the end of it.
        kind = self._expected()[0]
        return kind in {FREE, UNMAP} or (kind == -1 and self._fails)

    def _give_back(self, *call: int) -> None:
        if self._expected() == call:
            self._next += 1
        else:
            self.mismatches += 1


def check(trace: Trace, circumstances: Circumstances, held: Sequence[Held] = ()) -> tuple[Check, Replay, Allocator]:
    """Replay a trace under the recorded settings, with the recorded addresses of segments fed back.

    Args:
        trace: the operations.
        circumstances: what was in force.
        held: what the allocator held at the start.

    Returns:
        The comparison, what the replay came to, and the model as it was at the end.
    """
    driver = RecordedDriver()
    # An expandable segment takes as much address space as the device is large, and an eighth: at least what it held.
    total = circumstances.total_memory or max(trace.highest, 1)
    allocator = Allocator(circumstances.settings, total_memory=total, limit=circumstances.limit, driver=driver)
    allocator.set_limit(circumstances.limit)  # not one that follows from a guessed total
    player = Player(trace, allocator, delays=True, looks=True)
    if held and adopt(allocator, held, trace):
        for address, size in allocator.segments.items():
            driver.occupy(address, size)
        for segment in allocator.expandable:
            driver.occupy(segment.address, segment.size)
        player.adopted()
    else:
        player.start()
    worst = _Worst(trace.reserved, allocator)
    special = {at: (kind, number) for at, kind, number in trace.special}
    windows: dict[int, list[tuple[int, int, int]]] = {}
    for at, kind, address, size in trace.segments:
        windows.setdefault(at, []).append((kind, address, size))
    position = 0
    for at in sorted({*special, *windows}):
        player.play(position, at)
        kind, number = special.get(at, (-1, 0))
        window = windows.get(at, ())
        driver.open(window, fails=kind == FAIL)
        if kind == -1:
            player.play(at, at + 1)
        else:
            player.special(kind, number)
        driver.close()
        worst.note(window)
        position = at + 1
    player.play(position, len(trace.ops))
    misplaced = sum(mine != theirs for mine, theirs in zip(player.addresses, trace.addresses, strict=True))
    failures = len(set(player.failed) ^ set(trace.failures))
    result = Check(
        segment_events=len(trace.segments),
        mismatches=driver.mismatches + misplaced + failures + player.saved,
        max_difference=worst.difference,
        blocks=len(trace.addresses),
        misplaced=misplaced,
        ooms=len(player.failed),
        retries=allocator.retries,
    )
    return result, player.result(), allocator


class _Worst:
    """Keeps the largest difference between recorded and modelled reserved bytes."""

    def __init__(self, reserved: int, allocator: Allocator) -> None:
        self.reserved, self.allocator = reserved, allocator
        self.difference = abs(reserved - allocator.reserved)

    def note(self, window: Sequence[tuple[int, int, int]]) -> None:
        """Compare after recorded calls of the driver."""
        self.reserved += sum(size if kind in {ALLOC, MAP} else -size for kind, _, size in window)
        self.difference = max(self.difference, abs(self.reserved - self.allocator.reserved))
