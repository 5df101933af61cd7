"""What the devices hold, read again and again: rows of counters in a ring, and now and then a map of every block.

Reading initialises nothing, creates no context and makes no CUDA call: PyTorch's counters are its own, and the card is
asked through its driver. So it disturbs neither a running kernel nor the capture of a CUDA graph.
"""

from __future__ import annotations

import math
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import devices
from .fragments import fragmentation
from .ledger import LEDGER
from .pacing import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from .devices import Backend
    from .intervals import Interval, Key
    from .records import Device, DriverMemory, Fragmentation

INTERVAL = 0.25
"""Seconds between two readings of the counters."""

HOUR = round(3600 / INTERVAL)
"""Rows that are kept: one hour of one device."""

DRIVER_EVERY = 4
"""The driver is asked at every fourth reading."""

MAP_EVERY = 2.0
"""Seconds between two maps of the blocks at least."""

MAP_SHARE = 0.01
"""The largest share of the time that maps may take: one that takes 50 ms is not repeated for 5 s."""


class Sample(NamedTuple):
    """One device at one moment. Sizes are bytes; what is not known is NaN.

    Attributes:
        time: seconds since 1970, never going back.
        slot: which device, as an index into `Sampler.devices`.
        cell: the number of the cell that runs, 0 between cells.
        allocated, reserved: the allocator's counters.
        peak: the highest allocated value since the named moment, exact.
        others: what everything but this process holds on the card.
        external: external fragmentation by the latest map.
        retries, ooms: cache flushes and out-of-memory errors so far.
    """

    time: float
    slot: float
    cell: float
    allocated: float
    reserved: float
    peak: float
    others: float
    external: float
    retries: float
    ooms: float


ROW = struct.Struct(f"<{len(Sample._fields)}d")
"""A row as it is kept and sent: little-endian float64."""


class Ring:
    """The newest rows, in memory that is taken once.

    Args:
        capacity: rows.
    """

    def __init__(self, capacity: int) -> None:
        self._rows = bytearray(ROW.size * capacity)
        self._capacity = capacity
        self._written = 0

    def __len__(self) -> int:
        return min(self._written, self._capacity)

    def append(self, sample: Sample) -> None:
        """Add a row; the oldest makes room."""
        ROW.pack_into(self._rows, self._written % self._capacity * ROW.size, *sample)
        self._written += 1

    def newest(self, count: int | None = None) -> bytes:
        """Return the newest rows, oldest first."""
        count = len(self) if count is None else min(count, len(self))
        end = self._written % self._capacity
        first, last = (end - count) * ROW.size, end * ROW.size
        return bytes(self._rows[first:last] if first >= 0 else self._rows[first:] + self._rows[:last])


@dataclass(frozen=True, slots=True)
class BlockMap:
    """Every segment of one device, as PyTorch's snapshot gives it, and how its free memory lies."""

    slot: int
    time: float
    segments: list[dict[str, Any]]
    fragmentation: Fragmentation


class Sampler:
    """Reads every device that the process uses. Thread-safe.

    Args:
        clock: what maps are paced by.
        wall: seconds since 1970.
        capacity: rows to keep.

    Attributes:
        devices: the devices seen so far; a row's `slot` is an index into it.
        present: the slots of those that the latest reading found; a virtual one may have been switched off.
        ring: the newest rows.
        cell: the number of the cell that runs, 0 between cells.
        since: when the peaks began, in seconds since 1970.
    """

    def __init__(
        self, *, clock: Clock | None = None, wall: Callable[[], float] = time.time, capacity: int = HOUR
    ) -> None:
        self.devices: list[Device] = []
        self.present: tuple[int, ...] = ()
        self.ring = Ring(capacity)
        self.cell = 0
        self._clock = clock or Clock()
        self._epoch = wall() - self._clock.now()
        self._slots: dict[Key, int] = {}
        self._drivers: dict[int, DriverMemory | None] = {}
        self._external: dict[int, float | None] = {}
        self._lock = threading.Lock()
        self._readings = 0
        self._next_map = self._last_allowed = -math.inf
        self._interval: Interval = LEDGER.open()
        self.since = self.now()

    def now(self) -> float:
        """Return seconds since 1970 that never go back."""
        return self._epoch + self._clock.now()

    def mark(self) -> None:
        """Let the peaks begin anew. The user's own maximum stays what it is."""
        old, self._interval = self._interval, LEDGER.open()
        self.since = self.now()
        LEDGER.close(old)

    def close(self) -> None:
        """End the peaks; nothing may be read afterwards."""
        LEDGER.close(self._interval)

    def read(self) -> list[Sample]:
        """Read the counters of every device, about 30 us each, and keep them in the ring."""
        with self._lock:
            return self._read(self.now())

    def _read(self, now: float) -> list[Sample]:
        ask_driver = self._readings % DRIVER_EVERY == 0
        self._readings += 1
        samples = []
        for backend, index, levels in LEDGER.read(self._interval):
            slot = self._slot(backend, index)
            if ask_driver or slot not in self._drivers:
                self._drivers[slot] = devices.driver_memory(backend, index, runtime=False)
            driver = self._drivers[slot]
            others = None if driver is None or driver.process is None else driver.used - driver.process
            allocated, reserved, peak, retries, ooms = levels
            values = (allocated, reserved, peak, others, self._external.get(slot), retries, ooms)
            sample = Sample(now, slot, self.cell, *[math.nan if value is None else value for value in values])
            self.ring.append(sample)
            samples.append(sample)
        self.present = tuple([int(sample.slot) for sample in samples])
        return samples

    def latest(self) -> list[Sample]:
        """Return the newest row of every device that is present."""
        rows = map(Sample._make, ROW.iter_unpack(self.ring.newest(len(self.devices))))
        return list({row.slot: row for row in rows if row.slot in self.present}.values())

    def want_map(self) -> None:
        """Let the next map come at once, because something has changed; one that takes long still has to wait."""
        self._next_map = min(self._next_map, self._last_allowed)

    def read_map(self, slot: int) -> BlockMap | None:
        """Return the map of a device if one is due and there is one. About 2 us for each block."""
        began = self._clock.now()
        if began < self._next_map or slot not in self.present:
            return None
        backend, index = list(self._slots)[slot]
        segments = backend.segments(index)
        if segments is None:
            self._next_map = began + MAP_EVERY
            return None
        driver = self._drivers.get(slot)
        found = fragmentation(segments, device_free=driver.free if driver else None)
        self._external[slot] = found.external
        self.took(self._clock.now() - began)
        return BlockMap(slot, self._epoch + began, segments, found)

    def took(self, seconds: float) -> None:
        """Put the next map off according to how long one took, reading and sending."""
        now = self._clock.now()
        self._last_allowed = now + seconds / MAP_SHARE
        self._next_map = now + max(MAP_EVERY, seconds / MAP_SHARE)

    def _slot(self, backend: Backend, index: int) -> int:
        slot = self._slots.get((backend, index))
        if slot is None:
            slot = self._slots[backend, index] = len(self.devices)
            self.devices.append(backend.device(index))
        return slot
