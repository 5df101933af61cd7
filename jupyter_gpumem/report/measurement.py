"""Measurements as sheets and as single lines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jupyter_gpumem.units import MiB, format_bytes, format_delta, format_seconds

from .sheet import Sheet, about_virtual

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyter_gpumem.records import DeviceUsage, Measurement, OomExplanation, Series

_NOTABLE_OUTSIDE = 16 * MiB
"""Changes of a process outside PyTorch, or of other processes, below this are not worth a sentence."""

_MOST_ROWS = 25
"""Rows at the beginning and at the end of a long series."""


def measurement_sheets(result: Measurement) -> list[Sheet]:
    """Return one sheet for each device that changed; for the only device also when it did not."""
    shown = [usage for usage in result.devices if usage.changed] or list(result.devices[:1])
    sheets = [_usage_sheet(result, usage) for usage in shown]
    if not shown:
        sheets = [Sheet(_heading(result), notes=(f"GPU memory not measured: {result.missing}.",))]
    if result.oom is not None:
        at = next((n for n, usage in enumerate(shown) if usage.device.label == result.oom.device), -1)
        sheets[at] = _with_note(sheets[at], _reason(result.oom))
    untouched = len(result.devices) - len(shown)
    if untouched:
        sheets[-1] = _with_note(sheets[-1], f"{untouched} other device{'s' if untouched > 1 else ''} unchanged.")
    return sheets


def _with_note(sheet: Sheet, note: str) -> Sheet:
    return replace(sheet, notes=(*sheet.notes, note))


def _reason(oom: OomExplanation) -> str:
    return f"Why memory ran out: {oom.sentence}."


def _heading(result: Measurement) -> tuple[str, ...]:
    parts = [] if result.label is None else [result.label]
    if result.repeat is not None:
        parts.append(f"run {result.repeat[0]} of {result.repeat[1]}")
    time = format_seconds(result.elapsed_s)
    parts.append(f"stopped by {result.error} after {time}" if result.error else time)
    return tuple(parts)


def _usage_sheet(result: Measurement, usage: DeviceUsage) -> Sheet:
    device = usage.device
    heading = (device.label, *([device.name] if device.name else []), *_heading(result))
    if not usage.changed and usage.peak_allocated == usage.start.allocated:
        note = f"unchanged: {format_bytes(usage.end.allocated)} allocated, {format_bytes(usage.end.reserved)} reserved."
        return Sheet(heading, notes=(note, *_notes(result, usage), *about_virtual(device)))
    bound = "" if usage.doubt is None else ">= "
    rows = tuple(
        (
            name,
            format_bytes(getattr(usage.start, name)),
            bound + format_bytes(peak),
            bound + format_delta(over),
            format_bytes(getattr(usage.end, name)),
            format_delta(delta),
        )
        for name, peak, over, delta in (
            ("allocated", usage.peak_allocated, usage.peak_over_start, usage.delta_allocated),
            ("reserved", usage.peak_reserved, usage.reserved_over_start, usage.delta_reserved),
        )
    )
    notes = (*_notes(result, usage), *about_virtual(device))
    return Sheet(heading, ("start", "peak", "over start", "end", "stays"), rows, notes)


def _notes(result: Measurement, usage: DeviceUsage) -> list[str]:
    notes = [_verdict(result, usage)] if usage.changed and usage.peak_over_start is not None else []
    if usage.doubt is not None:
        notes.append(f"The peaks are lower bounds: {usage.doubt}.")
    elif usage.peak_allocated is None:
        notes.append(f"{usage.device.kind} keeps no peak counter: only the levels before and after are known.")
    if usage.workspaces:
        notes.append(
            f"{format_bytes(usage.workspaces)} of what stays is cuBLAS workspace: taken once, at the first matrix "
            "products of the process."
        )
    outside = usage.outside_delta
    if outside is not None and abs(outside) >= _NOTABLE_OUTSIDE:
        what = "the CUDA context and libraries, loaded at first use" if usage.first_use else "libraries and kernels"
        notes.append(f"{format_delta(outside)} outside PyTorch's allocator: {what}.")
    others = usage.others_delta
    if others is not None and abs(others) >= _NOTABLE_OUTSIDE:
        notes.append(f"Other processes on this card: {format_delta(others)} meanwhile.")
    elsewhere = usage.elsewhere_delta
    if elsewhere is not None and abs(elsewhere) >= _NOTABLE_OUTSIDE:
        notes.append(
            f"{format_delta(elsewhere)} on this card outside PyTorch's allocator: this process's context and "
            "libraries, or other processes; the driver does not tell which."
        )
    if usage.ooms:
        notes.append(f"Ran out of memory {_times(usage.ooms)}.")
    flushes = (usage.retries or 0) - (usage.ooms or 0)  # the allocator flushes once more before it gives up
    if flushes > 0:
        notes.append(f"Flushed the cache {_times(flushes)} to make room, waiting for the GPU: the card is full.")
    if result.rss_delta is not None and abs(result.rss_delta) >= 64 * MiB:
        notes.append(f"Host memory {format_delta(result.rss_delta)}.")
    return notes


def _verdict(result: Measurement, usage: DeviceUsage) -> str:
    """Say what was needed meanwhile and what stays of it, in one sentence."""
    over, stays = usage.peak_over_start or 0, usage.delta_allocated or 0
    size = f"{'' if usage.doubt is None else 'at least '}{format_bytes(over)}" if over > 0 else "nothing"
    if result.error is not None and usage.ooms:  # what it would have needed is more, and nobody knows how much
        needed = f"Got {size} on top of what was there before memory ran out"
    else:
        needed = f"Needed {size} on top of what was there"
    if stays > 0:
        tail = (
            "; all of it stays." if stays == over and usage.doubt is None else f"; {format_bytes(stays)} of it stays."
        )
    elif stays < 0:
        tail = f"; left {format_bytes(-stays)} less than it found."
    else:
        tail = "; nothing stays." if over > 0 else "."
    return needed + tail


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def measurement_line(result: Measurement) -> str:
    """Return a measurement in one line, for `%gpumem_auto` and logs."""
    time = format_seconds(result.elapsed_s)
    shown = [usage for usage in result.devices if usage.changed]
    tail = [f"stopped by {result.error}"] if result.error else []
    if not shown:
        what = _unchanged(result) or f"GPU memory not measured: {result.missing}"
        return "   ".join(["gpumem", what, time, *tail])
    parts = [
        f"{usage.device.label}  peak {_peak_in_line(usage)}   stays {format_delta(usage.delta_allocated)}"
        f"   reserved {format_bytes(usage.end.reserved)}"
        for usage in shown
    ]
    return "   ".join(["gpumem", " | ".join(parts), time, *tail])


def _unchanged(result: Measurement) -> str:
    """Say what is unchanged, of the devices that were looked at; nothing where there was none."""
    if len(result.devices) > 1:
        return f"{len(result.devices)} devices unchanged"
    return f"{result.devices[0].device.label} unchanged" if result.devices else ""


def _peak_in_line(usage: DeviceUsage) -> str:
    if usage.peak_allocated is None:
        return "not known"
    bound = "" if usage.doubt is None else ">= "
    return f"{bound}{format_bytes(usage.peak_allocated)} ({bound}{format_delta(usage.peak_over_start)})"


def series_sheets(series: Series) -> list[Sheet]:
    """Return one sheet for each device: a row for each run."""
    what = "step" if any(run.label for run in series.runs) else "run"
    labels = {usage.device.label: usage.device for run in series.runs for usage in run.devices if usage.changed}
    if not labels:
        return [_unmoved_sheet(series, what)]
    columns = ("peak", "over start", "stays", "reserved", "time")
    sheets = []
    for label, device in labels.items():
        rows, peaks = [], []
        for number, run in enumerate(series.runs, 1):
            usage = next((u for u in run.devices if u.device.label == label), None)
            if usage is None:
                continue
            if run.error is None:  # a run that was cut short says nothing of what a whole one needs
                peaks.append(usage.peak_over_start or 0)
            bound = "" if usage.doubt is None else ">= "
            rows.append(
                (
                    _name(run, what, number),
                    bound + format_bytes(usage.peak_allocated),
                    bound + format_delta(usage.peak_over_start),
                    format_delta(usage.delta_allocated),
                    format_bytes(usage.end.reserved),
                    format_seconds(run.elapsed_s),
                )
            )
        heading = (label, *([device.name] if device.name else []), _count(len(series.runs), what))
        first = _first_run_note(peaks) if what == "run" else ()
        reasons = [_reason(run.oom) for run in series.runs if run.oom is not None and run.oom.device in {None, label}]
        sheets.append(Sheet(heading, columns, _elided(rows), (*first, *reasons, *about_virtual(device))))
    return sheets


def _unmoved_sheet(series: Series, what: str) -> Sheet:
    """Return the times alone, and why there is no more to say."""
    last = series.runs[-1]
    rows = _elided([(_name(run, what, number), format_seconds(run.elapsed_s)) for number, run in enumerate(series, 1)])
    note = f"{_unchanged(last) or f'GPU memory not measured: {last.missing}'}."
    return Sheet((_count(len(series.runs), what),), ("time",), rows, (note,))


def _name(run: Measurement, what: str, number: int) -> str:
    """Return what a row of a series is called: its label or number, and what stopped it."""
    of = f" of {run.repeat[1]}" if run.repeat is not None and run.error else ""
    return (run.label or f"{what} {number}{of}") + (f", {run.error}" if run.error else "")


def _elided(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the rows, or the first and last ones of very many."""
    left_out = len(rows) - 2 * _MOST_ROWS
    if left_out <= 0:
        return tuple(rows)
    gap = (f"... {left_out:,} more", *[""] * (len(rows[0]) - 1))
    return (*rows[:_MOST_ROWS], gap, *rows[-_MOST_ROWS:])


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _first_run_note(peaks: list[int]) -> list[str]:
    """Say when the first run needed clearly more than the later ones: caches, workspaces, algorithm search."""
    if len(peaks) < 2 or peaks[0] <= 1.1 * max(peaks[1:]) or peaks[0] - max(peaks[1:]) < MiB:
        return []
    extra = format_bytes(peaks[0] - max(peaks[1:]))
    return [f"The first run needed {extra} more than any later one: first-use costs, not the steady state."]
