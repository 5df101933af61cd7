"""Files that are open already when code runs on trial: what it writes to them goes elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import io
import logging
import os
import shutil
import stat
import tempfile
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.finishing import run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KINDS = (io.TextIOWrapper, io.BufferedRandom, io.BufferedWriter, io.BufferedReader, io.FileIO)
"""Outermost first: what one of them holds back, it hands to the next when it is flushed."""
_STANDARD = 2  # the last descriptor of the standard streams, which are somebody else's


class OpenFiles:
    """Open files of the user, and those of logging, whose descriptors lead elsewhere meanwhile.

    Python's own objects for a file stay what they are, and so does what they hold back: it is written before and after.

    Args:
        reachable: files that code can reach.
        alive: all files of the process: several of these may be of one descriptor.
    """

    def __init__(self, reachable: Iterable[Any], alive: Iterable[Any]) -> None:
        self._reachable, self._alive = reachable, alive
        self._aside: list[_Aside] = []
        self._handlers: list[tuple[Any, Any, Any]] = []

    def set_aside(self, open_elsewhere: Callable[..., Any]) -> None:
        """Have what is written go elsewhere, until `restore`.

        Args:
            open_elsewhere: `open`, as the code has it: a handler of logging that opens its file meanwhile has another.
        """
        for handler in (reference() for reference in list(logging._handlerList)):  # type: ignore[attr-defined]
            if isinstance(handler, logging.FileHandler):
                self._handlers.append((handler, handler.stream, vars(handler).get("_builtin_open", open)))
        streams = [stream for _, stream, _ in self._handlers]
        for descriptor in {_descriptor(file) for file in (*self._reachable, *streams)}:
            if descriptor is not None:
                files = [file for file in (*self._alive, *streams) if _descriptor(file) == descriptor]
                self._aside.append(_Aside(descriptor, files))
        for handler, _, _ in self._handlers:
            handler._builtin_open = open_elsewhere

    def restore(self) -> list[str]:
        """Have them where they were; returns a sentence for each that the code has closed."""
        notes: list[str] = []
        run_all(
            [
                *(functools.partial(aside.restore, notes) for aside in self._aside),
                *(functools.partial(_restore_handler, *known) for known in self._handlers),
            ]
        )
        self._aside.clear()
        self._handlers.clear()
        return notes


def _restore_handler(handler: Any, stream: Any, plain_open: Any) -> None:
    handler._builtin_open = plain_open
    if handler.stream is not stream and handler.stream is not None:
        handler.stream.close()
    # One that was closed, so that the file could be moved away, is opened again with the next message.
    handler.stream = None if stream is None or stream.closed else stream


class _Aside:
    """One descriptor: what it leads to is kept, and a temporary file takes its place."""

    def __init__(self, descriptor: int, files: list[Any]) -> None:
        self._descriptor = descriptor
        self._files = sorted(dict.fromkeys(files), key=lambda file: KINDS.index(type(file)))
        self._flush()
        self._places = [_place(file) for file in self._files]
        self._plain: int | None = None
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return
        with tempfile.TemporaryFile() as other:
            if flags & os.O_ACCMODE == os.O_RDWR:
                with open(f"/proc/self/fd/{descriptor}", "rb") as content:
                    shutil.copyfileobj(content, other)
                other.flush()
            else:  # nobody can read it this way
                os.ftruncate(other.fileno(), os.fstat(descriptor).st_size)
            os.lseek(other.fileno(), os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            fcntl.fcntl(other.fileno(), fcntl.F_SETFL, flags & os.O_APPEND)
            self._plain = os.dup(descriptor)
            os.dup2(other.fileno(), descriptor, inheritable=os.get_inheritable(descriptor))

    def restore(self, notes: list[str]) -> None:
        closed = all(file.closed for file in self._files)
        try:
            self._flush()
        finally:
            if self._plain is not None:
                if not closed:
                    os.dup2(self._plain, self._descriptor, inheritable=os.get_inheritable(self._descriptor))
                os.close(self._plain)
        for file, place in reversed(list(zip(self._files, self._places, strict=True))):
            if place is not None and not file.closed:
                file.seek(place)
        if closed:
            notes.append(f"the file {self._files[0].name!r}, which was open, was closed")

    def _flush(self) -> None:
        for file in self._files:
            if not file.closed:
                file.flush()


def _descriptor(file: Any) -> int | None:
    """Return the descriptor of an open file of the user's on the disk; anything else has none."""
    if type(file) not in KINDS or file.closed:
        return None
    with contextlib.suppress(OSError, ValueError):  # no descriptor, or one that was closed under the file
        found: int = file.fileno()
        if found > _STANDARD and stat.S_ISREG(os.fstat(found).st_mode):
            return found
    return None


def _place(file: Any) -> int | None:
    try:
        found: int = file.tell()
    except OSError:  # in the middle of a loop over its lines
        return None
    return found
