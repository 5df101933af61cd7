"""An audit as sheets: a row for each pool, then a verdict and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.units import format_bytes

from .control import release_line
from .sheet import Sheet

if TYPE_CHECKING:
    from jupyter_gpumem.records import Audit, DeviceAudit, PoolAudit

_COLUMNS = ("reserved", "allocated", "free", "largest", "returnable", "stranded", "external")


def audit_sheets(result: Audit) -> list[Sheet]:
    """Return one sheet for each device."""
    if result.missing is not None:
        return [Sheet((f"Nothing to audit: {result.missing}",))]
    before = {one.device.label: one for one in result.before or ()}
    return [_device_sheet(result, one, before.get(one.device.label)) for one in result.devices]


def device_audit_sheets(one: DeviceAudit) -> list[Sheet]:
    """Return one sheet, for a device that a monitor found."""
    return [
        Sheet((*_heading(one), "above the threshold" if one.exceeded else "within the threshold"), _COLUMNS, _rows(one))
    ]


def _heading(one: DeviceAudit) -> tuple[str, ...]:
    ratio, private = one.common_ratio, one.fragmentation.private
    apart = f", {100 * private / one.reserved:.1f} % in private pools" if private else ""
    return (
        one.device.label,
        *([one.device.name] if one.device.name else []),
        "nothing reserved"
        if ratio is None
        else f"{100 * ratio:.1f} % of {format_bytes(one.reserved)} is unallocated{apart}",
    )


def _rows(one: DeviceAudit) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            _pool_name(pool),
            format_bytes(pool.reserved),
            format_bytes(pool.allocated),
            format_bytes(pool.free),
            format_bytes(pool.largest_free),
            "owner's" if pool.private else format_bytes(pool.returnable),
            "owner's" if pool.private else format_bytes(pool.stranded),
            "-" if pool.external is None else f"{100 * pool.external:.1f} %",
        )
        for pool in one.pools
    )


def _pool_name(pool: PoolAudit) -> str:
    name = f"private pool {pool.pool_id[0]}_{pool.pool_id[1]}, {pool.kind}" if pool.private else f"{pool.kind} pool"
    return f"{name}, stream {pool.stream:#x}" if pool.stream else name


def _device_sheet(result: Audit, one: DeviceAudit, before: DeviceAudit | None) -> Sheet:
    verdict = f"{'above' if one.exceeded else 'within'} the threshold of {100 * result.threshold:g} %"
    lies = one.fragmentation
    notes = []
    if before is not None:
        notes.append(
            f"Compacted: reserved {format_bytes(before.reserved)} -> {format_bytes(one.reserved)}, allocated "
            f"{format_bytes(before.allocated)} -> {format_bytes(one.allocated)}; {result.collected:,} unreachable "
            "objects were collected."
        )
    if one.reserved:
        external = "" if lies.external is None else f"; external fragmentation {100 * lies.external:.1f} %"
        streams = {pool.stream for pool in one.pools if not pool.private}
        where = ", on the stream that has it" if len(streams) > 1 else ""
        notes.append(
            f"The largest request that needs no memory from the driver is {format_bytes(lies.largest_free)}"
            f"{where}{external}."
        )
    if lies.returnable and before is None:
        aside = f", and with it goes what was put aside as {', '.join(one.cached)}" if one.cached else ""
        notes.append(
            f"{format_bytes(lies.returnable)} can go back to the driver: %gpumem_audit --compact does it{aside}."
        )
    if lies.stranded:
        sharing, release = "live tensors", ""
        if one.reservations:
            sharing += " and what %gpumem_reserve holds"
            release = f"; {', '.join(map(release_line, one.reservations))} lets go of what is held"
        notes.append(
            f"{format_bytes(lies.stranded)} cannot go back to the driver: {sharing} share their segments. They come "
            "free with these (%gpumem_empty says how few, and which lines allocated them while %gpumem_record runs), "
            f"or with the process{release}.{_setting(result)}"
        )
    if lies.private:
        notes.append(
            f"{format_bytes(lies.private)} belong to private pools (CUDA graphs, MemPool) and are no fragmentation; "
            "they go when their owner does (torch._dynamo.reset() for compiled code)."
        )
    return Sheet((*_heading(one), verdict), _COLUMNS if one.pools else (), _rows(one), tuple(notes))


def _setting(result: Audit) -> str:
    """Say which setting would have left less, where one would."""
    if result.expandable:
        return ""
    return " Expandable segments strand less, from the start: %gpumem_whatif says by how much."
