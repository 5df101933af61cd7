"""How results look: every record becomes sheets, and sheets become text and HTML. Importing this registers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.records import (
    AllocatorConfig,
    Audit,
    BatchSize,
    Chain,
    DeviceAudit,
    Emptied,
    Holders,
    Limits,
    Measurement,
    OomExplanation,
    Prediction,
    Record,
    RecorderStatus,
    Released,
    Reservation,
    Reservations,
    Series,
    Status,
    VirtualStatus,
    WhatIf,
)

from .audit import audit_sheets, device_audit_sheets
from .batch_size import batch_size_sheets
from .comparison import recorder_sheets, whatif_sheets
from .control import config_sheets, emptied_sheets, limits_sheets, reservation_sheets, reservations_sheets
from .holding import chain_sheets, holders_sheets, released_sheets
from .measurement import measurement_line, measurement_sheets, series_sheets
from .oom import oom_sheets
from .prediction import prediction_sheets
from .recording import recording_sheets
from .sheet import Sheet, printable, terminal_width, to_html, to_text
from .status import status_sheets
from .virtual import virtual_sheets

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = [
    "Sheet",
    "measurement_line",
    "mimebundle",
    "printable",
    "recording_sheets",
    "sheets",
    "terminal_width",
    "to_html",
    "to_text",
    "whatif_sheets",
]


_SHEETS: dict[type[Record], Callable[[Any], list[Sheet]]] = {
    Chain: chain_sheets,
    Holders: holders_sheets,
    AllocatorConfig: config_sheets,
    Audit: audit_sheets,
    BatchSize: batch_size_sheets,
    DeviceAudit: device_audit_sheets,
    Emptied: emptied_sheets,
    Limits: limits_sheets,
    Measurement: measurement_sheets,
    OomExplanation: oom_sheets,
    Prediction: prediction_sheets,
    RecorderStatus: recorder_sheets,
    Released: released_sheets,
    Reservation: reservation_sheets,
    Reservations: reservations_sheets,
    Series: series_sheets,
    Status: status_sheets,
    VirtualStatus: virtual_sheets,
    WhatIf: whatif_sheets,
}


def sheets(record: Record) -> list[Sheet]:
    """Return a record as sheets."""
    return _SHEETS[type(record)](record)


def mimebundle(record: Record) -> dict[str, str]:
    """Return the text and HTML of a record, for one display call; in a terminal the text is no wider than it."""
    shown = sheets(record)
    return {"text/plain": to_text(shown, terminal_width()), "text/html": to_html(shown)}


for _record in _SHEETS:
    _record.rendered_by(text=lambda record: to_text(sheets(record)), html=lambda record: to_html(sheets(record)))
