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
        note: told, in one sentence, what the facade cannot answer truly; once for each sentence.

    Attributes:
        cards: the cards, by index.
        selection: which card and streams a thread uses.
        streams: where streams come from.
        pid: the process in which the cards are.
    """

    def __init__(self, memory: VirtualMemory, note: Callable[[str], None]) -> None:
        self.memory = memory
        self.note = note
        self.cards: tuple[Card, ...] = tuple(memory.cards)
        self.selection = Selection()
        self.streams = StreamPool()
        self.pid = os.getpid()

    def allocator(self, index: int) -> Allocator:
        """Return the allocator of a card."""
        return self.memory.allocators[index]

    def finish(self, index: int) -> None:
        """Let all streams of a card finish: what they still used becomes free."""
        with self.memory.lock:
            self.allocator(index).complete_all()

    def memory_info(self, index: int) -> tuple[int, int]:
        """Return free and total bytes of a card, as `cudaMemGetInfo` does; as with it, the card has a context then."""
        with self.memory.lock:
            self.memory.ready.add(index)
            free = self.allocator(index).driver.free
        return free or 0, self.cards[index].total
