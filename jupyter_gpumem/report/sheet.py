"""One layout for every report: a heading, a small table and a few sentences, written as text or as HTML."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jupyter_gpumem.records import Device

_TEXT_WIDTH = 118
_CELL = "padding:1px 0 1px 1.2em;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_NAME = "padding:1px 0;text-align:left;white-space:nowrap"
_BAR = ("#0072b2", "#56b4e9", "#e69f00", "#cc79a7", "#999999", "#d9d9d9", "#f0f0f0")


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is shown of one thing.

    Attributes:
        heading: the first line; its parts are set apart by the medium.
        columns: the names of the number columns; empty for a table without a head.
        rows: a name and its cells each.
        notes: sentences below the table.
        bar: fractions of a whole that the rows stand for, drawn where the medium can.
    """

    heading: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    bar: tuple[float, ...] = ()


def about_virtual(device: Device) -> tuple[str, ...]:
    """Return what every report on a device that is not there must say."""
    return ("A virtual GPU: nothing is computed on it; its memory is modelled.",) if device.virtual else ()


def printable(text: str) -> str:
    """Return a text in which nothing moves a cursor, colours, reverses or breaks a line: such characters are spelt out.

    Names may come from a file that somebody else made, and half a surrogate pair cannot be written to any terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _printable(sheet: Sheet) -> Sheet:
    return Sheet(
        tuple(map(printable, sheet.heading)),
        tuple(map(printable, sheet.columns)),
        tuple(tuple(map(printable, row)) for row in sheet.rows),
        tuple(map(printable, sheet.notes)),
        sheet.bar,
    )


def to_text(sheets: Iterable[Sheet]) -> str:
    """Return the sheets as one aligned block of text, without a final line break."""
    return "\n\n".join("\n".join(_text_lines(_printable(sheet))) for sheet in sheets)


def _text_lines(sheet: Sheet) -> list[str]:
    lines = [" · ".join(sheet.heading)]
    if sheet.rows:
        head = [("", *sheet.columns)] if sheet.columns else []
        cells = [tuple(map(_aligned, row)) for row in (*head, *sheet.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for name, *numbers in cells:
            padded = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
            lines.append("  ".join(("  " + name.ljust(widths[0]), *padded)).rstrip())
    for note in sheet.notes:
        lines += textwrap.wrap(note, _TEXT_WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _aligned(cell: str) -> str:
    """Pad the unit of a size, so that right-aligned numbers line up: `0 B` under `65.00 MiB`."""
    return cell + "  " if cell.endswith(" B") else cell


def to_html(sheets: Iterable[Sheet]) -> str:
    """Return the sheets as small, self-contained HTML that takes its colours from the page."""
    return "".join(_html_sheet(_printable(sheet)) for sheet in sheets)


def _html_sheet(sheet: Sheet) -> str:
    first, *rest = map(escape, sheet.heading)
    parts = [f'<div style="margin:2px 0 8px"><div><b>{first}</b>']
    parts += [f' <span style="opacity:.75">· {part}</span>' for part in rest]
    parts.append("</div>")
    if sheet.bar:
        parts.append(_html_bar(sheet.bar))
    if sheet.rows:
        parts.append('<table style="border-collapse:collapse;margin:2px 0;font-size:inherit">')
        if sheet.columns:
            heads = "".join(
                f'<th scope="col" style="{_CELL};font-weight:normal;opacity:.75">{escape(c)}</th>'
                for c in sheet.columns
            )
            parts.append(f"<tr><td></td>{heads}</tr>")
        for number, row in enumerate(sheet.rows):
            parts.append(_html_row(row, _BAR[number % len(_BAR)] if sheet.bar else None))
        parts.append("</table>")
    parts += [f'<div style="opacity:.9">{escape(note)}</div>' for note in sheet.notes]
    parts.append("</div>")
    return "".join(parts)


def _html_row(row: Sequence[str], colour: str | None) -> str:
    name, *cells = map(escape, row)
    key = (
        f'<span style="display:inline-block;width:.7em;height:.7em;margin-right:.5em;background:{colour};'
        'outline:1px solid rgba(128,128,128,.5)"></span>'
        if colour
        else ""
    )
    numbers = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row" style="{_NAME};font-weight:normal">{key}{name}</th>{numbers}</tr>'


def _html_bar(fractions: Sequence[float]) -> str:
    pieces = "".join(
        f'<span style="width:{100 * fraction:.3f}%;background:{_BAR[number % len(_BAR)]}"></span>'
        for number, fraction in enumerate(fractions)
    )
    return (
        '<div role="presentation" style="display:flex;height:10px;max-width:32em;margin:4px 0;'
        f'outline:1px solid rgba(128,128,128,.5)">{pieces}</div>'
    )
