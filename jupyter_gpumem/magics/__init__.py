"""The magics: the only part that knows IPython. Each file holds one group; this one lists them and loads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import gpumem
from .session import Magic, Session

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

MAGICS = (
    Magic(gpumem.OPTIONS, gpumem.line, gpumem.cell),
    Magic(gpumem.AUTO_OPTIONS, gpumem.auto),
)

_sessions: dict[int, Session] = {}


def load(shell: InteractiveShell) -> None:
    """Add everything to a shell; a second load replaces the first."""
    unload(shell)
    session = _sessions[id(shell)] = Session(shell, MAGICS)
    session.load()


def unload(shell: InteractiveShell) -> None:
    """Take everything away from a shell; harmless if there is nothing."""
    session = _sessions.pop(id(shell), None)
    if session is not None:
        session.unload()
