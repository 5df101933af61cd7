"""What a notebook itself keeps: its names, its outputs and its last error. The shell is found, never imported."""

from __future__ import annotations

import builtins
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LAST_ERROR = ("last_exc", "last_value", "last_type", "last_traceback")
"""Names in `sys` under which Python keeps the error that was shown last."""

CONVENIENCES = "__pdb_convenience_variables"
"""The global name under which Python's debugger keeps the frame at hand, from Python 3.12 on, in the module of each."""

_UNDERSCORES = ("_", "__", "___")
_DEBUGGED_FRAMES = ("botframe", "curframe", "stopframe", "returnframe")
_DEBUGGED_VALUES = ("curframe_locals", "displaying")
"""What else a debugger keeps: the local names of the frame at hand, and values that it is to display."""


@dataclass(slots=True, eq=False)
class Output:
    """A value that was displayed, and the names under which the notebook keeps it."""

    value: Any
    names: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What a person calls it: `Out[3]`."""
        return self.names[0]


class Notebook:
    """The interactive session of this process, or the main module of a script.

    Args:
        shell: IPython's shell, or `None` in a script.
        error: an error that is being handled, and not kept by the session yet.
    """

    def __init__(self, shell: Any = None, error: BaseException | None = None) -> None:
        self.shell = shell
        self._handled = error
        self.names: dict[str, Any] = shell.user_ns if shell is not None else vars(sys.modules["__main__"])
        self.hidden: dict[str, Any] = shell.user_ns_hidden if shell is not None else {}

    @classmethod
    def current(cls, error: BaseException | None = None) -> Notebook:
        """Return the session of this process, with an error that is being handled, if there is one."""
        return cls(_shell(), error)

    def variables(self) -> Iterator[tuple[str, Any]]:
        """Yield the user's own names and what they are bound to."""
        displayed = vars(self.shell.displayhook) if self.shell is not None else {}
        for name, value in list(self.names.items()):
            if not issubclass(type(name), str):  # anything can be a key of `globals()`
                yield f"globals()[a {type(name).__name__}]", value
                continue
            name = str.__str__(name)  # noqa: PLW2901 - without what a class of the user's does about it
            if name.startswith("__") and name.endswith("__") and not (self.shell is not None and name in _UNDERSCORES):
                continue
            if name in self.hidden and self.hidden[name] is value:
                continue
            if name in _UNDERSCORES and displayed.get(name) is value:
                continue
            if name == CONVENIENCES:
                continue
            yield name, value

    def outputs(self) -> list[Output]:
        """Return the values that were displayed and are still kept, the oldest first."""
        if self.shell is None:
            return []
        found: dict[int, Output] = {}
        for place, key, name in self._output_places():
            value = place.get(key)
            if value is None or issubclass(type(value), str):  # `isinstance` would ask a lazy proxy
                continue
            output = found.setdefault(id(value), Output(value))
            if name not in output.names:
                output.names.append(name)
        return list(found.values())

    def _output_places(self) -> Iterator[tuple[dict[Any, Any], Any, str]]:
        """Yield every place that a displayed value is kept in: a dict, the key in it, and the name."""
        kept = self.names.get("_oh", {})
        for number in sorted(kept):
            yield kept, number, f"Out[{number}]"
        numbered = [f"_{number}" for number in kept]
        hook = vars(self.shell.displayhook)
        for name in _UNDERSCORES:
            # A name that the user bound to something else is not IPython's.
            if self.names.get(name) is hook.get(name):
                yield self.names, name, name
            yield self.hidden, name, name
            yield hook, name, name
        for name in (*numbered, *(key for key in self.hidden if key[:1] == "_" and key[1:].isdecimal())):
            yield self.names, name, name
            yield self.hidden, name, name
        result = getattr(self.shell, "last_execution_result", None)
        if result is not None:
            yield vars(result), "result", "the last cell's result"

    def drop_outputs(self, names: Iterable[str]) -> None:
        """Forget displayed values in every place; others stay, and the user's own names too.

        Args:
            names: what `Output.name` calls them.
        """
        wanted = frozenset(names)
        gone = {id(output.value) for output in self.outputs() if output.name in wanted}
        for place, key, _ in list(self._output_places()):
            if key in place and id(place[key]) in gone:
                if key in _UNDERSCORES or key == "result":
                    # As IPython does when it flushes its outputs; all places must agree, or it believes the name ours.
                    place[key] = None if key == "result" else ""
                else:
                    del place[key]

    def exceptions(self) -> list[BaseException]:
        """Return the last error and every one chained to it or grouped in it, as far as the notebook keeps them."""
        result = getattr(self.shell, "last_execution_result", None)
        kept = [self._handled, *(getattr(sys, name, None) for name in LAST_ERROR[:2])]
        kept += [getattr(result, name, None) for name in ("error_in_exec", "error_before_exec")]
        return chained(*(error for error in kept if isinstance(error, BaseException)))

    def tracebacks(self) -> list[Any]:
        """Return the tracebacks that are kept beside the exceptions they belong to."""
        kept = [getattr(sys, "last_traceback", None), getattr(self._formatter(), "tb", None)]
        return [traceback for traceback in kept if traceback is not None]

    def debugger_frames(self) -> list[Any]:
        """Return the frames that an ended `%debug` still keeps."""
        kept = self._debugger()
        return [frame for frame in map(kept.get, _DEBUGGED_FRAMES) if frame is not None]

    def debugger_values(self) -> list[Any]:
        """Return what keeps local variables of such frames, in dicts."""
        kept = [*map(self._debugger().get, _DEBUGGED_VALUES)]
        kept += [names[CONVENIENCES] for names in self._namespaces() if CONVENIENCES in names]
        return [values for values in kept if values is not None and values is not self.names]

    def _debugger(self) -> dict[str, Any]:
        """Return the attributes of the debugger that `%debug` has used; empty if there is none."""
        return vars(debugger) if (debugger := getattr(self._formatter(), "pdb", None)) is not None else {}

    def _namespaces(self) -> Iterator[dict[str, Any]]:
        """Yield the global names of the notebook and of every module."""
        yield self.names
        for module in list(sys.modules.values()):
            if issubclass(type(module), ModuleType):  # anything can be in there
                yield object.__getattribute__(module, "__dict__")  # a lazy one would be imported

    def keepers(self) -> list[Any]:
        """Return the shell's objects that keep outputs, the last error and its frames."""
        formatter = self._formatter()
        kept = [getattr(self.shell, "last_execution_result", None), formatter, getattr(formatter, "pdb", None)]
        return [keeper for keeper in kept if keeper is not None]

    def _formatter(self) -> Any:
        return getattr(self.shell, "InteractiveTB", None)

    def drop_error(self, keep: Iterable[BaseException] = ()) -> None:
        """Forget the last error's frames in every place.

        Args:
            keep: exceptions that the user's own variables hold, whose tracebacks are not touched.
        """
        kept = {id(error) for error in keep}
        for error in self.exceptions():
            if id(error) not in kept:
                drop_traceback(error)  # a frame may hold the exception, which would hold the frame
        for name in LAST_ERROR:
            if hasattr(sys, name):
                delattr(sys, name)
        formatter = self._formatter()
        if formatter is not None:
            formatter.tb = None
            debugger = getattr(formatter, "pdb", None)
            if debugger is not None:
                debugger.reset()
                debugger.displaying.clear()
                self._debugger().update(dict.fromkeys((*_DEBUGGED_FRAMES, "curframe_locals")))
        for names in self._namespaces():
            names.pop(CONVENIENCES, None)
        result = getattr(self.shell, "last_execution_result", None)
        if result is not None and (result.error_in_exec or result.error_before_exec):
            self.shell.last_execution_result = None
        if self.shell is not None:
            _explain_debug(self.shell)


