"""Loading a pickle that somebody else made, without running anything in it and without falling over it.

A recording is made of plain containers, numbers and strings. While it is read, piece by piece, its bytes are walked
through with a grammar of just those (see `opcodes`), so that anything else is refused where it begins, however long it
is. What passes goes to an unpickler that admits no globals either.
"""

from __future__ import annotations

import io
import os
import pickle
import stat
import zlib
from typing import IO, TYPE_CHECKING, Any, NoReturn, cast

from .errors import RecordingError
from .opcodes import Scanner
from .units import GiB, MiB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_UNPACKED = 2 * GiB
_ALWAYS_UNPACKED = 8 * MiB
_MOST_RATIO = 200
"""A gzip file may unpack to 8 MiB, or to 200 times its size if that is more, but never to more than 2 GiB. Recordings
reach a ratio of 50, a bomb 1,000."""

_FIRST, _PIECE = 1 << 16, 1 << 18
_PROTOCOLS = range(2, 6)
_FRAME = b"\x95"

_GUESSES = (
    (b"PK\x03\x04", "it is a zip archive, such as a PyTorch checkpoint"),
    (b"<", "it is an HTML or XML page"),
    (b"{", "it is JSON text"),
    (b"SQLite format", "it is a database"),
    (b"\x89PNG", "it is an image"),
)


class _PlainPickler(pickle.Pickler):
    """Writes what `load_plain` reads, and nothing else: no class can slip in, as torch's version string is one."""

    def reducer_override(self, item: object) -> NoReturn:
        """Refuse whatever is not a plain container, number or string."""
        raise RecordingError(f"a recording holds plain containers, numbers and strings only, got {type(item)!r}")


def dump_plain(data: object, protocol: int) -> bytes:
    """Return data as a pickle that `load_plain` reads.

    Raises:
        RecordingError: something in it is not plain.
    """
    buffer = io.BytesIO()
    _PlainPickler(buffer, protocol).dump(data)
    return buffer.getvalue()


def load_plain(path: Path) -> Any:
    """Return what a pickle file (packed with gzip or not) holds: containers, numbers and strings only.

    Raises:
        RecordingError: there is no such file, or it is anything else; one line, and nothing in it was run.
    """
    name = path.name
    try:
        with _opened(path) as file:
            pieces = _read(file, name)
    except (OSError, ValueError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise RecordingError(
            f"{str(path)!r:.200} cannot be read: {reason}; name a file saved as a recording"
        ) from error
    try:
        return _load(pieces)
    except RecordingError as error:
        raise RecordingError(f"{name} is not a recording: {error}") from None
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
        MemoryError, RecursionError,
    ) as error:  # fmt: skip
        raise RecordingError(f"{name} is damaged or cut short ({error!r:.80}); save the recording again") from error


def _opened(path: Path) -> IO[bytes]:
    """Open a file that ends: opening a pipe would wait for somebody to write, and /dev/zero goes on for ever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise RecordingError(f"{path} is a directory; name a recording in it")
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            raise RecordingError(f"{path.name} is a pipe, not a file; save what comes out of it, and name that")
        if not stat.S_ISREG(mode):
            raise RecordingError(f"{path.name} is a device, not a file; name a file saved as a recording")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _read(file: IO[bytes], name: str) -> list[bytes]:
    """Return the pickle in a file, scanned and unpacked, in pieces.

    Raises:
        RecordingError: it is none, or not a plain one; no more was read than it took to see that.
    """
    scanner, found = Scanner(), list[bytes]()
    for piece in _pieces(file, name):
        if not found:
            _check_head(piece, name)
        try:
            scanner.feed(piece)
        except RecordingError as error:
            raise RecordingError(f"{name} is not a recording: {error}") from None
        found.append(piece)
    if not found:
        raise RecordingError(f"{name} is empty; save the recording again")
    try:
        scanner.finish()
    except RecordingError as error:
        raise RecordingError(f"{name} is not a recording: {error}") from None
    return found


def _check_head(piece: bytes, name: str) -> None:
    if piece[0] != 0x80 or len(piece) < 2 or piece[1] not in _PROTOCOLS:
        guess = next((text for magic, text in _GUESSES if piece.lstrip()[:16].startswith(magic)), None)
        raise RecordingError(f"{name} is not a recording: {guess or 'it is not a pickle of protocol 2 to 5'}")


def _pieces(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield what is in a file, unpacked; the first piece is a small one."""
    first = file.read(_FIRST)
    if first[:2] == b"\x1f\x8b":
        yield from _unpacked(first, file, name)
        return
    while first:
        yield first
        first = file.read(_PIECE)


def _unpacked(rest: bytes, file: IO[bytes], name: str) -> Iterator[bytes]:
    most = min(MOST_UNPACKED, max(_ALWAYS_UNPACKED, _MOST_RATIO * os.fstat(file.fileno()).st_size))
    size, wanted = 0, _FIRST
    while rest:
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            try:
                part = stream.decompress(rest, wanted)
            except zlib.error as error:
                raise RecordingError(f"{name} is damaged ({error}); copy or save it again") from error
            rest = stream.unconsumed_tail
            if part:
                size, wanted = size + len(part), _PIECE
                if size > most:
                    raise RecordingError(
                        f"{name} unpacks to more than {format_bytes(most)}: no recording does; if it is one, unpack it "
                        f"with gunzip first"
                    )
                yield part
            elif not rest and not stream.eof:
                rest = file.read(MiB)
                if not rest:
                    raise RecordingError(f"{name} is cut short; copy or save it again")
        rest = stream.unused_data.lstrip(b"\0")
        while not rest and (more := file.read(MiB)):
            rest = more.lstrip(b"\0")


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler without globals. The grammar has already refused them; this is the second lock."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise RecordingError(f"it names {module_name}.{global_name}"[:80] + ", which no recording does")

    def persistent_load(self, pid: Any, /) -> NoReturn:  # noqa: ARG002 - the name is pickle's
        raise RecordingError("it refers to objects outside of it, which no recording does")


class _Pieces(io.RawIOBase):
    """A file made of pieces of bytes; each is let go of once it was read."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._left, self._first, self._at = pieces[::-1], b"", 0
        pieces.clear()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            return self.readall()
        end = self._at + size
        while self._left and end > len(self._first):
            self._first, end, self._at = self._first[self._at :] + self._left.pop(), end - self._at, 0
        found, self._at = self._first[self._at : end], end
        return found

    def readinto(self, buffer: Any, /) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


def _load(pieces: list[bytes]) -> Any:
    """Return what a pickle in pieces holds; the list is empty then, and each piece is gone once it was unpickled."""
    # An unpickler asks for frames, as every writer makes them since protocol 4; without, for each opcode by itself,
    # unless the file can be looked ahead in.
    framed = pieces[0][2:3] == _FRAME
    file = _Pieces(pieces)
    return _PlainUnpickler(cast("IO[bytes]", file if framed else io.BufferedReader(file, _PIECE))).load()
