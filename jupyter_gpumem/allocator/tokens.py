"""The grammar of a settings string: `key:value,key:[a:1,b:2]`; says nothing about what the keys mean."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jupyter_gpumem.arguments import shown
from jupyter_gpumem.errors import InvalidValueError

_LONGEST = 20_000
_STRAY = re.compile(r"[:;=\[\]\"'\s$`|&<>(){}\\]")
"""What no key or plain value has. The strings are also printed as something to put into a shell."""


@dataclass(frozen=True, slots=True)
class Value:
    """One `key:value` of a settings string.

    Attributes:
        key, text: both sides of the colon, without surrounding blanks.
        items: the `(left, right)` pairs of a list value, or `None` for a plain one.
    """

    key: str
    text: str
    items: tuple[tuple[str, str], ...] | None = None

    def __str__(self) -> str:
        """Return it as a message names it."""
        return f"{self.key}:{self.text:.80}"

    def integer(self) -> int:
        """Return the value as a whole number.

        Raises:
            InvalidValueError: it is not one, or longer than any. PyTorch would read `64.5` and `64abc` as 64; that
                helps nobody.
        """
        if re.fullmatch(r"[0-9]{16,}", self.text):
            raise InvalidValueError(f"{self} is out of range; write at most 15 digits")
        if not re.fullmatch(r"[0-9]{1,15}", self.text):
            raise InvalidValueError(f"{self} is not understood; write a whole number")
        return int(self.text)

    def number(self) -> float:
        """Return the value as a number with an optional fraction.

        Raises:
            InvalidValueError: it is not one.
        """
        if not re.fullmatch(r"[0-9]{0,15}\.?[0-9]{1,400}|[0-9]{1,15}\.", self.text):
            raise InvalidValueError(f"{self} is not understood; write a number such as 0.8")
        return float(self.text)


def split_settings(text: str) -> list[Value]:
    """Return the parts of a settings string in their order; blanks and a trailing comma are ignored.

    Raises:
        InvalidValueError: it is no string, or not of that form; the text names the bad token.
    """
    if not isinstance(text, str):
        raise InvalidValueError(f"allocator settings are a text such as 'expandable_segments:True', got {shown(text)}")
    if len(text) > _LONGEST:
        raise InvalidValueError(f"the allocator settings have {len(text):,} characters; at most {_LONGEST:,} are read")
    values = []
    for part in _parts(text):
        key, colon, value = (side.strip() for side in part.partition(":"))
        if not key or not colon or not value or _STRAY.search(key):
            raise InvalidValueError(_malformed(part))
        if value.startswith("[") and value.endswith("]"):
            values.append(Value(key, value, _pairs(key, value)))
        elif _STRAY.search(value):
            raise InvalidValueError(_malformed(part))
        else:
            values.append(Value(key, value))
    return values


def _parts(text: str) -> list[str]:
    """Split at the commas outside of brackets; a comma at the end adds nothing."""
    parts, start, inside = [], 0, False
    for position, character in enumerate(text):
        if character in "[]":
            inside = character == "["
        elif character == "," and not inside:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _pairs(key: str, value: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in value[1:-1].split(","):
        left, colon, right = (side.strip() for side in part.partition(":"))
        if not left or not colon or not right:
            raise InvalidValueError(
                f"{key}: {part.strip()!r} is not understood; write [SIZE:DIVISIONS,...,>:DIVISIONS]"
            )
        pairs.append((left, right))
    return tuple(pairs)


def _malformed(token: str) -> str:
    hint = "write KEY:VALUE, separated by commas"
    for wrong in "=;":
        if wrong in token:
            hint = f"write {':' if wrong == '=' else ','} instead of {wrong}"
    for quote in "\"'":
        if quote in token:
            hint = "leave the quotation marks out"
    return f"allocator setting {token!r:.80} is not understood; {hint}"