_RELEASED = "%debug: the last error's frames were released by gpumem; run the failing cell again to debug it"


def _explain_debug(shell: Any) -> None:
    """Let `%debug` say why there is nothing to debug, until there is a new error or `restore_debug`."""
    restore_debug(shell)
    original = shell.debugger

    def debugger(force: bool = False) -> Any:  # noqa: FBT001, FBT002 - IPython's signature
        if getattr(sys, "last_traceback", None) is None:
            print(_RELEASED, file=sys.stderr)  # noqa: T201 - where IPython says that there is no traceback
            return None
        restore_debug(shell)
        return original(force=force)

    debugger.released = True  # type: ignore[attr-defined]
    shell.debugger = debugger


def restore_debug(shell: Any) -> None:
    """Give `%debug` back to IPython."""
    if getattr(vars(shell).get("debugger"), "released", False):
        del shell.debugger


def cell_of(filename: str) -> str | None:
    """Return what the notebook calls the cell that was compiled under a file name (`In[5]`); `None` if none was.

    From any thread. A cell that ran again has the number of its latest run, as in IPython's own tracebacks.
    """
    shell = _shell()
    named = None if shell is None else shell.compile.format_code_name(filename)
    return None if named is None else named[1]


def _shell() -> Any:
    """Return IPython's shell, if this process has one."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return find() if find is not None else None


_LINKS = tuple(vars(BaseException)[name].__get__ for name in ("__cause__", "__context__"))
"""What an error was raised from and during, whatever its class says: its own attributes could be properties."""


def chained(*errors: BaseException, handled: BaseException | None = None) -> list[BaseException]:
    """Return exceptions with all that they were raised from, during, or group; each once, the given ones first.

    Args:
        errors: where to begin.
        handled: what the caller was handling already when the code began that raised them. Python chains whatever is
            raised meanwhile to it, but it and what belongs to it are the caller's, and left out.
    """
    # Python 3.11's own, or the package's for Python 3.10.
    group: Any = getattr(builtins, "BaseExceptionGroup", None)
    group = group or getattr(sys.modules.get("exceptiongroup"), "BaseExceptionGroup", ())
    others = set() if handled is None else {id(error) for error in chained(handled)}
    found: dict[int, BaseException] = {}
    waiting = list(errors)
    while waiting:
        error = waiting.pop(0)
        if id(error) in found or id(error) in others:
            continue
        found[id(error)] = error
        waiting += [one for one in (link(error) for link in _LINKS) if one is not None]
        if issubclass(type(error), group):
            waiting += group.exceptions.__get__(error)
    return list(found.values())


def text_of(error: BaseException) -> str:
    """Return what an error says; where the code of its class fails at that, what Python writes in its place."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own code, and the error that it belongs to is not to be replaced
        return "<exception str() failed>"


def drop_traceback(error: BaseException) -> None:
    """Let go of the frames of an error, also where its class does not let attributes be set: a frozen dataclass."""
    BaseException.with_traceback(error, None)


def add_note(error: BaseException, text: str) -> None:
    """Have a text shown below the traceback of an error, from Python 3.11 on; also of such a class."""
    notes = vars(error).setdefault("__notes__", [])
    if isinstance(notes, list):  # otherwise Python refuses, and shows none
        notes.append(text)
