"""What the virtual GPU is and what it has assumed so far, as a record."""

from __future__ import annotations

from jupyter_gpumem.records import Device, VirtualCard, VirtualStatus

from .session import active


def summary() -> VirtualStatus:
    """Return the cards that are on, and every place where something was assumed; nothing while none is on."""
    gpu = active()
    if gpu is None:
        return VirtualStatus(())
    cards = tuple(
        VirtualCard(
            Device("cuda", index, card.label, card.total, virtual=True),
            capability=card.capability,
            context=card.context,
            context_seen=card.context_seen,
            used=index in gpu.memory.ready,
        )
        for index, card in enumerate(gpu.cards)
    )
    return VirtualStatus(cards, tuple(map(str, gpu.notes)))
