"""What the parts of the facade share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .selection import Selection, StreamPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_gpumem.allocator.model import Allocator
    from jupyter_gpumem.virtual.cards import Card
    from jupyter_gpumem.virtual.memory import VirtualMemory


class State:
    """The virtual cards as the facade sees them.

    Args:
        memory: their memory.
        note: told what was asked for that a virtual card does not have, and what was given for it.

    Attributes:
        cards: the cards, by index.
        selection: which card and streams a thread uses.
        streams: where streams come from.
        pid: the process in which the cards are.
    """

    def __init__(self, memory: VirtualMemory, note: Callable[[str, str], object]) -> None:
        self.memory = memory
        self.note = note
        self.cards: tuple[Card, ...] = tuple(memory.cards)
        self.selection = Selection()
        self.streams = StreamPool()
        self.pid = os.getpid()

    def allocator(self, index: int) -> Allocator:
        """Return the allocator of a card."""
        return self.memory.allocators[index]

    def memory_info(self, index: int) -> tuple[int, int]:
        """Return free and total bytes of a card, as `cudaMemGetInfo` does; as with it, the card has a context then."""
        with self.memory.lock:
            self.memory.ready.add(index)
        total = self.cards[index].total
        return total - self.used(index), total

    def used(self, index: int) -> int:
        """Return the bytes of a card in use, by the context and the allocator; 0 without a context. Creates none."""
        if index not in self.memory.ready:
            return 0
        card, allocator = self.cards[index], self.allocator(index)
        free = allocator.driver.free
        # On trial there is no end to the memory; of the card itself so much would be in use.
        return min(card.total, card.context + allocator.reserved) if free is None else card.total - free
