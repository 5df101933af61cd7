"""What-if as a sheet: one row for each choice of settings, then why, how it was checked and how to use it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.units import format_bytes, format_delta

from .sheet import Sheet, sentence

if TYPE_CHECKING:
    from jupyter_gpumem.records import RecorderStatus, WhatIf, WhatIfRow

_DEFAULTS = "PyTorch's defaults"
COLUMNS = ("peak reserved", "change", "unallocated", "stranded", "flushes", "driver calls")


def whatif_sheets(result: WhatIf) -> list[Sheet]:
    """Return one sheet."""
    about = result.recording
    events = about.devices.get(str(result.device))
    heading = [
        about.source,
        *([about.device_name] if about.device_name else []),
        *([f"{events:,} events"] if events else []),
        f"card of {format_bytes(result.memory)}" if result.memory is not None else "card without end",
    ]
    if result.limit is not None:
        heading.append(f"cap {format_bytes(result.limit)}")
    return [
        Sheet(
            tuple(heading),
            (*COLUMNS, "OOMs (event)" if any(row.ooms for row in result.results) else "OOMs"),
            tuple(_row(row, result.changes) for row in result.results),
            tuple(_notes(result)),
        )
    ]


def _row(row: WhatIfRow, changes: tuple[tuple[int, str], ...]) -> tuple[str, ...]:
    name = row.settings or _DEFAULTS
    if row.recorded:
        name = ", then ".join(settings or _DEFAULTS for _, settings in changes) or name
        name = f"recorded: {name}" if row.as_recorded else f"recorded settings, replayed: {name}"
    elif row.best:
        name = f"best: {name}"
    return (
        name + (" (!)" if row.warnings else ""),
        _peak(row),
        "" if row.recorded else _change(row),
        "-" if row.unallocated_ratio is None else f"{100 * row.unallocated_ratio:.1f} %",
        format_bytes(row.stranded),
        f"{row.retries:,}",
        f"{row.device_allocations + row.device_frees:,}",
        f"{row.ooms:,}" if row.first_oom is None else f"{row.ooms:,} ({_event(row.first_oom)})",
    )


def _event(index: int) -> str:
    return "start" if index < 0 else f"{index:,}"


def _peak(row: WhatIfRow) -> str:
    peak, otherwise = format_bytes(row.peak_reserved), row.peak_reserved_otherwise
    return peak if otherwise in {None, row.peak_reserved} else f"{peak} (or {format_bytes(otherwise)})"


def _change(row: WhatIfRow) -> str:
    if row.gain is None or row.gain_percent is None:
        return ""
    return f"{format_delta(-row.gain)} ({-row.gain_percent:+.1f} %)" if row.gain else "same"


def _notes(result: WhatIf) -> list[str]:
    exact = result.check.exact
    notes = [] if exact else [_checked(result) + " Take the numbers as estimates."]  # first: it is about all the rest
    notes += [*_fits(result), result.why]
    best = next((row for row in result.results if row.best), None)
    if best is not None:
        if best.settings:
            # Quoted where a shell would take it otherwise: `[256:1,>:4]` writes to a file.
            value = shlex.quote(best.settings)
            notes.append(f"To use it: set PYTORCH_CUDA_ALLOC_CONF={value} before Python starts.")
        else:
            notes.append("To use it: unset PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF before Python starts.")
        change = AllocatorSettings.parse(best.settings).change_from(AllocatorSettings.parse(result.results[0].settings))
        notes.append(f"In a kernel that runs, for memory allocated from then on: %gpumem_config {change}")
    if exact:
        notes.append(_checked(result))
    notes += [sentence(note) for note in result.notes]
    warned: dict[str, None] = {}
    for row in result.results:
        warned |= dict.fromkeys(f"(!) {row.settings}: {warning}." for warning in row.warnings)
    return notes + list(warned)


def _fits(result: WhatIf) -> list[str]:
    """Say whether the workload gets through at all, where under the first choice it does not."""
    first = result.results[0]
    if not first.ooms:
        return []
    through = [row for row in result.results if not row.ooms]
    if through:
        return [f"It gets through under {len(through)} of the {len(result.results)} choices."]
    latest = max(row.first_oom for row in result.results if row.first_oom is not None)
    when = "every one has failed before the first event, for what was alive then does not fit"
    if latest >= 0:
        when = f"every one has failed by event {latest:,}"
    return [f"It does not get through under any of these: {when}."]


def _checked(result: WhatIf) -> str:
    """Say how far the model can be trusted about this very recording."""
    check = result.check
    if check.exact:
        calls, blocks = _every(check.segment_events, "recorded driver call"), _every(check.blocks, "block")
        return (
            f"Checked: a replay under the recorded settings makes {calls} and places {blocks} as recorded, to the byte."
        )
    return (
        f"Check not passed: a replay under the recorded settings differs {check.mismatches:,} times from the "
        f"{check.segment_events:,} recorded driver calls and the places of {check.blocks:,} blocks, in reserved memory "
        f"by at most {format_bytes(check.max_difference)}."
    )


def _every(count: int, what: str) -> str:
    return {0: f"no {what}", 1: f"the one {what}"}.get(count, f"all {count:,} {what}s")


def recorder_sheets(status: RecorderStatus) -> list[Sheet]:
    """Return one line."""
    events = "" if status.events is None else f"{status.events:,} events"
    if not status.running:
        return [Sheet(("not recording", *([f"{events} in the recording stopped last"] if events else [])))]
    if not status.ours:
        return [Sheet(("recording, not started by this extension", events))]
    stacks = "with" if status.stacks else "without"
    return [Sheet(("recording", f"{events} (the newest {status.max_entries:,} are kept)", f"{stacks} Python stacks"))]
