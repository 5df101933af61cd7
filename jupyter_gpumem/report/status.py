"""The status as sheets: layers that add up to the card, then what they mean."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from jupyter_gpumem.units import format_bytes

from .sheet import Sheet, about_virtual, sentence

if TYPE_CHECKING:
    from jupyter_gpumem.records import DeviceStatus, OomIncident, Status


def status_sheets(status: Status) -> list[Sheet]:
    """Return one sheet for each device and, where there is nothing to show, one that says why."""
    sheets = [_device_sheet(status, one) for one in status.devices]
    if status.missing:
        if sheets:
            sheets.insert(0, Sheet((sentence(status.missing),), notes=("The cards as the driver numbers them:",)))
        else:
            sheets = [Sheet((sentence(status.missing),))]
    if status.last_oom is not None:
        device = status.last_oom.explanation.device
        at = next((n for n, one in enumerate(status.devices) if one.counters and one.device.label == device), -1)
        sheets[at] = replace(sheets[at], notes=(*sheets[at].notes, _incident(status.last_oom)))
    return sheets


def _incident(last: OomIncident) -> str:
    """Return in two sentences what the last out-of-memory error was."""
    when = time.strftime("%H:%M:%S", time.localtime(last.time))
    where, more = f"at {when}", "last_oom.explanation of this result shows it whole"
    if last.cell is not None:
        where, more = f"in cell [{last.cell}] {where}", "%gpumem_oom shows it whole"
    elif last.came is not None:
        where, more = f"{last.came} {where}", "%gpumem_oom shows it whole"
    return f"The last out-of-memory error, {where}: {last.explanation.sentence}; {more}."


def _device_sheet(status: Status, one: DeviceStatus) -> Sheet:
    total = one.driver.total if one.driver else one.device.total
    heading = [one.device.label, *([one.device.name] if one.device.name else [])]
    if total:
        heading.append(format_bytes(total))
    rows = _card_layers(one) if one.counters is None else one.layers
    cells = tuple((name, format_bytes(size), f"{100 * size / total:.1f} %" if total else "") for name, size in rows)
    # Contradicting counters (memory moved to the host under Windows, say) show in the numbers, not as a broken bar.
    bar = tuple(max(0.0, size / total) for _, size in rows) if total and one.driver else ()
    return Sheet(tuple(heading), (), cells, tuple(_notes(status, one)), bar)


def _card_layers(one: DeviceStatus) -> tuple[tuple[str, int], ...]:
    """Return the layers of a card that this process does not use."""
    if one.driver is None:
        return ()
    return (("in use", one.driver.used), ("free", one.driver.free))


def _notes(status: Status, one: DeviceStatus) -> list[str]:
    notes = [*about_virtual(one.device)]
    if one.unallocated_ratio is not None:
        text = f"Unallocated: {100 * one.unallocated_ratio:.1f} % of reserved"
        if one.fragmentation is not None:
            if one.fragmentation.external is not None:
                text += f"; external fragmentation {100 * one.fragmentation.external:.1f} %"
            text += f"; largest request served from the cache {format_bytes(one.fragmentation.largest_free)}"
        notes.append(text + ".")
    if one.counters is not None and one.counters.retries is not None:
        notes.append(
            f"Counted so far: cache flushes to make room {one.counters.retries}, "
            f"out-of-memory errors {one.counters.ooms}."
        )
    if one.driver is None and one.counters is not None:
        notes.append("The driver cannot be asked about this device: free memory and other processes are unknown.")
    elif one.counters is not None and one.driver is not None and one.driver.process is None:
        notes.append("The driver does not tell which part of the card belongs to this process.")
    if one.limit is not None:
        notes.append(f"This process may reserve {format_bytes(one.limit)} (a cap is set).")
    if one.counters is not None:
        settings = ", ".join(
            f"{key}:{value}" + (f" ({status.sources[key]})" if key in status.sources else "")
            for key, value in status.settings.items()
        )
        notes.append(f"Allocator settings: {settings or 'PyTorch defaults'}.")
    return notes
