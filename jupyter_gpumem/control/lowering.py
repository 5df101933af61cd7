"""Memory caps that are lowered for a while, so that something stays free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.devices import lost_context, ready_devices

if TYPE_CHECKING:
    from jupyter_gpumem.devices import Backend


class LoweredCaps:
    """The caps of all devices: lowered inside a `with` block, and put back. Devices may come into use inside."""

    def __init__(self) -> None:
        self._before: dict[tuple[Backend, int], float] = {}
        self.binding = False
        """Whether a device has a lower cap now than without."""

    def __enter__(self) -> LoweredCaps:
        return self

    def __exit__(self, *_: object) -> None:
        if lost_context() is not None:
            return
        for (backend, index), fraction in self._before.items():
            controls = backend.controls()
            if controls is not None:
                controls.set_fraction(index, fraction)

    def keep_free(self, margin: float) -> None:
        """Cap every device in use so that a share of it stays free, others' memory counted as it is now."""
        self.binding = False
        for backend, index in ready_devices():
            memory, total, controls = backend.memory(index), backend.device(index).total, backend.controls()
            if memory is None or not total or controls is None or not margin:
                continue
            limit = backend.limit(index)
            own = self._before.setdefault((backend, index), 1.0 if limit is None else (limit + 0.5) / total)
            reserved = backend.stats(index)["reserved_bytes"]["all"]["current"]
            usable = max(0.0, (reserved + memory.free) / total - margin)
            controls.set_fraction(index, min(own, usable))
            self.binding |= usable < own


def room_below_caps(backend: Backend, index: int) -> int:
    """Return how many bytes the allocator may reserve of a device, with those that it has."""
    memory, limit, total = backend.memory(index), backend.limit(index), backend.device(index).total or 0
    reserved = int(backend.stats(index)["reserved_bytes"]["all"]["current"])
    most = total if memory is None else reserved + memory.free
    return most if limit is None else min(most, limit)
