"""The one object that holds the state of a loaded extension."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any

from IPython.core import magic as ipython_magic
from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.error import UsageError
from IPython.core.extensions import ExtensionManager

from jupyter_gpumem.errors import GpumemError
from jupyter_gpumem.finishing import run_all

from .cells import CellWatch, open_panel
from .errors import ErrorWatch
from .showing import show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from types import FrameType

    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_gpumem.records import Record

    from .catalogue import Magic
    from .options import Options

_MAGIC_CALL = r"(?:[^%]*=)?\s*%{0,2}(\w+)\s(.*)"


class Session:
    """A loaded extension: what it added to the shell, and what `unload` takes away.

    Args:
        shell: the IPython shell.
        magics: what to register.
    """

    def __init__(self, shell: InteractiveShell, magics: tuple[Magic, ...]) -> None:
        self.shell = shell
        self.cells = CellWatch(self)
        self.errors = ErrorWatch(self)
        self._magics = magics
        self._matcher = _matcher({magic.options.name: magic.options for magic in magics})

    def load(self) -> None:
        """Register the magics, their completion and the cell hooks."""
        for magic in self._magics:
            name = magic.options.name
            register: Any = self.shell.register_magic_function
            register(_line_function(self, magic), "line", name)
            if magic.cell is not None:
                register(_cell_function(self, magic, magic.cell), "cell", name)
        self.shell.Completer.custom_matchers.append(self._matcher)
        self.cells.load()
        self.errors.load()

    def check_idle(self) -> None:
        """Refuse to be unloaded under a prediction, which has still to put everything back.

        Raises:
            UsageError: one is running. IPython shows it as one line.
        """
        virtual = sys.modules.get("jupyter_gpumem.virtual.session")
        if virtual is not None and virtual.active() is not None:
            try:
                virtual.active().check_idle()
            except GpumemError as error:
                raise UsageError(f"jupyter_gpumem stays loaded: {error}") from None

    def unload(self) -> None:
        """Take everything away, in the reverse order, whatever a part of it raises; then raise the first error."""
        run_all(self._parts())

    def _parts(self) -> Iterator[Callable[[], object]]:
        """Yield what takes the parts away that are there."""
        yield self.errors.unload
        yield self.cells.unload
        yield self._unregister
        if live := sys.modules.get("jupyter_gpumem.live"):
            yield live.close
        if monitoring := sys.modules.get("jupyter_gpumem.control.monitoring"):
            yield monitoring.end_all
        reservation = sys.modules.get("jupyter_gpumem.control.reservation")
        if reservation is not None and not self._is_reloaded():
            yield reservation.RESERVATIONS.close
        if virtual := sys.modules.get(f"{__package__}.virtual"):
            yield lambda: virtual.switch_off(self)
        if recorder := sys.modules.get("jupyter_gpumem.recorder"):
            yield recorder.RECORDER.close
        if ledger := sys.modules.get("jupyter_gpumem.ledger"):
            yield ledger.LEDGER.detach

    def _unregister(self) -> None:
        self.shell.Completer.custom_matchers.remove(self._matcher)
        for magic in self._magics:
            name = magic.options.name
            for kind in ("line", "cell"):
                self.shell.magics_manager.magics[kind].pop(name, None)

    def _is_reloaded(self) -> bool:
        """Whether this is unloaded only to be loaded again: IPython says so nowhere else than on the stack."""
        reload = ExtensionManager.reload_extension.__code__
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not reload:
            frame = frame.f_back
        return frame is not None

    def show(self, record: Record, *, last: bool = False) -> None:
        """Show a record, as text and HTML in one display call; apart from what the user's code prints."""
        from jupyter_gpumem import report

        show(self.shell, report.mimebundle(record), last=last)

    def deliver(self, options: argparse.Namespace, record: Record, *, last: bool = False) -> Record | None:
        """Return or show a result, as `-o` and `-q` say."""
        if options.output:
            return record
        if not options.quiet:
            self.show(record, last=last)
        return None

    def show_text(self, text: str, *, last: bool = False) -> None:
        """Show lines that have no other form."""
        show(self.shell, {"text/plain": text}, last=last)


def _line_function(session: Session, magic: Magic) -> Any:
    def line_magic(line: str, local_ns: dict[str, Any] | None = None) -> Any:
        __tracebackhide__ = True
        return _call(session, magic.options, line, magic.line, local_ns)

    return ipython_magic.needs_local_scope(_dressed(line_magic, magic.options))


def _cell_function(session: Session, magic: Magic, run: str) -> Any:
    def cell_magic(line: str, cell: str) -> Any:
        __tracebackhide__ = True
        return _call(session, magic.options, line, run, cell)

    return _dressed(cell_magic, magic.options)


def _call(session: Session, options: Options, line: str, action: str, payload: object) -> Any:
    """Parse and act; our refusals become IPython's one-line `UsageError`, errors of the user's code and bugs pass."""
    __tracebackhide__ = True
    parsed = options.parse(line)
    if parsed.help:
        print(options.format_help())  # noqa: T201 - help goes where `print` goes, as that of other magics does
        return None
    try:
        if panel := open_panel():
            panel.check()
        return _function(action)(session, parsed, payload)
    except GpumemError as error:
        name_of_cell: Any = session.shell.compile.format_code_name
        if any(name_of_cell(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise  # it comes from the code that was measured, which uses this package too
        raise UsageError(f"%{options.name}: {error}") from None


def _function(reference: str) -> Callable[..., Any]:
    """Return what does the work of a magic, importing it at its first use."""
    module, _, name = reference.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(f".{module}", __package__), name)
    return function


class _WithHelp:
    """A magic's function, whose docstring is the help of its options, put together when somebody asks."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.__name__ = options.name
        self._function = function
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return self._function(*args, **kwargs)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self._options.format_help()


def _dressed(function: Callable[..., Any], options: Options) -> Any:
    """Return the function as IPython wants it: code of the user's unexpanded.

    Not `output_can_be_silenced`: a semicolon ends the user's code, whose value is dropped while it is measured; IPython
    would drop the result of `-o` too.
    """
    dressed = _WithHelp(function, options)
    return ipython_magic.no_var_expand(dressed) if options.takes_statement else dressed


def _matcher(options: dict[str, Options]) -> Callable[[CompletionContext], SimpleMatcherResult]:
    """Return what completes the magics' options and values.

    A matcher, because beside the older `complete_command` hook IPython would still offer every name of the notebook.
    """

    @context_matcher(identifier="jupyter_gpumem")  # type: ignore[untyped-decorator]
    def complete(context: CompletionContext) -> SimpleMatcherResult:
        match = re.match(_MAGIC_CALL, context.text_until_cursor)
        word = match[2].rpartition(" ")[2] if match else ""
        found = options[match[1]].complete(match[2], word) if match and match[1] in options else []
        completions = [SimpleCompletion(text=text, type="magic") for text in found]
        return {
            "completions": completions,
            "matched_fragment": word,
            "ordered": True,
            "suppress": True,
            "do_not_suppress": set(),
        }

    return complete  # type: ignore[no-any-return]
