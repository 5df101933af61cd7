"""The grammar of a pickle that holds plain containers, numbers and strings, and a scanner that checks for it.

A pickle is a list of opcodes, of which some call functions. What is not in the grammar is not handed to any unpickler:
no classes, functions, persistent ids or extension codes, no tuples of anything but a few numbers (deeply nested ones
crash the interpreter when they are hashed), and no memo numbers beyond what was read (which would take any amount of
memory).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .errors import RecordingError

if TYPE_CHECKING:
    from collections.abc import Callable

_STRINGS = {0x8C: 1, 0x58: 4, 0x8D: 8}
"""Opcodes of strings, with the bytes of their lengths."""

_STOP = 0x2E

_LESSONS = 16
"""How many times more must have been read before it is worth looking again for what is frequent."""

_LONGEST_TUPLE = 16

_AHEAD = 256
"""More bytes than the longest construct whose meaning depends on what follows, a tuple: it is not begun with fewer."""

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
_SAMPLE = 20_000


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


def _grammar(shapes: list[bytes], size: int) -> re.Pattern[bytes]:
    """Return the pattern of a run of opcodes without strings.

    Args:
        shapes: patterns of frequent dicts.
        size: how many bytes there are so far: no object has a higher number.
    """
    put = rb"r...[\x00-\x%02x]" % min(size >> 24, 0x7F)
    ahead = rb"(?=.{%d})" % _AHEAD
    integer = _INTEGER + ahead + _TUPLE_OF_IT
    value = rb"h.|" + integer + rb"|\]\x94?|j...."
    return re.compile(
        rb"(?:" + (rb"(?:" + b"|".join(shapes) + rb"){1,400}|" if shapes else rb"") +
        # A key of a dict with its value is by far the most frequent.
        _GET + rb"(?:" + value + rb")"
        rb"|\(" + ahead + rb"(?:" + _INTEGER + rb"{0,%d}t)?" % _LONGEST_TUPLE +
        rb"|[\]})aeusN\x88\x89\x94]|q.|h.|" + integer +
        rb"|" + put + rb"|j....|G.{8}|\x95.{8}|\x80[\x02-\x05]){1,400}",
        re.DOTALL,
    )  # fmt: skip


class Scanner:
    """Walks through every opcode of a pickle that comes piece by piece.

    Attributes:
        ended: whether the opcode that ends a pickle was reached; nothing may follow it.
    """

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""
        self._skip = self._size = self._next_lesson = 0
        self._shapes: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        """Walk through the next piece.

        Raises:
            RecordingError: an opcode is not of a kind that a recording has.
        """
        self._size += len(piece)
        if self.ended and piece:
            raise RecordingError("something follows after its end, as in no recording")
        if self._skip >= len(piece):
            self._skip -= len(piece)
            return
        data = self._rest + piece[self._skip :]
        self._skip = 0
        self._walk(data, len(data))

    def finish(self) -> None:
        """Walk through what is left.

        Raises:
            RecordingError: it is cut short, or as in `feed`.
        """
        if not self.ended and not self._skip:
            self._walk(self._rest + bytes(2 * _AHEAD), len(self._rest))
        if not self.ended:
            raise RecordingError("it is cut short; save the recording again")

    def _walk(self, data: bytes, end: int) -> None:
        """Walk on up to an end; near the end of the data, what may be cut in two is left for the next piece."""
        match, position, limit = self._pattern(data), 0, len(data) - 2 * _AHEAD
        self._rest = b""
        while position < end:
            run = match(data, position)
            if run is not None:
                position = run.end()
            if position >= end:
                return
            if position > limit:
                self._rest = data[position:]
                return
            code = data[position]
            if code in _STRINGS:
                width = _STRINGS[code]
                position += 1 + width + int.from_bytes(data[position + 1 : position + 1 + width], "little")
            elif code == _STOP:
                self.ended = True
                if position + 1 < end:
                    raise RecordingError("something follows after its end, as in no recording")
                return
            elif run is None:
                raise RecordingError(_why(data[position : position + 40]))
        self._skip = position - end

    def _pattern(self, data: bytes) -> Callable[[bytes, int], re.Match[bytes] | None]:
        # What is frequent is learnt anew whenever much more was read: the beginning may not be like the rest.
        if self._size > self._next_lesson:
            self._next_lesson = _LESSONS * self._size
            self._shapes = _shapes(data) or self._shapes
        return _grammar(self._shapes, self._size).match


_KINDS = {
    **dict.fromkeys(b"c\x93iR\x81\x92ob", "names a class or function to call"),
    **dict.fromkeys(b"PQ", "refers to objects outside of it"),
    **dict.fromkeys(b"\x82\x83\x84", "refers to registered extensions"),
    **dict.fromkeys(b"\x85\x86\x87t", "has nested tuples"),
    **dict.fromkeys(b"BC\x8e\x96\x97\x98", "holds raw bytes"),
}


def _why(where: bytes) -> str:
    kind = _KINDS.get(where[0])
    if kind is None:
        return f"it has a byte (0x{where[0]:02x}) where none has it: something else, or damaged; copy or save it again"
    return f"it {kind}, which no recording does; nothing of it was run"
