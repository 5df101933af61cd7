"""Which allocator can be acted on, and on which of its devices: only those that this process uses already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.errors import InvalidValueError, UnavailableError

from .context import check_context
from .naming import check_devices, device_labels
from .pytorch import explain_absence, loaded_torch
from .registry import backends

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .base import Backend, Controls

Actable = tuple["Backend", "Controls"]


def actable_backend(refusal: str) -> Actable:
    """Return the allocators to act on: those of devices in use, otherwise those that will be.

    Args:
        refusal: what cannot be done without one, as the beginning of a sentence.

    Raises:
        UnavailableError: there is no PyTorch, no GPU, or no allocator that can be acted on, or the context is lost.
    """
    check_context()
    found = _actable()
    for backend, controls in found:
        if backend.ready():
            return backend, controls
    if any(backend.ready() for backend in backends()):
        raise UnavailableError(f"{refusal}: PyTorch has no such thing for the devices in use")
    reason = explain_absence()
    if reason is not None:
        raise UnavailableError(f"{refusal}: {reason}")
    torch = loaded_torch()
    if torch is None:
        raise UnavailableError(f"{refusal}: torch is not imported yet; import it first")
    for backend, controls in found:
        module = getattr(torch, backend.kind, None)
        if module is not None and module.device_count():
            return backend, controls
    raise UnavailableError(f"{refusal}: PyTorch has no such thing for the GPU of this machine")


def first_actable() -> Actable:
    """Return the allocators that are in use or, without any, those that PyTorch would use: asks nothing of it.

    Raises:
        UnavailableError: the CUDA context is lost.
    """
    check_context()
    found = _actable()
    return next((pair for pair in found if pair[0].ready()), found[0])


def _actable() -> list[Actable]:
    return [(backend, controls) for backend in backends() if (controls := backend.controls()) is not None]


def actable_devices(
    refusal: str, named: Iterable[int | str] | int | str | None
) -> tuple[Backend, Controls, tuple[int, ...]]:
    """Return the allocators to act on and the indices of the devices in use, or of those named.

    Raises:
        UnavailableError: there is nothing to act on, or a named device is not in use: using it would create its
            context, which takes hundreds of MiB.
        DeviceNotFoundError: a named device is not visible.
    """
    backend, controls = actable_backend(refusal)
    labels = device_labels(named)
    check_devices(labels)
    ready = tuple(backend.ready())
    unused = (labels or frozenset()) - {f"{backend.kind}:{index}" for index in ready}
    if unused or not ready:
        what = ", ".join(sorted(unused)) or "the GPU"
        raise UnavailableError(
            f"{refusal}: {what} is not in use by this process; put something there first, such as "
            f'torch.ones(1, device="{min(unused, default=backend.kind)}")'
        )
    return backend, controls, tuple(i for i in ready if labels is None or f"{backend.kind}:{i}" in labels)


def actable_device(refusal: str, named: Iterable[int | str] | int | str | None) -> tuple[Backend, Controls, int]:
    """Return the allocators to act on and the index of one device: the named one, or the only one in use.

    Raises:
        UnavailableError: there is nothing to act on, or the device is not in use.
        DeviceNotFoundError: the device is not visible.
        InvalidValueError: several devices are in use and none is named, or several are.
    """
    backend, controls, indices = actable_devices(refusal, named)
    if len(indices) > 1:
        labels = ", ".join(f"{backend.kind}:{index}" for index in indices)
        are = "in use" if named is None else "named"
        raise InvalidValueError(f"{refusal}: which device? {labels} are {are}; name one with -d N (device=N)")
    return backend, controls, indices[0]


def give_back(backend: Backend, controls: Controls) -> dict[int, tuple[int, int]]:
    """Empty the cache of all devices; returns the reserved bytes before and after, by index."""

    def reserved() -> dict[int, int]:
        return {index: backend.stats(index)["reserved_bytes"]["all"]["current"] for index in backend.ready()}

    before = reserved()
    controls.empty_cache()
    after = reserved()
    return {index: (before.get(index, 0), size) for index, size in after.items()}


def give_back_everywhere() -> int:
    """Empty the caches of all devices in use; returns the bytes that their drivers got."""
    found = [give_back(backend, controls) for backend, controls in _actable() if backend.ready()]
    return sum(before - after for sizes in found for before, after in sizes.values())
