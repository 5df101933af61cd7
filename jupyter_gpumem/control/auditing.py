"""The audit: how badly the memory of each device is fragmented, and what of it can be mended now."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from typing import TYPE_CHECKING

from jupyter_gpumem.arguments import check_flag, real, shown
from jupyter_gpumem.devices import (
    actable_devices,
    check_devices,
    counters,
    device_labels,
    driver_memory,
    explain_nothing,
    ready_devices,
)
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.finishing import collector_paused
from jupyter_gpumem.fragments import LARGE_PAGE, fragmentation, pools
from jupyter_gpumem.records import Audit, DeviceAudit

from .book import RESERVATIONS
from .configuration import configuration
from .returning import empty_cache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyter_gpumem.devices import Backend

THRESHOLD = 0.45
"""The unallocated ratio that many take for the sign of a fragmented cache."""


def audit(
    threshold: float = THRESHOLD,
    *,
    compact: bool = False,
    devices: Iterable[int | str] | int | str | None = None,
) -> Audit:
    """Judge how the memory of every device lies, or of those named.

    Reads counters and a snapshot (about 1 us for each block); synchronises nothing unless memory is compacted.

    Args:
        threshold: the unallocated ratio, from 0 to 1, above which a device counts as fragmented.
        compact: do what is safe: collect reference cycles, and give unused segments of all devices back to the driver.
        devices: indices or labels; by default all that the process uses.

    Raises:
        InvalidValueError: the threshold is no ratio, or `compact` is neither `True` nor `False`.
        UnavailableError: devices were named and there can be none, PyTorch cannot be asked to compact, or the CUDA
            context is lost.
        DeviceNotFoundError: a named device is not visible.
    """
    threshold = check_threshold(threshold)
    check_flag("compact", compact)
    only = device_labels(devices)
    check_devices(only)
    before, collected = None, None
    # What the automatic collector took after the reading would be missing from what was collected.
    with collector_paused() if compact else contextlib.nullcontext():
        found = _audited(threshold, only)
        if found and compact:
            actable_devices("memory cannot be compacted", devices)
            before, collected = found, gc.collect()
    if not found:
        missing = explain_nothing(only)
        if only is None and any(True for _ in ready_devices()):
            missing = "PyTorch gives no snapshot of the memory of the devices in use"
        return Audit((), threshold, missing=missing)
    if compact:
        empty_cache()
        found = _audited(threshold, only)
    return Audit(found, threshold, configuration().in_force().expandable_segments, before, collected)


def check_threshold(threshold: float) -> float:
    """Return a ratio.

    Raises:
        InvalidValueError: it is not between 0 and 1.
    """
    ratio = real(threshold)
    if ratio is None or not 0 <= ratio <= 1:
        raise InvalidValueError(f"not a ratio: {shown(threshold)}; write a number from 0 to 1, such as {THRESHOLD}")
    return ratio


def _audited(threshold: float, only: frozenset[str] | None) -> tuple[DeviceAudit, ...]:
    return tuple(
        audited
        for backend, index in ready_devices()
        if only is None or f"{backend.kind}:{index}" in only
        if (audited := audit_device(backend, index, threshold)) is not None
    )


def audit_device(backend: Backend, index: int, threshold: float) -> DeviceAudit | None:
    """Return how the memory of one device lies; `None` where there is no snapshot to tell."""
    segments = backend.segments(index)
    if segments is None:
        return None
    levels = counters(backend.stats(index))
    driver, controls = driver_memory(backend, index), backend.controls()
    page, expandable = LARGE_PAGE, True
    if controls is not None:
        settings = configuration(backend, controls).in_force()
        page, expandable = settings.large_segment_size, settings.expandable_segments
    free = driver.free if driver is not None else None
    audited = DeviceAudit(
        device=backend.device(index),
        allocated=levels.allocated or 0,
        reserved=levels.reserved or 0,
        fragmentation=fragmentation(segments, large_page=page, device_free=free, expandable=expandable),
        pools=pools(segments, large_page=page, device_free=free),
        exceeded=False,
        reservations=tuple(
            name for pin in RESERVATIONS.pins(backend, index, segments, page) for name in pin.reservations
        ),
        cached=RESERVATIONS.returnable(backend, index, segments),
    )
    return dataclasses.replace(audited, exceeded=(audited.common_ratio or 0) > threshold)
