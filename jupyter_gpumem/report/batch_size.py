"""The largest batch size, with the trials that it was found by, as a sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.units import format_bytes, format_seconds

from .sheet import Sheet, sentence

if TYPE_CHECKING:
    from jupyter_gpumem.records import BatchSize, Trial

_MOST_TRIALS = 12


def batch_size_sheets(record: BatchSize) -> list[Sheet]:
    """Return the answer, and a row for each of the last trials."""
    heading = (
        f"largest batch size {record.batch_size:,}" if record.batch_size else "no batch size runs",
        f"{100 * record.margin:g} % of the memory kept free",
        f"{len(record.trials)} trial{'s' * (len(record.trials) != 1)}",
    )
    rows = tuple(_row(trial) for trial in record.trials[-_MOST_TRIALS:])
    notes = [sentence(note) if not note.startswith("fn ") else f"{note}." for note in record.notes]
    if record.predicted is not None:
        notes.insert(0, f"Predicted: {record.predicted:,}.")
    if record.at_maximum:
        notes.insert(0, "It is the maximum that was asked for: a larger one may run too.")
    if record.oom is not None:
        notes.append(f"Why memory ran out: {record.oom.sentence}.")
    return [Sheet(heading, ("", "peak allocated", "peak reserved", "time"), rows, tuple(notes))]


def _row(trial: Trial) -> tuple[str, ...]:
    return (
        f"{trial.batch_size:,}",
        "runs" if trial.fits else "out of memory",
        "" if trial.peak_allocated is None else format_bytes(trial.peak_allocated),
        "" if trial.peak_reserved is None else format_bytes(trial.peak_reserved),
        format_seconds(trial.elapsed_s),
    )
