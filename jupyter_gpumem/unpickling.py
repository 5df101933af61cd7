"""Loading a pickle that somebody else made, without running anything in it and without falling over it.

A recording is made of plain containers, numbers and strings. Its bytes are first walked through with a grammar of just
those: no classes, functions, persistent ids or extension codes (a pickle's ways to call things), no tuples of anything
but numbers (deeply nested ones crash the interpreter when they are hashed), and no memo numbers beyond the file's
length (which would take any amount of memory). What passes goes to an unpickler that admits no globals either.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
import zlib
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import RecordingError
from .units import GiB, MiB, format_bytes

if TYPE_CHECKING:
    from pathlib import Path

MOST_UNPACKED = 8 * GiB
_ALWAYS_UNPACKED = 64 * MiB
_MOST_RATIO = 400
"""A gzip file may unpack to 64 MiB, or to 400 times its size if that is more, but never to more than 8 GiB. Recordings
reach a ratio of 50, a bomb 1,000."""

_CHUNK = 4 * MiB
_PROTOCOLS = range(2, 6)

# Opcodes of integers; the frequent ones first, since alternatives are tried in turn.
_LONG = rb"\x8a(?:\x06.{6}|\x07.{7}|\x05.{5}|\x08.{8}|\x09.{9}|\x04.{4}|\x03...|\x02..|\x01.|\x00)"
_SHORT_INTEGER = rb"(?:J....|M..|K.)"
_INTEGER = rb"(?:J....|M..|K.|" + _LONG + rb")"
_TUPLE_OF_IT = rb"(?:" + _INTEGER + rb"{0,2}[\x85-\x87])?"
_GET = rb"(?:h.|j....)"

_LIST = rb"\]\x94(?:\(" + _GET + rb"+e|" + _GET + rb"a)?"

# A dict of memoised keys, as most events are written, and its keys and values: these are learnt from a file.
_VALUE = rb"(?:" + _GET + rb"|" + _INTEGER + rb"|" + _LIST + rb")"
_DICT = re.compile(rb"}\x94\((?:" + _GET + _VALUE + rb")+u", re.DOTALL)
_PAIR = re.compile(rb"(" + _GET + rb")(" + _VALUE + rb")", re.DOTALL)
_SHAPES_LEARNT = 4
_SAMPLE = 50_000

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
    if path.is_char_device():  # /dev/zero never ends
        raise RecordingError(f"{name} is a device, not a file; name a file saved as a recording")
    data = _read(path)
    if not data:
        raise RecordingError(f"{name} is empty; save the recording again")
    if data[0] != 0x80 or len(data) < 2 or data[1] not in _PROTOCOLS:
        guess = next((text for magic, text in _GUESSES if data.lstrip()[:16].startswith(magic)), None)
        raise RecordingError(f"{name} is not a recording: {guess or 'it is not a pickle of protocol 2 to 5'}")
    try:
        _scan(data)
        return _load(data)
    except RecordingError as error:
        raise RecordingError(f"{name} is not a recording: {error}") from None
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
        MemoryError, RecursionError,
    ) as error:  # fmt: skip
        raise RecordingError(f"{name} is damaged or cut short ({error!r:.80}); save the recording again") from error


def _read(path: Path) -> bytes:
    try:
        packed = path.read_bytes()
    except IsADirectoryError:
        raise RecordingError(f"{path} is a directory; name a recording in it") from None
    except (OSError, ValueError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise RecordingError(
            f"{str(path)!r:.200} cannot be read: {reason}; name a file saved as a recording"
        ) from error
    return _unpack(packed, path.name) if packed[:2] == b"\x1f\x8b" else packed


def _unpack(packed: bytes, name: str) -> bytes:
    most = min(MOST_UNPACKED, max(_ALWAYS_UNPACKED, _MOST_RATIO * len(packed)))
    parts, size, rest = [], 0, packed
    while rest:
        stream = zlib.decompressobj(wbits=31)
        try:
            while not stream.eof:
                part = stream.decompress(rest, _CHUNK)
                rest = stream.unconsumed_tail
                if not part and not rest and not stream.eof:
                    raise RecordingError(f"{name} is cut short; copy or save it again")
                size += len(part)
                if size > most:
                    raise RecordingError(f"{name} unpacks to more than {format_bytes(most)}: not a recording")
                parts.append(part)
        except zlib.error as error:
            raise RecordingError(f"{name} is damaged ({error}); copy or save it again") from error
        rest = stream.unused_data.lstrip(b"\0")
    return b"".join(parts)


def _shapes(data: bytes) -> list[bytes]:
    """Return patterns of the dicts that are most frequent in the file: written out, they match ten times as fast."""
    middle = max(0, len(data) // 2 - _SAMPLE // 2)
    counts: dict[bytes, int] = {}
    for found in _DICT.findall(data, middle, middle + _SAMPLE):
        shape = b"".join(_exactly(key) + _exactly(value) for key, value in _PAIR.findall(found, 3))
        counts[shape] = counts.get(shape, 0) + 1
    return [rb"}\x94\(" + shape + b"u" for shape in sorted(counts, key=lambda s: -counts[s])[:_SHAPES_LEARNT]]


def _exactly(part: bytes) -> bytes:
    """Return the pattern of a key or value written like this one."""
    code = part[:1]
    if code == b"\x8a":
        return rb"\x8a" + re.escape(part[1:2]) + b"." * part[1]
    if code == b"]":
        return _LIST
    return {b"h": b"h.", b"j": b"j...."}.get(code, _SHORT_INTEGER)


def _grammar(data: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a run of opcodes without strings, for one file."""
    shapes = _shapes(data)
    put = rb"r...[\x00-\x%02x]" % min(len(data) >> 24, 0x7F)
    value = rb"h.|" + _INTEGER + _TUPLE_OF_IT + rb"|\]\x94?|j...."
    return re.compile(
        rb"(?:" + (rb"(?:" + b"|".join(shapes) + rb"){1,400}|" if shapes else rb"") +
        # A key of a dict with its value is by far the most frequent.
        _GET + rb"(?:" + value + rb")"
        rb"|\(" + _INTEGER + rb"*t|[\]})(aeusN\x88\x89\x94]|q.|h.|" + _INTEGER + _TUPLE_OF_IT +
        rb"|" + put + rb"|j....|G.{8}|\x95.{8}|\x80[\x02-\x05]){1,400}",
        re.DOTALL,
    )  # fmt: skip


