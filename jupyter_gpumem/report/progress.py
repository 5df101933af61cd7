"""A progress bar of one line, for work that takes more than a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from .sheet import is_terminal

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

    @classmethod
    def on_terminal(cls, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> Progress:
        """Return one that writes to a terminal, and nothing if the stream is none."""
        terminal = is_terminal(stream)

        def write(text: str) -> None:
            if terminal:
                print(text, end="", file=stream, flush=True)

        return cls(lambda line: write(f"\r{line}\x1b[K"), lambda: write("\r\x1b[K"), clock)

    def __call__(self, done: int, planned: int) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + 0.1
        self._written = True
        filled = _WIDTH * done // max(1, planned)
        self._write(f"replaying [{'#' * filled}{'.' * (_WIDTH - filled)}] {done} of {planned}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._written and self._clear is not None:
            self._clear()
