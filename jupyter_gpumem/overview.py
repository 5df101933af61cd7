"""What every device holds right now, in layers that add up to the card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .devices import (
    check_devices,
    device_labels,
    driver_memory,
    explain_absence,
    explain_unused,
    ready_devices,
    uninitialised_cards,
    versions,
)
from .devices import counters as pick_counters
from .fragments import LARGE_PAGE, fragmentation
from .records import Counters, DeviceStatus, Status
from .units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .devices import Backend

_DEFAULTS: dict[str, Any] = {
    "max_split_size": -1,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
    "release_lock_on_cudamalloc": False,
    "graph_capture_record_stream_reuse": False,
}


def status(devices: Iterable[int | str] | int | str | None = None) -> Status:
    """Return the status of every visible device, or of those named by index or label.

    Reads counters, a snapshot (about 1 us for each block) and the driver; initialises and synchronises nothing.

    Raises:
        UnavailableError: devices were named, and this process cannot have any.
        DeviceNotFoundError: a named device is not visible.
    """
    only = device_labels(devices)
    check_devices(only)
    found: list[DeviceStatus] = []
    settings: dict[str, str] = {}
    for backend, index in ready_devices():
        if only is None or f"{backend.kind}:{index}" in only:
            found.append(_device_status(backend, index))
            settings |= _changed_settings(backend.settings())
    missing = None
    if not found:
        missing = explain_unused(only) or explain_absence() or "this process has not used a GPU yet"
        if only is None:
            found = [DeviceStatus(device, None, memory) for device, memory in uninitialised_cards()]
    return Status(tuple(found), settings, versions(), missing)


def _device_status(backend: Backend, index: int) -> DeviceStatus:
    driver = driver_memory(backend, index)
    segments = backend.segments(index)
    counters: Counters = pick_counters(backend.stats(index))
    return DeviceStatus(
        device=backend.device(index),
        counters=counters,
        driver=driver,
        fragmentation=None
        if segments is None
        else fragmentation(segments, large_page=LARGE_PAGE, device_free=driver.free if driver else None),
        limit=backend.limit(index),
    )


def _changed_settings(settings: dict[str, Any]) -> dict[str, str]:
    """Return the settings that differ from PyTorch's defaults, written as they are set."""
    changed = {}
    for key, default in _DEFAULTS.items():
        value = settings.get(key, default)
        if value != default:
            is_size = key == "max_split_size"
            changed[f"{key}_mb" if is_size else key] = str(value // MiB) if is_size else str(value)
    divisions = {key: value for key, value in settings.get("roundup_power2_divisions", {}).items() if value}
    if divisions:
        changed["roundup_power2_divisions"] = str(divisions)
    return changed
