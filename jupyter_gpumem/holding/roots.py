"""Where holding begins, in the order in which a holder is named: the user's own names first."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, cast

from jupyter_gpumem.notebook import CONVENIENCES, LAST_ERROR

from .classes import is_a
from .edges import local_names, loop_types, namespace_of, task_type
from .frames import is_machinery
from .ranking import Root
from .tensors import attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from jupyter_gpumem.notebook import Notebook

    from .walk import Walk


def of_names(notebook: Notebook, walk: Walk) -> list[Root]:
    """Let the walk reach everything from names, outputs, the last error and running functions; returns the roots."""
    roots: list[Root] = []

    def add(kind: str, rank: int, name: str, *values: Any) -> None:
        roots.append(Root(kind, name, rank, walk.enter(values)))

    for name, value in notebook.variables():
        add("variable", 0, name, value)
    for output in notebook.outputs():
        add("output", 1, output.name, output.value)
    for label, value in _error_locals(notebook):
        add("error", 2, label, value)
    for error in notebook.exceptions():
        add("error", 2, f"the last error ({type(error).__name__}) itself", error)
    kept = (*notebook.tracebacks(), *notebook.debugger_frames(), *notebook.debugger_values())
    add("error", 2, "the last error's frames", *kept)
    for label, value in _running_locals(notebook):
        add("frame", 3, label, value)
    walk.expand()
    return roots


def of_modules(notebook: Notebook, walk: Walk) -> list[Root]:
    """Let the walk reach everything from the modules of the process; returns the roots."""
    ours = __name__.partition(".")[0]
    roots = [
        Root("module", f"module {name}", 4, walk.enter(_values_of(module)), names)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] != ours
        and (names := attributes_of(module)) is not None
        and names is not notebook.names
    ]
    walk.expand(classes=True)
    return roots


def _values_of(module: Any) -> list[Any]:
    """Return what a module's names are bound to, but for the last error and its frames, which are the notebook's."""
    others = (*LAST_ERROR, CONVENIENCES) if module is sys else (CONVENIENCES,)
    return [value for name, value in list(vars(module).items()) if name not in others]


def _error_locals(notebook: Notebook) -> Iterator[tuple[str, Any]]:
    """Yield the local names of the last error's frames, each frame once, with a label."""
    seen = set()
    # IPython and its debugger keep the frames of the error that they showed last, also when a later one had none.
    others = "an earlier error" if notebook.exceptions() else "the last error"
    for kind, frame, line in _error_frames(notebook):
        if id(frame) in seen or namespace_of(frame) is notebook.names or is_machinery(frame):
            continue
        seen.add(id(frame))
        error = f"the last error ({kind})" if kind else others
        for name, value in local_names(frame).items():
            yield f"{error}, function {frame.f_code.co_name}, line {line}: {name}", value


def _error_frames(notebook: Notebook) -> Iterator[tuple[str, FrameType, int]]:
    heads = [(type(error).__name__, error.__traceback__) for error in notebook.exceptions()]
    for kind, head in (*heads, *(("", head) for head in notebook.tracebacks())):
        traceback = head
        while traceback is not None:
            yield kind, traceback.tb_frame, traceback.tb_lineno
            traceback = traceback.tb_next
    for frame in notebook.debugger_frames():
        yield "", frame, frame.f_lineno


def of_tasks(walk: Walk, leading: Mapping[int, Any]) -> list[Root]:
    """Let the walk reach all from tasks that wait and event loops, of those that lead to something; returns the roots.

    An event loop is what keeps a task that a name of the notebook leads to, too, and what is to be called later.
    """
    kind, loops = task_type(), loop_types()
    tasks = [item for item in leading.values() if kind is not None and is_a(item, kind)]
    found = [Root("frame", f"the waiting task {kind.get_name(task)}", 3, walk.enter([task])) for task in tasks]
    those = [item for item in leading.values() if id(type(item)) in loops]
    found += [Root("frame", "the event loop", 3, walk.enter([loop], loops=True)) for loop in those]
    walk.expand()
    return found


def _running_locals(notebook: Notebook) -> Iterator[tuple[str, Any]]:
    """Yield the local names of the functions that run now, in every thread."""
    for frame, where in _running(notebook):
        for name, value in local_names(frame).items():
            yield f"running function {frame.f_code.co_name}{where}, line {frame.f_lineno}: {name}", value


def running_frames(notebook: Notebook) -> Iterator[FrameType]:
    """Yield the frames of the functions that run now and are roots, in every thread."""
    return (frame for frame, _ in _running(notebook))


def _running(notebook: Notebook) -> Iterator[tuple[FrameType, str]]:
    """Yield the frames of the functions that run now with where that is; not the notebook's machinery, nor ours."""
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    # No name may keep this very frame: it would keep itself then, and with its callers' frames all that was found.
    for ident, frame in cast("dict[int, FrameType | None]", sys._current_frames()).items():
        where = "" if ident == own else f" in thread {threads.get(ident, ident)}"
        while frame is not None:
            if namespace_of(frame) is not notebook.names and not is_machinery(frame):
                yield frame, where
            frame = frame.f_back  # noqa: PLW2901
