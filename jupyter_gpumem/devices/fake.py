"""A scripted device for tests, docs and demos: counters behave as PyTorch's do, memory is only counted.

It rounds allocations to 512 bytes and takes segments of 2 MiB (or what a request needs beyond) and gives them back in
`empty_cache`; it does not model fragmentation.
"""

from __future__ import annotations

import copy
import itertools
import threading
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.records import Device, DriverMemory
from jupyter_gpumem.units import GiB, MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .base import Stats, Watcher

_LEVELS = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes", "allocation")


class FakeOutOfMemoryError(RuntimeError):
    """What the fake device raises beyond its total, worded as PyTorch words it."""


class FakeBackend:
    """A family of fake devices, by default one of 8 GiB that is in use already.

    Args:
        kind: the device type it stands for.
        total: bytes of each device.
        devices: how many there are.
        started: whether the process has initialised them; call `start()` to do so later.
    """

    def __init__(self, kind: str = "fake", total: int = 8 * GiB, devices: int = 1, *, started: bool = True) -> None:
        self.kind = kind
        self._total = total
        self._started = started
        self._stats = [_zero_stats() for _ in range(devices)]
        self._live: dict[int, tuple[int, int, int]] = {}
        self._handles = itertools.count(1)
        self._limits: dict[int, int] = {}
        self._watchers: list[Watcher] = []
        self._lock = threading.RLock()
        self.context = 512 * MiB
        self.others = 0

    # What a user's code does to it.

    def start(self) -> None:
        """Initialise the devices, as the first CUDA call does."""
        self._started = True

    def allocate(self, size: int, index: int = 0) -> int:
        """Take `size` bytes and return a handle for `free`.

        Raises:
            FakeOutOfMemoryError: the device is too small.
        """
        self.start()
        with self._lock:
            stats, block = self._stats[index], -(-size // 512) * 512
            reserved, allocated = stats["reserved_bytes"]["all"], stats["allocated_bytes"]["all"]
            missing = max(0, allocated["current"] + block - reserved["current"])
            segment = -(-missing // (2 * MiB)) * 2 * MiB
            wanted = reserved["current"] + segment
            if wanted + self.context + self.others > self._total or wanted > self._limits.get(index, self._total):
                stats["num_alloc_retries"] += 1
                stats["num_ooms"] += 1
                raise FakeOutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / GiB:.2f} GiB.")
            _raise(stats, "reserved_bytes", segment)
            for key in ("allocated_bytes", "active_bytes"):
                _raise(stats, key, block)
            _raise(stats, "requested_bytes", size)
            _raise(stats, "allocation", 1)
            handle = next(self._handles)
            self._live[handle] = (index, size, block)
            return handle

    def free(self, handle: int) -> None:
        """Give one allocation back to the cache."""
        with self._lock:
            index, size, block = self._live.pop(handle)
            stats = self._stats[index]
            for key, amount in (
                ("allocated_bytes", block),
                ("active_bytes", block),
                ("requested_bytes", size),
                ("allocation", 1),
            ):
                _raise(stats, key, -amount)

    def empty_cache(self, index: int = 0) -> None:
        """Give every whole unused segment back to the driver."""
        with self._lock:
            stats = self._stats[index]
            keep = -(-stats["allocated_bytes"]["all"]["current"] // (2 * MiB)) * 2 * MiB
            _raise(stats, "reserved_bytes", keep - stats["reserved_bytes"]["all"]["current"])

    def cap(self, limit: int | None, index: int = 0) -> None:
        """Let the process reserve no more than so many bytes, as `set_per_process_memory_fraction` does."""
        if limit is None:
            self._limits.pop(index, None)
        else:
            self._limits[index] = limit

    def user_stats(self, index: int = 0) -> Stats:
        """Read the statistics as user code does through `torch.cuda.memory_stats`."""
        stats = self.stats(index)
        for watcher in self._watchers:
            watcher.reading(self, index, stats)
        return stats

    def user_peak(self, index: int = 0) -> int:
        """Return what `torch.cuda.max_memory_allocated` would."""
        return int(self.user_stats(index)["allocated_bytes"]["all"]["peak"])

    def user_reset_peaks(self, index: int = 0) -> None:
        """Reset the peaks as user code does, in sight of the watchers."""
        if not self._watchers:
            return self.reset_peaks(index)
        with self._watchers[-1].peak_reset(self, index):
            return self.reset_peaks(index)

    def user_reset_totals(self, index: int = 0) -> None:
        """Reset the accumulated counts as user code does, in sight of the watchers."""
        if not self._watchers:
            return self._reset_totals(index)
        with self._watchers[-1].totals_reset(self, index):
            return self._reset_totals(index)

    @property
    def watched(self) -> bool:
        """Whether anyone still watches the user's reads and resets."""
        return bool(self._watchers)

    # What a Backend answers.

    def ready(self) -> Sequence[int]:
        return range(len(self._stats)) if self._started else ()

    def count(self) -> int | None:
        return len(self._stats) if self._started else None

    def device(self, index: int) -> Device:
        return Device(self.kind, index, "scripted device", self._total, f"fake-{index}")

    def stats(self, index: int) -> Stats:
        with self._lock:
            return copy.deepcopy(self._stats[index])

    def reset_peaks(self, index: int) -> None:
        with self._lock:
            for key in _LEVELS:
                for pool in self._stats[index][key].values():
                    pool["peak"] = pool["current"]

    def memory(self, index: int) -> DriverMemory | None:
        process = self._stats[index]["reserved_bytes"]["all"]["current"] + self.context
        used = process + self.others
        return DriverMemory(self._total, used, self._total - used, process, "scripted")

    def segments(self, index: int) -> list[dict[str, Any]] | None:  # noqa: ARG002
        return None

    def settings(self) -> dict[str, Any]:
        return {}

    def starting_text(self) -> None:
        return None

    def limit(self, index: int) -> int | None:
        return self._limits.get(index)

    def owns(self, index: int, address: int, storage: object) -> bool:  # noqa: ARG002
        return True

    def workspaces(self, index: int) -> dict[int, int]:  # noqa: ARG002
        return {}

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def controls(self) -> None:
        """Return nothing: what a script counts has no settings and no cache to act on."""

    def _reset_totals(self, index: int) -> None:
        with self._lock:
            stats = self._stats[index]
            stats["num_alloc_retries"] = stats["num_ooms"] = 0
            for key in _LEVELS:
                for pool in stats[key].values():
                    pool["allocated"] = pool["freed"] = 0


def _zero_stats() -> Stats:
    zero = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    return {"num_alloc_retries": 0, "num_ooms": 0} | {key: {"all": dict(zero)} for key in _LEVELS}


def _raise(stats: Stats, key: str, amount: int) -> None:
    pool = stats[key]["all"]
    pool["current"] += amount
    pool["peak"] = max(pool["peak"], pool["current"])
    pool["allocated" if amount > 0 else "freed"] += abs(amount)
