"""The devices of this process: which back ends there are, and the driver beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import pytorch
from .base import Backend, Driver, Stats, Watcher, counters
from .interception import TorchImportWatch
from .nvml import NvmlDriver
from .pytorch import explain_absence, loaded_torch, torch_installed, versions
from .workspaces import WorkspaceLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyter_gpumem.records import Device, DriverMemory

__all__ = [
    "Backend",
    "Driver",
    "Stats",
    "TorchImportWatch",
    "Watcher",
    "WorkspaceLog",
    "add_backend",
    "backends",
    "counters",
    "driver_memory",
    "explain_absence",
    "explain_unused",
    "loaded_torch",
    "ready_devices",
    "remove_backend",
    "torch_installed",
    "uninitialised_cards",
    "versions",
]

_driver: Driver = NvmlDriver()
_backends: list[Backend] = [
    pytorch.CachingAllocator("cuda"),
    pytorch.CachingAllocator("xpu"),
    pytorch.MpsAllocator(),
]


def backends() -> tuple[Backend, ...]:
    """Return every back end; asking one that does not exist on this machine is cheap and answers nothing."""
    return tuple(_backends)


def add_backend(backend: Backend) -> None:
    """Add a family of devices, such as a scripted one, to everything that measures and shows."""
    _backends.append(backend)


def remove_backend(backend: Backend) -> None:
    """Take a family of devices away again."""
    _backends.remove(backend)


def ready_devices() -> Iterator[tuple[Backend, int]]:
    """Yield every device this process already uses, in PyTorch's order."""
    for backend in _backends:
        for index in backend.ready():
            yield backend, index


def explain_unused(labels: frozenset[str] | None) -> str | None:
    """Return in one sentence that devices in `labels` are not in use, or `None` if none are named or none is in use."""
    if labels is None or not any(True for _ in ready_devices()):
        return None
    return f"{', '.join(sorted(labels))} {'was' if len(labels) == 1 else 'were'} not used yet in this process"


def driver_memory(backend: Backend, index: int) -> DriverMemory | None:
    """Return the driver's view of a ready device; the device's own run-time library where the driver cannot say."""
    if backend.kind == "cuda":
        known = _driver.memory(backend.device(index))
        if known is not None:
            return known
    return backend.memory(index)


def uninitialised_cards() -> tuple[tuple[Device, DriverMemory], ...]:
    """Return the machine's cards as the driver numbers them, for a process that has initialised none."""
    return _driver.cards()
