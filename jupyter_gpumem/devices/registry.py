"""Which back ends this process has, and the driver beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import pytorch
from .nvml import NvmlDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyter_gpumem.records import Device, DriverMemory

    from .base import Backend, Driver

_driver: Driver = NvmlDriver()
_backends: list[Backend] = [
    pytorch.CachingAllocator("cuda"),
    pytorch.CachingAllocator("xpu"),
    pytorch.MpsAllocator(),
]


def backends() -> tuple[Backend, ...]:
    """Return every back end; asking one that does not exist on this machine is cheap and answers nothing."""
    return tuple(_backends)


def backend(kind: str) -> Backend:
    """Return the back end of a device type that is in use now, such as that of `cuda`."""
    return next(found for found in _backends if found.kind == kind)


def add_backend(added: Backend) -> None:
    """Add a family of devices, such as a scripted one, to everything that measures and shows."""
    _backends.append(added)


def remove_backend(added: Backend) -> None:
    """Take a family of devices away again."""
    _backends.remove(added)


def stand_in(substitute: Backend, driver: Driver) -> Callable[[], None]:
    """Let other devices stand in for those of the same type; returns the function that brings these back.

    What is known and counted of devices hangs on their back end, so that nothing of the one is taken for the other's.

    Args:
        substitute: whose devices stand in.
        driver: who speaks for the cards; the machine's own is not asked meanwhile.
    """
    global _driver
    found, before = backend(substitute.kind), _driver
    _backends[_backends.index(found)], _driver = substitute, driver

    def restore() -> None:
        global _driver
        _backends[_backends.index(substitute)], _driver = found, before

    return restore


def ready_devices() -> Iterator[tuple[Backend, int]]:
    """Yield every device this process already uses, in PyTorch's order."""
    for backend in _backends:
        for index in backend.ready():
            yield backend, index


def driver_memory(backend: Backend, index: int, *, runtime: bool = True) -> DriverMemory | None:
    """Return the driver's view of a ready device; the device's own run-time library where the driver cannot say.

    Args:
        backend: the family of devices.
        index: which of them.
        runtime: whether CUDA's run-time library may be asked; it must not while a graph may be captured.
    """
    if backend.kind == "cuda":
        known = _driver.memory(backend.device(index))
        if known is not None or not runtime:
            return known
    return backend.memory(index)


def uninitialised_cards() -> tuple[tuple[Device, DriverMemory], ...]:
    """Return the machine's cards as the driver numbers them, for a process that has initialised none."""
    return _driver.cards()
