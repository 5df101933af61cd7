"""A device for tests whose segments and blocks are as PyTorch's: the allocator's model behind a back end."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.allocator.model import Allocator
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.records import Device, DriverMemory
from jupyter_gpumem.units import GiB, MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jupyter_gpumem.devices import Stats, Watcher


class ModelBackend:
    """A family of devices of one kind that the process uses already.

    Args:
        total: bytes of each device.
        devices: how many there are.
        settings: the allocator's settings, as PyTorch writes them.

    Attributes:
        others, context: bytes of other processes, and of this one outside the allocator.
        broken: what reading the counters raises, if it does.
        emptied: how often the cache was emptied.
        stacks: whether blocks know the line that allocated them, as with a recording.
    """

    kind = "fake"

    def __init__(self, total: int = 8 * GiB, devices: int = 1, settings: str = "") -> None:
        self.allocators = [
            Allocator(AllocatorSettings.parse(settings), total_memory=total, device=index, finish_events=False)
            for index in range(devices)
        ]
        self.others = 512 * MiB
        self.context = 300 * MiB
        self.broken: Exception | None = None
        self.emptied = 0
        self.stacks = False
        self._frames: dict[int, list[dict[str, Any]]] = {}
        self._total = total
        self._watchers: list[Watcher] = []
        self._lock = threading.RLock()

    # What a user's code does to it.

    def allocate(self, size: int, index: int = 0, **where: Any) -> int:
        """Take memory; returns its address."""
        with self._lock:
            address = self.allocators[index].malloc(size, **where)
            frame = sys._getframe(1)
            while frame.f_code.co_filename == __file__ and frame.f_back is not None:
                frame = frame.f_back
            code = frame.f_code
            site = {"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name}
            self._frames[address] = [site] if self.stacks else []
            return address

    def free(self, address: int, index: int = 0) -> None:
        """Give an allocation back to the cache."""
        with self._lock:
            self.allocators[index].free(address)

    def fragment(self, segments: int = 8, index: int = 0) -> list[int]:
        """Fill segments of 20 MiB with five allocations each and free all but one of every five; returns those."""
        addresses = [self.allocate(4 * MiB, index) for _ in range(5 * segments)]
        for number, address in enumerate(addresses):
            if number % 5 != 2:
                self.free(address, index)
        return addresses[2::5]

    def empty_cache(self) -> None:
        """Give unused segments of every device back to the driver."""
        self.emptied += 1
        with self._lock:
            for one in self.allocators:
                one.empty_cache()

    # What a `Backend` answers.

    def ready(self) -> Sequence[int]:
        return range(len(self.allocators))

    def count(self) -> int | None:
        return len(self.allocators)

    def device(self, index: int) -> Device:
        return Device(self.kind, index, "modelled device", self._total, f"model-{index}")

    def stats(self, index: int) -> Stats:
        if self.broken is not None:
            raise self.broken
        with self._lock:
            return self.allocators[index].stats()

    def reset_peaks(self, index: int) -> None:
        with self._lock:
            self.allocators[index].reset_peaks()

    def memory(self, index: int) -> DriverMemory | None:
        process = self.stats(index)["reserved_bytes"]["all"]["current"] + self.context
        used = process + self.others
        return DriverMemory(self._total, used, self._total - used, process, "modelled")

    def segments(self, index: int) -> list[dict[str, Any]] | None:
        with self._lock:
            segments = self.allocators[index].snapshot()
            for segment in segments:
                for block in segment["blocks"]:
                    live = block["state"] != "inactive"
                    block["frames"] = self._frames.get(block["address"], []) if live else []
            return segments

    def settings(self) -> dict[str, Any]:
        return {}

    def starting_text(self) -> None:
        return None

    def limit(self, index: int) -> int | None:
        return None

    def owns(self, index: int, address: int, storage: object) -> bool:
        return True

    def workspaces(self, index: int) -> dict[int, int]:
        return {}

    def controls(self) -> ModelBackend:
        return self

    def settings_text(self, values: Any) -> str:
        """Return the settings string that was given last."""
        return ""

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)
