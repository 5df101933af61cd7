"""Why memory ran out, as a sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.units import format_bytes

from .sheet import Sheet

if TYPE_CHECKING:
    from jupyter_gpumem.records import OomAction, OomExplanation

_SEEN = {
    "afterwards": "The state is a later one: it was not kept when memory ran out.",
    "in the text only": "Only the error's text was there to read.",
}


def oom_sheets(record: OomExplanation) -> list[Sheet]:
    """Return the verdict, the numbers, and what would help."""
    heading = ("Out of memory", *([record.device] if record.device else []))
    rows = tuple((name, format_bytes(size)) for name, size in record.evidence)
    notes = [f"{record.sentence}.", *(f"{text}." for text in record.details)]
    notes += [f"{number}. {_action(action)}" for number, action in enumerate(record.actions, 1)]
    if record.seen in _SEEN:
        notes.append(_SEEN[record.seen])
    return [Sheet(heading, (), rows, tuple(notes))]


def _action(action: OomAction) -> str:
    text = f"{action.text[0].upper()}{action.text[1:]}"
    if action.gives is not None:
        text += f" ({format_bytes(action.gives)})"
    return f"{text}. Tried out in a model of the allocator: the request succeeds." if action.checked else f"{text}."