def _scan(data: bytes) -> None:
    """Walk through every opcode.

    Raises:
        RecordingError: one is not of a kind that a recording has.
    """
    match, position, end = _grammar(data).match, 0, len(data)
    while position < end:
        run = match(data, position)
        if run is not None:
            position = run.end()
            if position >= end:
                break
        code = data[position]
        if code == 0x8C:
            position += 2 + int.from_bytes(data[position + 1 : position + 2], "little")
        elif code == 0x58:
            position += 5 + int.from_bytes(data[position + 1 : position + 5], "little")
        elif code == 0x8D:
            position += 9 + int.from_bytes(data[position + 1 : position + 9], "little")
        elif code == 0x2E:
            return
        elif run is None:
            raise RecordingError(_why(data[position : position + 40]))
    raise RecordingError("it is cut short; save the recording again")


_KINDS = {
    **dict.fromkeys(b"c\x93iR\x81\x92ob", "names a class or function to call"),
    **dict.fromkeys(b"PQ", "refers to objects outside of it"),
    **dict.fromkeys(b"\x82\x83\x84", "refers to registered extensions"),
    **dict.fromkeys(b"\x85\x86\x87t", "has nested tuples"),
    **dict.fromkeys(b"BC\x8e\x96\x97\x98", "holds raw bytes"),
}


def _why(where: bytes) -> str:
    return f"it {_KINDS.get(where[0], 'holds something')}, which no recording does; nothing of it was run"


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler without globals. The grammar has already refused them; this is the second lock."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise RecordingError(f"it names {module_name}.{global_name}"[:80] + ", which no recording does")

    def persistent_load(self, pid: Any, /) -> NoReturn:  # noqa: ARG002 - the name is pickle's
        raise RecordingError("it refers to objects outside of it, which no recording does")


def _load(data: bytes) -> Any:
    # A million dicts and no garbage among them: with the collector on, most of the time would go into looking for some.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    finally:
        if collecting:
            gc.enable()
