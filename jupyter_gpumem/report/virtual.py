"""The virtual GPU as sheets: what it is, what is known and what is assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.units import format_bytes

from .sheet import Sheet

if TYPE_CHECKING:
    from jupyter_gpumem.records import VirtualCard, VirtualStatus

_ABOUT = (
    "Nothing is computed on it: tensors have a shape and a type but no values, and their memory is modelled. "
    "%gpumem_virtual off ends it."
)
_MOST_NOTES = 10


def virtual_sheets(status: VirtualStatus) -> list[Sheet]:
    """Return one sheet for each card, and one that says what all have in common."""
    if not status.cards:
        return [Sheet(("No virtual GPU is on",), notes=("%gpumem_virtual on --gpu NAME gives this session one.",))]
    sheets = [_card_sheet(card) for card in status.cards]
    notes = [_ABOUT, *status.notes[:_MOST_NOTES]]
    if len(status.notes) > _MOST_NOTES:
        notes.append(f"{len(status.notes) - _MOST_NOTES} more places where a value was assumed.")
    sheets[-1] = Sheet(sheets[-1].heading, notes=(*sheets[-1].notes, *notes))
    return sheets


def _card_sheet(card: VirtualCard) -> Sheet:
    device = card.device
    source = "as seen on such a card" if card.context_seen else "assumed"
    major, minor = card.capability
    note = (
        f"Compute capability {major}.{minor}; the CUDA context takes {format_bytes(card.context)} ({source})"
        f"{'' if card.used else ' once the card is used'}."
    )
    return Sheet((device.label, device.name or "", format_bytes(device.total)), notes=(note,))
