"""How results look: every record becomes sheets, and sheets become text and HTML. Importing this registers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.records import Measurement, Record, Series, Status

from .measurement import measurement_line, measurement_sheets, series_sheets
from .sheet import Sheet, to_html, to_text
from .status import status_sheets

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["Sheet", "measurement_line", "mimebundle", "to_html", "to_text"]


def mimebundle(record: Record) -> dict[str, str]:
    """Return the text and HTML of a record, for one display call."""
    return {"text/plain": str(record), "text/html": record._repr_html_() or ""}


def _register(record: type[Record], sheets: Callable[[Any], list[Sheet]]) -> None:
    record.rendered_by(text=lambda r: to_text(sheets(r)), html=lambda r: to_html(sheets(r)))


_register(Measurement, measurement_sheets)
_register(Series, series_sheets)
_register(Status, status_sheets)
