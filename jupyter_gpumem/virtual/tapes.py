"""What happened in a card's memory, and what each allocation was for."""

from __future__ import annotations

from dataclasses import dataclass, field

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
ACTIVATIONS, TEMPORARIES, WORKSPACES = "activations", "optimizer temporaries", "workspaces"
OTHER = "other"
PARTS = (PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, TEMPORARIES, WORKSPACES, OTHER)

BEFORE, FORWARD, BACKWARD, STEP, ELSEWHERE = "before the cell", "forward pass", "backward pass", "optimizer step", ""

EMPTIED = 0


@dataclass(slots=True)
class Tape:
    """What happened in a card's memory.

    Attributes:
        events: `n` for the allocation of number `n` (from 1), `-n` for its end, 0 where the cache was emptied.
        sizes: the bytes that each allocation asked for, by number.
        held: the bytes it was given.
        streams: the stream it was made on.
        parts: what it was for, one of `PARTS`.
        lines: the line of the user's code, or 0.
        phases: what was going on.
        libraries: the library, where it is a workspace of one.
    """

    events: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0])
    held: list[int] = field(default_factory=lambda: [0])
    streams: list[int] = field(default_factory=lambda: [0])
    parts: list[str] = field(default_factory=lambda: [OTHER])
    lines: list[int] = field(default_factory=lambda: [0])
    phases: list[str] = field(default_factory=lambda: [BEFORE])
    libraries: dict[int, str] = field(default_factory=dict)

    def peak(self) -> tuple[int, int]:
        """Return the most that was allocated, in bytes, and the number of the allocation that led there (or 0)."""
        now = most = at = 0
        for event in self.events:
            if event > 0:
                now += self.held[event]
                if now > most:
                    most, at = now, event
            else:
                now -= self.held[-event]
        return most, at

    def parts_at(self, number: int) -> dict[str, int]:
        """Return the bytes of each part right after an allocation."""
        live: dict[int, None] = {}
        for event in self.events:
            if event > 0:
                live[event] = None
                if event == number:
                    break
            elif event:
                del live[-event]
        found = dict.fromkeys(PARTS, 0)
        for one in live:
            found[self.parts[one]] += self.held[one]
        return found
