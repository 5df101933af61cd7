"""The cap on what this process may reserve on a card: it protects the others, and makes the cache stay small."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jupyter_gpumem.devices import actable_devices, explain_nothing, ready_devices
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.records import DeviceLimit, Limits
from jupyter_gpumem.units import format_bytes

from .amounts import Amount, parse_amount

if TYPE_CHECKING:
    from collections.abc import Iterable

OFF = "off"


def limit(size: int | str | None = None, devices: Iterable[int | str] | int | str | None = None) -> Limits:
    """Cap what this process may reserve on its devices, or show the caps in force.

    PyTorch counts only what its own allocator reserves: the context, NCCL and other libraries come on top.

    Args:
        size: bytes, a text such as `20GiB`, `80%` (of the card) or `off`; `None` changes nothing.
        devices: indices or labels; by default all that the process uses.

    Raises:
        InvalidValueError: the size is not understood, or more than a device has.
        UnavailableError: there is nothing to cap, a named device is not in use, or the CUDA context is lost.
        DeviceNotFoundError: a named device is not visible.
    """
    amount = None if size is None or size == OFF else _amount(size)
    if size is None and devices is None and not any(True for _ in ready_devices()):
        return Limits((), changed=False, missing=explain_nothing())
    backend, controls, indices = actable_devices("memory cannot be capped", devices)
    fractions = {}
    if amount is not None:
        for index in indices:
            device = backend.device(index)
            total = device.total or 0
            wanted = amount.of(total, total)
            if wanted > total:
                raise InvalidValueError(
                    f"{size!r} is more than {device.label} has ({format_bytes(total)}, {total} bytes); write less, or "
                    "off for no cap"
                )
            fractions[index] = fraction_for(wanted, total)
    before = {index: backend.limit(index) for index in indices}
    if size is not None:
        for index in indices:
            controls.set_fraction(index, fractions.get(index, 1.0))
    return Limits(
        tuple(
            DeviceLimit(
                device=backend.device(index),
                limit=backend.limit(index),
                before=before[index] if size is not None else None,
                reserved=backend.stats(index)["reserved_bytes"]["all"]["current"],
            )
            for index in indices
        ),
        changed=size is not None,
    )


def _amount(size: int | str) -> Amount:
    """Return the amount that is meant.

    Raises:
        InvalidValueError: there is none; `off` could have been.
    """
    try:
        return parse_amount(size, free=False)
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}; {OFF} takes the cap away") from None


def fraction_for(size: int, total: int) -> float:
    """Return the share of `total` that PyTorch takes for `size` bytes: it multiplies and rounds down."""
    fraction = size / total
    while int(fraction * total) < size:
        fraction = math.nextafter(fraction, 1.0)
    return fraction
