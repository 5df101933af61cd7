"""A progress bar of one line, for work that takes more than a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_WIDTH = 24


class Progress:
    """Call it with `(done, planned)`; it writes a line at most ten times a second, and none in the first second.

    Args:
        write: gets the line, to be shown in the place of the one before.
        clear: called at the end if anything was written.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        clear: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clear = clear
        self._clock = clock
        self._next = clock() + 1.0
        self._written = False

    def __call__(self, done: int, planned: int) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + 0.1
        self._written = True
        filled = _WIDTH * done // max(1, planned)
        self._write(f"replaying [{'#' * filled}{'.' * (_WIDTH - filled)}] {done} of {planned} settings")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._written and self._clear is not None:
            self._clear()
