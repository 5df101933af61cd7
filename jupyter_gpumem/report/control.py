"""What acting on the allocator did, as sheets: settings, cache, reservations, caps."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from jupyter_gpumem.units import format_bytes, format_seconds

from .sheet import Sheet, sentence

if TYPE_CHECKING:
    from jupyter_gpumem.records import (
        AllocatorConfig,
        DeviceEmptied,
        DeviceLimit,
        Emptied,
        Limits,
        Pin,
        Reservation,
        Reservations,
    )

_MOST_PINS = 3


def config_sheets(config: AllocatorConfig) -> list[Sheet]:
    """Return what is in force, or what was just changed."""
    heading = ("allocator settings", *([f"torch {config.version}"] if config.version else []))
    warned = [sentence(warning) for warning in config.warnings]
    if config.changes is None:
        rows = tuple((s.key, s.value, s.source, s.accepts) for s in config.settings if s.available)
        unknown = [s.key for s in config.settings if not s.available]
        notes = [*warned, *config.notes]
        if unknown:
            notes.append(f"Later versions of PyTorch also know {', '.join(unknown)}.")
        return [Sheet(heading, ("in force", "from", "accepts"), rows, tuple(notes))]
    if not config.changes:
        return [Sheet((*heading, "unchanged"), notes=(*warned, *config.notes))]
    changed = tuple((change.key, change.before, change.after) for change in config.changes)
    applies: dict[str, list[str]] = {}
    for change in config.changes:
        applies.setdefault(change.effect, []).append(change.key)
    notes = [f"{', '.join(keys)}: applies to {effect}." for effect, keys in applies.items()]
    read_back = [change.key for change in config.changes if change.key in config.verified]
    if read_back:
        notes.append(f"Read back from PyTorch: {', '.join(read_back)}.")
    notes += [*warned, *config.notes]
    if config.permanent is not None:
        notes.append(f"To keep it, put this before import torch: {config.permanent}")
    return [Sheet(heading, ("before", "now"), changed, tuple(notes))]


def emptied_sheets(result: Emptied) -> list[Sheet]:
    """Return one sheet for each device."""
    if result.missing is not None:
        return [Sheet((f"Nothing to give back: {result.missing}",))]
    return [_emptied_sheet(result, one, timed=one is result.devices[0]) for one in result.devices]


def _emptied_sheet(result: Emptied, one: DeviceEmptied, *, timed: bool) -> Sheet:
    took = format_seconds(result.elapsed_s) + (" for all devices" if len(result.devices) > 1 else "")
    heading = (
        one.device.label,
        *([one.device.name] if one.device.name else []),
        f"{format_bytes(one.returned)} returned to the driver",
        *([took] if timed else []),
    )
    rows = [("allocated by live tensors", format_bytes(one.allocated - one.workspaces - one.held))]
    if one.held:
        rows.append(("held by %gpumem_reserve", format_bytes(one.held)))
    if one.workspaces:
        rows.append(("cuBLAS workspaces", format_bytes(one.workspaces)))
    if one.private:
        rows.append(("free in private pools", format_bytes(one.private)))
    rows.append(("free, but stranded", format_bytes(one.stranded)))
    # What another stream still uses, and bytes between a request and its block.
    other = one.after - one.allocated - one.private - one.stranded
    if other:
        rows.append(("waiting for other streams", format_bytes(other)))
    rows.append(("stays reserved", format_bytes(one.after)))
    return Sheet(heading, (), tuple(rows), tuple(_why_it_stays(result, one)))


def _why_it_stays(result: Emptied, one: DeviceEmptied) -> list[str]:
    notes = []
    if one.stranded:
        held = " and of what %gpumem_reserve holds" if any(pin.reservations for pin in one.pins) else ""
        notes.append(
            f"{format_bytes(one.stranded)} are pinned by {format_bytes(one.pinned_by)} of live tensors{held} in the "
            "same segments:"
        )
        notes += [_pin(pin) for pin in one.pins[:_MOST_PINS]]
        if not result.recorded:
            notes.append("%gpumem_record start notes where later allocations are made, and this report then says it.")
    if one.private:
        notes.append(
            "Private pools belong to CUDA graphs (torch.compile with mode='reduce-overhead' makes some) or a MemPool: "
            "they are no fragmentation, and go when their owner does; torch._dynamo.reset() lets compiled ones go."
        )
    if one.workspaces:
        notes.append("cuBLAS keeps its workspaces for the next matrix product; --workspaces lets go of them.")
    return notes


def _pin(pin: Pin) -> str:
    blocks = "1 block" if pin.live_blocks == 1 else f"{pin.live_blocks:,} blocks"
    where = f", the largest from {pin.site}" if pin.site is not None else ""
    held = f"; {' and '.join(map(release_line, pin.reservations))}" if pin.reservations else ""
    return f"- {format_bytes(pin.stranded)} by {format_bytes(pin.live)} in {blocks}{where}{held}"


def release_line(name: str) -> str:
    """Return what to write to let go of a reservation."""
    return f"%gpumem_reserve --release {shlex.quote(name)}"


def reservation_sheets(one: Reservation) -> list[Sheet]:
    """Return what was put aside, and for how long."""
    held = one.state == "held"
    heading = (
        one.device.label,
        f"{format_bytes(one.size)} {'held' if held else 'put into the cache'} as {one.name!r}",
        _place(one),
    )
    notes = [sentence(warning) for warning in one.warnings]
    if one.taken < one.size:
        notes.append(
            f"{format_bytes(one.taken)} came from the driver: the cache had the rest."
            if one.taken
            else "Nothing came from the driver: the cache had it already."
        )
    if held:
        notes.append(f"Nothing else gets it until {release_line(one.name)} gives it to the cache.")
    elif one.state == "cached":
        whose = f"requests on stream {one.stream:#x}" if one.stream else "requests on the default stream"
        size = "up to 1 MiB" if one.pool == "small" else "above 1 MiB"
        found = "" if one.whole else f"Later {whose} {size} find it. "  # otherwise it is said which few do
        notes.append(
            f"{found}Emptying the cache gives it back to the driver: %gpumem_empty, torch.cuda.empty_cache(), or "
            "PyTorch itself when memory is short. --hold keeps it."
        )
    if one.private:
        notes.append("It lies in the private pool that is active here, so only requests inside that pool find it.")
    return [Sheet(heading, notes=tuple(notes))]


def _place(one: Reservation) -> str:
    kind = "an expandable segment" if one.segment == "expandable" else "a segment from the driver"
    return f"{one.address:#x} in {kind}"


def reservations_sheets(result: Reservations) -> list[Sheet]:
    """Return a row for each."""
    notes = [f"Given to the cache: {', '.join(result.released)}."] if result.released else []
    if result.forgotten:
        notes.append(
            f"No longer listed: {', '.join(result.forgotten)}. Nothing of it was held: what the cache has of it stays "
            "there."
        )
    if not result.entries:
        return [Sheet(("nothing is put aside",), notes=tuple(notes))]
    rows = tuple(
        (r.name, r.device.label, format_bytes(r.size), r.state, format_bytes(r.free), _place(r)) for r in result.entries
    )
    notes += [_same_memory(group) for group in _groups(result.entries) if len(group) > 1]
    if any(r.state == "gone" for r in result.entries):
        notes.append("What is gone went back to the driver when the cache was emptied, or with a virtual GPU.")
    return [Sheet(("put aside",), ("device", "size", "state", "free", "at"), rows, tuple(notes))]


def _groups(entries: tuple[Reservation, ...]) -> list[list[Reservation]]:
    """Return the reservations, those together that lie in the same memory of the cache; each in their order."""
    groups: list[list[Reservation]] = []
    for one in entries:
        shared = [group for group in groups if any(_overlap(one, other) for other in group)]
        groups = [group for group in groups if group not in shared]
        groups.append([*sorted((other for group in shared for other in group), key=entries.index), one])
    return groups


def _overlap(one: Reservation, other: Reservation) -> bool:
    """Whether two that are in the cache lie in the same memory."""
    if one.device.label != other.device.label or not one.state == other.state == "cached":
        return False
    return one.address < other.address + other.size and other.address < one.address + one.size


def _same_memory(group: list[Reservation]) -> str:
    *earlier, last = (one.name for one in group)
    if len(earlier) == 1:
        return f"{last} was put into memory of {earlier[0]}, which the cache had already: it is there once."
    return f"{', '.join(earlier)} and {last} share memory, which the cache had already: it is there once."


def limits_sheets(result: Limits) -> list[Sheet]:
    """Return one sheet for each device."""
    if result.missing is not None:
        return [Sheet((f"Nothing to cap: {result.missing}",))]
    return [_limit_sheet(result, one) for one in result.devices]


def _limit_sheet(result: Limits, one: DeviceLimit) -> Sheet:
    total = one.device.total or 0
    cap = "no cap" if one.limit is None else f"cap {format_bytes(one.limit)}"
    if one.limit is not None and total:
        cap += f" ({100 * one.limit / total:.1f} % of the card)"
    was = "no cap" if one.before is None else format_bytes(one.before)
    heading = (one.device.label, cap, *([f"before: {was}"] if result.changed else []))
    notes = [f"{format_bytes(one.reserved)} are reserved now."]
    if one.above:
        notes.append(
            f"That is {format_bytes(one.above)} above the cap: nothing is taken away, but PyTorch gets no more memory "
            "until it is below; %gpumem_empty returns what is unused, and says why the rest stays."
        )
    if one.limit is not None:
        notes.append("The cap is on PyTorch's own memory; the CUDA context, NCCL and other libraries come on top.")
    return Sheet(heading, notes=tuple(notes))
