"""Whether somebody looks at the panel, as far as the kernel can know."""

from __future__ import annotations

import math

SILENCE = 75.0
"""Seconds without a sign of life after which a view is taken to be gone; views give one each 30 s."""


class Attention:
    """What the views say of themselves. A page that is closed says nothing, so a silent view is forgotten.

    Messages from the browser wait while a cell runs, so only silence between cells counts.

    """

    def __init__(self) -> None:
        self._views: dict[str, int] = {}
        self._heard = -math.inf

    def note(self, view: str, slot: int | None, now: float) -> None:
        """A view looks at a device, or at nothing (`None`)."""
        self._heard = now
        if slot is None:
            self._views.pop(view, None)
        else:
            self._views[view] = slot

    def busy(self, now: float) -> None:
        """A cell runs: what the browser says meanwhile comes later."""
        self._heard = max(self._heard, now)

    def slots(self, now: float) -> tuple[int, ...]:
        """Return the devices that somebody looks at."""
        if self._views and now - self._heard > SILENCE:
            self._views.clear()
        return tuple(sorted(set(self._views.values())))

    def anyone(self, now: float) -> bool:
        """Whether anyone looks."""
        return bool(self.slots(now))
