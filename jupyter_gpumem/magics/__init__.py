"""The magics: the only part that knows IPython. `catalogue` lists them; loading registers them in a `Session`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .catalogue import MAGICS
from .session import Session

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_sessions: dict[int, Session] = {}


def load(shell: InteractiveShell) -> None:
    """Add everything to a shell; a second load replaces the first."""
    unload(shell)
    session = _sessions[id(shell)] = Session(shell, MAGICS)
    session.load()


def unload(shell: InteractiveShell) -> None:
    """Take everything away from a shell; harmless if there is nothing.

    Raises:
        UsageError: a prediction is running; nothing is taken away then.
    """
    session = _sessions.get(id(shell))
    if session is not None:
        session.check_idle()
        del _sessions[id(shell)]
        try:
            session.unload()
        finally:  # IPython, for its part, would take it for loaded after an error
            loaded: set[str] = shell.extension_manager.loaded  # type: ignore[union-attr]
            loaded.discard("jupyter_gpumem")
