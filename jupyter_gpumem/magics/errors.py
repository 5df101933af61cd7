"""What happens when a cell fails: an out-of-memory error is explained below its traceback, a lost context is noted.

The traceback itself is IPython's, and stays as it is; nothing is done while it is being shown.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import UnavailableError

if TYPE_CHECKING:
    import argparse

    from jupyter_gpumem.records import OomExplanation, Record

    from .session import Session


class ErrorWatch:
    """The hooks of a session around cells that fail.

    Attributes:
        free: whether the frames of a cell that failed are released at once.
        last: the explanation that was made last, or `None`.
    """

    def __init__(self, session: Session) -> None:
        self.free = False
        self.last: OomExplanation | None = None
        self._session = session

    def load(self) -> None:
        """Add the hooks. After those that measure cells: the report of a cell comes before the explanation."""
        events = self._session.shell.events
        events.register("pre_run_cell", self._before)
        events.register("post_run_cell", self._after)

    def unload(self) -> None:
        """Remove them, and give `%debug` back."""
        events = self._session.shell.events
        events.unregister("pre_run_cell", self._before)
        events.unregister("post_run_cell", self._after)
        if notebook := sys.modules.get("jupyter_gpumem.notebook"):
            notebook.restore_debug(self._session.shell)

    def _before(self, info: Any) -> None:  # noqa: ARG002
        """See to it that the state is kept when memory runs out in the cell. On `pre_run_cell`."""
        if "torch" in sys.modules:
            from jupyter_gpumem.oom.observer import observe

            observe()

    def _after(self, result: Any) -> None:
        """Explain, note or release what made the cell fail. On `post_run_cell`."""
        error = None if result is None else result.error_in_exec
        if error is None or "torch" not in sys.modules:
            return
        self._look_at(error)
        if self.free:
            from jupyter_gpumem.letting_go import free
            from jupyter_gpumem.notebook import Notebook

            # ipykernel still needs the error for its reply, but not the frames.
            free(outputs=False, cycles=False, cache=False, notebook=Notebook(self._session.shell))

    def _look_at(self, error: BaseException) -> None:
        from jupyter_gpumem import devices, oom

        lost = oom.lost(error)
        if lost is not None:
            devices.lose_context(lost)
            text = devices.lost_context() or ""
            self._session.show_text(f"{text[0].upper()}{text[1:]}.")
            return
        if oom.explained(error) is None and (found := oom.explain_oom(error)) is not None:
            self.last = found
            self._session.show(found)


def explain(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Record | None:  # noqa: ARG001
    """Run `%gpumem_oom`.

    Raises:
        UnavailableError: nothing has run out of memory.
    """
    from .gpumem import deliver

    if session.errors.last is None:
        raise UnavailableError("there was no out-of-memory error in this session; it is explained when there is one")
    return deliver(session, options, session.errors.last)
