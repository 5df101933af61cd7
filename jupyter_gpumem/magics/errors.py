"""What happens when a cell fails: an out-of-memory error is explained below its traceback, a lost context is noted.

The traceback itself is IPython's, and stays as it is; nothing is done while it is being shown.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from jupyter_gpumem.errors import UnavailableError
from jupyter_gpumem.importing import TorchImportWatch

from .cells import open_panel

if TYPE_CHECKING:
    import argparse

    from jupyter_gpumem.records import Measurement, OomExplanation, Record, Series

    from .session import Session


class ErrorWatch:
    """The hooks of a session around cells that fail."""

    def __init__(self, session: Session) -> None:
        self._free = False
        self._session = session
        self._shown_before: WeakKeyDictionary[Any, int | None] = WeakKeyDictionary()  # by IPython's info of a cell
        self._import_watch = TorchImportWatch(_observe)

    @property
    def free(self) -> bool:
        """Whether the frames of a cell that failed are released at once."""
        return self._free

    @free.setter
    def free(self, on: bool) -> None:
        from jupyter_gpumem.incidents import release_errors

        self._free = on
        release_errors(on=on)

    def load(self) -> None:
        """Add the hooks. After those that measure cells: the report of a cell comes before the explanation."""
        events = self._session.shell.events
        events.register("pre_run_cell", self._before)
        events.register("post_run_cell", self._after)
        self._watch_import()  # the rest of the cell that loads us may import torch and run out of memory

    def unload(self) -> None:
        """Remove them, give `%debug` back, and forget the last explanation and what it was made from."""
        events = self._session.shell.events
        events.unregister("pre_run_cell", self._before)
        events.unregister("post_run_cell", self._after)
        self._import_watch.remove()
        if notebook := sys.modules.get("jupyter_gpumem.notebook"):
            notebook.restore_debug(self._session.shell)
        if observer := sys.modules.get("jupyter_gpumem.oom.observer"):
            observer.forget()
            observer.stop_waiting()
        if incidents := sys.modules.get("jupyter_gpumem.incidents"):
            incidents.forget_oom()
            incidents.release_errors(on=False)

    def _before(self, info: Any) -> None:
        """See to it that the state is kept when memory runs out in the cell. On `pre_run_cell`."""
        self._shown_before[info] = number_of_last()
        if "torch" in sys.modules:
            _observe()
        else:
            self._watch_import()

    def _watch_import(self) -> None:
        """Do the same as soon as torch is imported, if it is not yet."""
        if "torch" not in sys.modules:
            self._import_watch.remove()  # a cell within a cell finds it there
            self._import_watch.install()

    def _after(self, result: Any) -> None:
        """Explain, note or release what made the cell fail. On `post_run_cell`."""
        self._import_watch.remove()
        error = self.error_of(result)
        if error is None or error is getattr(result, "error_before_exec", None) or "torch" not in sys.modules:
            return
        if self._is_captured():
            return  # the cell around explains it, below the traceback
        from jupyter_gpumem import devices

        if devices.note_loss(error):
            text = devices.lost_context() or ""
            self._session.show_text(f"{text[0].upper()}{text[1:]}.")
            return
        self._explain(error, result.execution_count if result.info.store_history else None)
        if self.free and devices.lost_context() is None:
            from jupyter_gpumem.letting_go import free
            from jupyter_gpumem.notebook import Notebook

            try:
                # ipykernel still needs the error for its reply, but not the frames.
                free(outputs=False, cycles=False, cache=False, notebook=Notebook(self._session.shell))
            except KeyboardInterrupt:
                self._session.show_text("Letting go of the error was interrupted; %gpumem_free does it.")

    def error_of(self, result: Any) -> BaseException | None:
        """Return what a cell failed with: what ended it, or else an error that IPython showed in it and went on."""
        if result is None:
            return None
        error: BaseException | None = result.error_in_exec or result.error_before_exec
        if error is None and result.info in self._shown_before:
            error = shown_since(self._shown_before[result.info])
        return error

    def _is_captured(self) -> bool:
        """Whether what is displayed is captured (`%%capture`), but not tracebacks, which a kernel sends by itself."""
        shell = self._session.shell
        sends_tracebacks = type(shell)._showtraceback is not InteractiveShell._showtraceback
        return sends_tracebacks and isinstance(shell.display_pub, CapturingDisplayPublisher)

    def stored(self, error: BaseException, name: str, record: Any, handled: BaseException | None = None) -> None:
        """Have the result of what an error ended say why, if the error is explained and the result is still there.

        Its report stands above already: what is shown right above the explanation need not say the same.
        """
        from jupyter_gpumem.incidents import wait_for_reason

        def tell(found: OomExplanation) -> None:
            if self._session.shell.user_ns.get(name) is record:
                self._session.shell.push({name: _with_reason(record, found)})  # type: ignore[no-untyped-call]

        wait_for_reason(error, tell, handled)

    def _explain(self, error: BaseException, cell: int | None) -> None:
        from jupyter_gpumem import devices, oom
        from jupyter_gpumem.incidents import note_oom

        shown = oom.explained(error) is not None
        released = self.free and devices.lost_context() is None
        interrupted = False
        try:
            found = oom.explain_error(error, released=released)
        except KeyboardInterrupt:
            interrupted, found = True, oom.explain_error(error, released=released, search=False)
        if found is None:
            return
        note_oom(found, cell)
        if interrupted:
            self._session.show_text("Explaining the error was interrupted; %gpumem_oom shows what is known.")
        elif not shown:
            self._session.show(found)
        if panel := open_panel():
            panel.explained(found)


def _observe() -> None:
    from jupyter_gpumem.oom.observer import observe

    observe()


def number_of_last() -> int | None:
    """Return what the error that the session showed last is known by, or `None` if there was none."""
    if not hasattr(sys, "last_value"):
        return None
    from jupyter_gpumem import incidents

    return incidents.number_of_last()


def shown_since(number: int | None) -> BaseException | None:
    """Return the last error that IPython has shown since `number_of_last` returned this, or `None`.

    It shows an error that it does not let through: that of a script (`%run`), or of what formats a value.
    """
    shown: BaseException | None = getattr(sys, "last_value", None)  # none where it was released meanwhile
    return None if number_of_last() == number else shown


def _with_reason(record: Measurement | Series, found: OomExplanation) -> Record:
    """Return a result that says why memory ran out in it; of several runs, in the last one."""
    from jupyter_gpumem.records import Series

    if isinstance(record, Series):
        return Series((*record.runs[:-1], replace(record.runs[-1], oom=found)))
    return replace(record, oom=found)


def explain(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Record | None:  # noqa: ARG001
    """Run `%gpumem_oom`.

    Raises:
        UnavailableError: nothing has run out of memory.
    """
    from jupyter_gpumem.oom import latest_oom

    from .gpumem import deliver

    last = latest_oom()
    if last is None:
        raise UnavailableError("there was no out-of-memory error in this session; it is explained when there is one")
    return deliver(session, options, last.explanation)
