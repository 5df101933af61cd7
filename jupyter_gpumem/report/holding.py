"""Who holds memory, and what came back, as sheets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.units import MiB, format_bytes, format_delta

from .sheet import Sheet

if TYPE_CHECKING:
    from jupyter_gpumem.records import Chain, DeviceHolders, Holder, Holders, Released

_MOST_LINES = 15
_MOST_SITES = 5
_KINDS = {"graph": "autograd graph of", "hook": "hook in", "cycle": "", "other": ""}


def holders_sheets(record: Holders) -> list[Sheet]:
    """Return one sheet for each device, its lines adding up to what is allocated."""
    if not record.devices:
        return [Sheet((f"GPU memory has no holders: {record.missing}.",))]
    sheets = [_device_sheet(one) for one in record.devices]
    if not record.complete:
        note = (
            f"The search ended after {record.visited:,} objects: what is not attributed may have a name all the same."
        )
        last = sheets[-1]
        sheets[-1] = Sheet(last.heading, last.columns, last.rows, (note, *last.notes), last.bar)
    return sheets


def _device_sheet(one: DeviceHolders) -> Sheet:
    device = one.device
    heading = (device.label, *([device.name] if device.name else []), f"{format_bytes(one.allocated)} allocated")
    shown, rest = one.holders[:_MOST_LINES], one.holders[_MOST_LINES:]
    rows = [_row(holder, one.allocated) for holder in shown]
    if rest:
        size = sum(holder.allocated for holder in rest)
        tensors, alone = sum(holder.tensors for holder in rest), sum(holder.alone for holder in rest)
        rows.append(_cells(f"{len(rest)} more", tensors, size, one.allocated, alone))
    for name, size in (("cuBLAS workspaces", one.workspaces), ("private pools", one.private)):
        if size:
            rows.append(_cells(name, None, size, one.allocated, None))
    rows.append(_cells("not attributed", None, one.unattributed, one.allocated, None))
    return Sheet(heading, ("tensors", "allocated", "share", "held only here"), tuple(rows), tuple(_notes(one, shown)))


def holder_name(holder: Holder) -> str:
    """Return a holder as a person would say it."""
    prefix = _KINDS.get(holder.kind)
    return f"{prefix} {holder.name}" if prefix else holder.name


def _row(holder: Holder, total: int) -> tuple[str, ...]:
    name = holder_name(holder)
    if holder.kind in {"variable", "output", "graph", "hook"} and holder.what not in name:
        name = f"{name} ({holder.what})"
    return _cells(name, holder.tensors or None, holder.allocated, total, holder.alone)


def _cells(name: str, tensors: int | None, size: int, total: int, alone: int | None) -> tuple[str, ...]:
    share = f"{100 * size / total:.1f} %" if total else ""
    return (
        name,
        "" if tensors is None else str(tensors),
        format_bytes(size),
        share,
        "" if alone is None else format_bytes(alone),
    )


def _notes(one: DeviceHolders, shown: tuple[Holder, ...]) -> list[str]:
    notes = []
    for holder in shown:
        name = holder_name(holder)
        if holder.detail is not None and (holder.tensors > 1 or holder.kind != "variable"):
            notes.append(f"{name}: the largest piece is {holder.detail}.")
        elif holder.detail is not None:
            notes.append(f"{name}: {holder.detail}.")
        if holder.also:
            notes.append(f"{name}: also held by {', '.join(holder.also)}.")
        if holder.note is not None:
            notes.append(f"{name}: {holder.note}.")
    if one.unattributed >= MiB:
        notes.append(
            "Not attributed: memory that no Python object shows, such as what an operator saved for backward, or what "
            "a library holds."
        )
    notes += [
        f"Not attributed: {format_bytes(site.allocated)} in {_allocations(site.blocks)} made at {site.place}."
        for site in one.sites[:_MOST_SITES]
    ]
    if one.outside:
        notes.append(f"{format_bytes(one.outside)} of tensors lie in memory that is not PyTorch's allocator's.")
    return notes


def _allocations(count: int) -> str:
    return "1 allocation" if count == 1 else f"{count:,} allocations"


def chain_sheets(record: Chain) -> list[Sheet]:
    """Return what keeps a name's memory alive, in sentences."""
    sizes = ", ".join(f"{format_bytes(size)} on {label}" for label, size in record.allocated.items())
    total = sum(record.allocated.values())
    how = "%gpumem_free lets go of it" if record.kind in {"error", "output", "cycle"} else f"Delete {record.name}"
    if record.alone == total:
        found = "Nothing else holds it" if record.complete else "Nothing else was found to hold it"
        last = f"{found}. {how}, and all of it is free."
    elif record.alone:
        last = f"{how}, and {format_bytes(record.alone)} are free."
    else:
        last = f"{how}, and nothing is free: the others hold all of it."
    notes = [*(f"{text}." for text in record.chains), last]
    if not record.complete:
        notes.append("The search ended at its budget: there may be more holders.")
    return [Sheet((record.name, record.what, sizes), notes=tuple(notes))]


def released_sheets(record: Released) -> list[Sheet]:
    """Return the steps with what each returned."""
    heading = "would come back" if record.rehearsal else "released"
    rows = tuple(
        (f"{step.step}: {step.what}", format_delta(-step.allocated), format_delta(-step.reserved))
        for step in record.steps
    )
    notes = []
    if not rows:
        notes.append("There is nothing to let go of in what was asked for.")
    if not record.rehearsal and any(step.step == "last error" for step in record.steps):
        notes.append("The last error's frames are gone: %debug and %tb have nothing to show until the next error.")
    notes.append(f"Now {format_bytes(record.allocated)} allocated, {format_bytes(record.reserved)} reserved.")
    if record.kept:
        kept = ", ".join(f"{holder_name(holder)} {format_bytes(holder.allocated)}" for holder in record.kept)
        notes.append(f"Your own variables hold: {kept}.")
    return [Sheet((heading,), ("allocated", "reserved"), rows, (*notes, *record.notes))]
