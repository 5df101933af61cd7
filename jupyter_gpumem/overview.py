"""What every device holds right now, in layers that add up to the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .allocator.settings import AllocatorSettings
from .control.book import RESERVATIONS
from .control.configuration import configuration
from .devices import (
    check_devices,
    device_labels,
    driver_memory,
    explain_nothing,
    ready_devices,
    uninitialised_cards,
    versions,
)
from .devices import counters as pick_counters
from .fragments import fragmentation
from .oom import latest_oom
from .records import Counters, DeviceStatus, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .devices import Backend


def status(devices: Iterable[int | str] | int | str | None = None) -> Status:
    """Return the status of every visible device, or of those named by index or label.

    Reads counters, a snapshot (about 1 us for each block) and the driver; initialises and synchronises nothing.

    Raises:
        UnavailableError: devices were named, and this process cannot have any; or the CUDA context is lost.
        DeviceNotFoundError: a named device is not visible.
    """
    only = device_labels(devices)
    check_devices(only)
    found: list[DeviceStatus] = []
    settings: dict[str, str] = {}
    sources: dict[str, str] = {}
    for backend, index in ready_devices():
        if only is None or f"{backend.kind}:{index}" in only:
            controls = backend.controls()
            if controls is None:
                in_force = AllocatorSettings().observed(backend.settings())
            else:
                known = configuration(backend, controls)
                in_force = known.in_force()
                sources |= known.sources(in_force)
            settings |= in_force.named()
            found.append(_device_status(backend, index, in_force))
    missing = None
    if not found:
        missing = explain_nothing(only)
        if only is None:
            found = [DeviceStatus(device, None, memory) for device, memory in uninitialised_cards()]
    return Status(
        tuple(found),
        settings,
        versions(),
        missing,
        {key: sources[key] for key in settings if key in sources},
        latest_oom(),
    )


def _device_status(backend: Backend, index: int, in_force: AllocatorSettings) -> DeviceStatus:
    driver = driver_memory(backend, index)
    segments = backend.segments(index)
    counters: Counters = pick_counters(backend.stats(index))
    return DeviceStatus(
        device=backend.device(index),
        counters=counters,
        driver=driver,
        fragmentation=None
        if segments is None
        else fragmentation(
            segments,
            large_page=in_force.large_segment_size,
            device_free=driver.free if driver else None,
            expandable=in_force.expandable_segments,
        ),
        limit=backend.limit(index),
        held=sum(one.size for one in RESERVATIONS.held(backend, index).values()),
    )
