"""The last out-of-memory error of this process that was explained: numbers and names, kept for whoever shows them."""

from __future__ import annotations

import time
from dataclasses import replace

from .records import OomExplanation, OomIncident

_last: list[OomIncident] = []


def note_oom(explanation: OomExplanation, cell: int | None = None) -> None:
    """Keep an explanation as the last one; of the one that is kept already, only which cell it was."""
    known = last_oom()
    if known is None or known.explanation is not explanation:
        _last[:] = [OomIncident(explanation, time.time(), cell)]
    elif known.cell is None:
        _last[:] = [replace(known, cell=cell)]


def last_oom() -> OomIncident | None:
    """Return the last one, or `None`."""
    return _last[-1] if _last else None


def forget_oom() -> None:
    """Drop it (`%unload_ext`)."""
    _last.clear()
