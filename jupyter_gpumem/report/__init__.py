"""How results look: every record becomes sheets, and sheets become text and HTML. Importing this registers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.comparison import WhatIf
from jupyter_gpumem.records import (
    Chain,
    Holders,
    Measurement,
    OomExplanation,
    Record,
    RecorderStatus,
    Released,
    Series,
    Status,
    VirtualStatus,
)

from .comparison import recorder_sheets, whatif_sheets
from .holding import chain_sheets, holders_sheets, released_sheets
from .measurement import measurement_line, measurement_sheets, series_sheets
from .oom import oom_sheets
from .recording import recording_sheets
from .sheet import Sheet, printable, to_html, to_text
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
    "to_html",
    "to_text",
    "whatif_sheets",
]


_SHEETS: dict[type[Record], Callable[[Any], list[Sheet]]] = {
    Chain: chain_sheets,
    Holders: holders_sheets,
    Measurement: measurement_sheets,
    OomExplanation: oom_sheets,
    RecorderStatus: recorder_sheets,
    Released: released_sheets,
    Series: series_sheets,
    Status: status_sheets,
    VirtualStatus: virtual_sheets,
    WhatIf: whatif_sheets,
}


def mimebundle(record: Record) -> dict[str, str]:
    """Return the text and HTML of a record, for one display call."""
    sheets = _SHEETS[type(record)](record)
    return {"text/plain": to_text(sheets), "text/html": to_html(sheets)}


def _register(record: type[Record], sheets: Callable[[Any], list[Sheet]]) -> None:
    record.rendered_by(text=lambda r: to_text(sheets(r)), html=lambda r: to_html(sheets(r)))


for _record, _sheets in _SHEETS.items():
    _register(_record, _sheets)
