"""One layout for every report: a heading, a small table and a few sentences, written as text or as HTML."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import unicodedata
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jupyter_gpumem.records import Device

_TEXT_WIDTH = 118
_NARROWEST, _SHORTEST_NAME = 40, 30
_INDENT = _GAP = 2
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
        bar: fractions of a whole that the rows, or the first of them, stand for; drawn where the medium can.
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


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: Chinese, Japanese and Korean take two each, accents none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in {"F", "W"} else 1 for c in text
    )


def sentence(text: str) -> str:
    """Return a phrase as a sentence; a device keeps its name."""
    if re.match(r"[a-z]+:\d", text):
        return f"{text}."
    return f"{text[0].upper()}{text[1:]}."


def _printable(sheet: Sheet) -> Sheet:
    if all(map(str.isprintable, chain(sheet.heading, sheet.columns, *sheet.rows, sheet.notes))):
        return sheet
    return Sheet(
        tuple(map(printable, sheet.heading)),
        tuple(map(printable, sheet.columns)),
        tuple(tuple(map(printable, row)) for row in sheet.rows),
        tuple(map(printable, sheet.notes)),
        sheet.bar,
    )


def terminal_width() -> int | None:
    """Return the characters of a line where `print` writes to a terminal, or `None` where it does not."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal; one of the user's own, and none at all, need not be able to tell."""
    ask = getattr(stream, "isatty", None)
    return ask is not None and bool(ask())


def to_text(sheets: Iterable[Sheet], width: int | None = None) -> str:
    """Return the sheets as one aligned block of text, without a final line break.

    Args:
        sheets: what to write.
        width: characters of a line of the terminal; without it tables are as wide as they are.
    """
    return "\n\n".join("\n".join(_text_lines(_printable(sheet), width)) for sheet in sheets)


def _text_lines(sheet: Sheet, width: int | None) -> list[str]:
    most = _TEXT_WIDTH if width is None else max(_NARROWEST, min(_TEXT_WIDTH, width))
    lines = _heading(sheet.heading, width)
    if sheet.rows:
        lines += _table(sheet, width)
    for note in sheet.notes:
        lines += _wrapped(note, most, "  ", "    ")
    return lines


def _heading(parts: Sequence[str], width: int | None) -> list[str]:
    """Return the parts on one line, or on several that are no wider than that: no part is broken."""
    lines = list(parts[:1])
    for part in parts[1:]:
        if width is None or columns_of(f"{lines[-1]} · {part}") <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(f"  {part}")
    return lines


def _wrapped(text: str, width: int, first: str, following: str) -> list[str]:
    if len(first) + len(text) <= width:
        return [first + text]
    # What is to be copied, as a settings string, stays in one piece even if it is longer than the line.
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=following, break_long_words=False, break_on_hyphens=False
    )


def _table(sheet: Sheet, width: int | None) -> list[str]:
    """Return the lines of a table: as it is where that fits, or else made narrower step by step.

    First the heads are written in several lines, then the names are broken after commas and blanks, and at last the
    columns are shown in blocks below each other, each with the names.
    """
    rows = [tuple(map(_aligned, row)) for row in sheet.rows]
    heads = [[head] for head in sheet.columns]
    names = [[row[0]] for row in rows]
    cells = [row[1:] for row in rows]
    whole = _block(names, heads, cells)
    if width is None or _widest(whole) <= width:
        return whole
    heads = [head.split() for head in sheet.columns]
    narrower = _block(names, heads, cells)
    if _widest(narrower) <= width:
        return narrower
    columns = _widths(heads, cells)
    longest = max(columns_of(name[0]) for name in names)
    room = max(_SHORTEST_NAME, width - _INDENT - sum(size + _GAP for size in columns))
    names = [_broken(name[0], room) for name in names] if room < longest else names
    taken = _INDENT + max(columns_of(line) for name in names for line in name)
    lines: list[str] = []
    for begin, end in _spans([size + _GAP for size in columns], width - taken):
        lines += [""] if lines else []
        lines += _block(names, heads[begin:end], [row[begin:end] for row in cells])
    return lines


def _spans(sizes: list[int], room: int) -> list[tuple[int, int]]:
    """Return from where to where each block of columns goes: as few blocks as possible, and about equally many each."""
    starts, left = [0], room
    for number, size in enumerate(sizes):
        if size > left and number > starts[-1]:
            starts.append(number)
            left = room
        left -= size
    each = -(-len(sizes) // len(starts))
    even = list(range(0, len(sizes), each))
    if all(sum(sizes[start : start + each]) <= room for start in even):
        starts = even
    return list(zip(starts, [*starts[1:], len(sizes)], strict=True))


def _broken(name: str, room: int) -> list[str]:
    """Break a name after commas and blanks; put together again, the lines are the name."""
    lines = [""]
    for part in re.findall(r"[^, ]+[, ]*|[, ]+", name):
        if lines[-1] and columns_of(lines[-1] + part.rstrip()) > room:
            lines.append(" " * _GAP)
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _block(names: list[list[str]], heads: list[list[str]], cells: list[tuple[str, ...]]) -> list[str]:
    """Return aligned lines: names to the left and numbers to the right, on the first line of each name."""
    left = max(columns_of(line) for name in names for line in name)
    widths = _widths(heads, cells)
    height = max(map(len, heads), default=0)
    raised = [[""] * (height - len(head)) + head for head in heads]  # the last word stands above the numbers
    lines = [_line("", left, level, widths) for level in zip(*raised, strict=True)]
    for name, row in zip(names, cells, strict=True):
        lines.append(_line(name[0], left, row, widths))
        lines += [_line(more, left, (), ()) for more in name[1:]]
    return lines


def _widths(heads: list[list[str]], cells: list[tuple[str, ...]]) -> list[int]:
    """Return how wide each column of numbers is."""
    columns = list(zip(*cells, strict=True))
    words = heads or [[] for _ in columns]
    return [max(map(columns_of, (*column, *head))) for column, head in zip(columns, words, strict=True)]


def _line(name: str, left: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (" " * (size - columns_of(cell)) + cell for cell, size in zip(cells, widths, strict=True))
    return (" " * _GAP).join((" " * _INDENT + name + " " * (left - columns_of(name)), *padded)).rstrip()


def _widest(lines: list[str]) -> int:
    return max(map(columns_of, lines))


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
            parts.append(_html_row(row, _BAR[number % len(_BAR)] if number < len(sheet.bar) else None))
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
