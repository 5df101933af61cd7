"""One prediction at a time: another thread's waits, except where the running one may be waiting for that thread."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import UnavailableError

from .patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_lock = threading.Lock()
_inside: list[threading.Thread] = []
"""The thread in which a prediction runs, and those that were started from there meanwhile."""


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Have no other prediction run meanwhile; one inside of this one, in the same thread, is part of it.

    Raises:
        UnavailableError: the prediction that is running has started this thread.
    """
    __tracebackhide__ = True
    me = threading.current_thread()
    if me in _inside:
        if me is not _inside[0]:
            raise UnavailableError(
                "a prediction is running, and this thread was started in it; predict in the thread that started it, or "
                "when the prediction has ended"
            )
        yield
        return
    with _lock, contextlib.ExitStack() as undo:
        undo.callback(_inside.clear)
        _inside.append(me)
        patches = Patches()
        undo.callback(patches.undo)
        patches.set(threading.Thread, "start", _noting(threading.Thread.start))
        yield


def _noting(start: Callable[[threading.Thread], None]) -> Any:
    @functools.wraps(start)
    def noting(thread: threading.Thread) -> None:
        if threading.current_thread() in _inside:
            _inside.append(thread)
        start(thread)

    return noting
