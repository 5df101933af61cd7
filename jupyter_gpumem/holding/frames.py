"""Frames: which run now, which are the notebook's own, and which ones a frame that has ended keeps.

A frame that has ended keeps the frame that called it, and so all of its local variables: an error that is kept holds
those of every caller, also of callers that its traceback does not show.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING, Any, cast

from .classes import is_a, module_of, name_of
from .tensors import attributes_of

if TYPE_CHECKING:
    from collections.abc import Collection

_MACHINERY = frozenset(
    {
        "IPython",
        "_pytest",
        "asyncio",
        "concurrent",
        "debugpy",
        "ipykernel",
        "jupyter_client",
        "jupyter_gpumem",
        "execnet",
        "nest_asyncio",
        "pluggy",
        "runpy",
        "selectors",
        "socketserver",
        "threading",
        "tornado",
        "traitlets",
        "zmq",
    }
)
"""Packages whose running functions are the notebook itself or a test runner, or we."""


def is_machinery(frame: types.FrameType) -> bool:
    """Whether a frame is one of the notebook's, of a test runner's, or ours."""
    name = dict.get(frame.f_globals, "__name__")
    return type(name) is str and name.partition(".")[0] in _MACHINERY


def running() -> frozenset[int]:
    """Return the ids of all frames that run now, in every thread."""
    found = set()
    # No name may keep this very frame: it would keep itself then.
    for frame in cast("dict[int, types.FrameType | None]", sys._current_frames()).values():
        while frame is not None:
            found.add(id(frame))
            frame = frame.f_back  # noqa: PLW2901
    return frozenset(found)


def machinery_around(frame: types.FrameType, runs: Collection[int]) -> list[Any]:
    """Return the notebook's frames that a frame which has ended keeps, and where these keep the results of cells.

    They are there as long as that frame is. The results keep the last error, as the notebook itself does.
    """
    found: list[Any] = []
    # Not `f_back`: for a frame that runs, it makes the objects of the frames around it.
    callers = _frames_in(gc.get_referents(frame))
    while callers:
        caller = callers.pop()
        if id(caller) in runs or not is_machinery(caller) or any(one is caller for one in found):
            continue
        found.append(caller)
        kept = gc.get_referents(caller)
        cells = [item for item in kept if is_a(item, types.CellType)]
        found += cells
        for item in kept + [value for cell in cells for value in gc.get_referents(cell)]:
            if is_result(type(item)):
                found += [item, attributes_of(item)]
        callers += _frames_in(kept)
    return found


def _frames_in(items: list[Any]) -> list[types.FrameType]:
    return [item for item in items if type(item) is types.FrameType]


def is_result(kind: type) -> bool:
    """Whether a type is that of what IPython keeps about a cell that ran."""
    return name_of(kind) == "ExecutionResult" and module_of(kind) == "IPython.core.interactiveshell"
