"""Bytes to text and back: the only rounding rule of the package. And what is left of two that may be missing.

Sizes are binary (1 KiB = 1024 B) with two decimals, as in PyTorch's own messages, so that numbers from both can be
compared by eye.
"""

from __future__ import annotations

import re

from .errors import InvalidValueError

KiB = 1024
MiB = 1024**2
GiB = 1024**3
TiB = 1024**4

_FACTORS = {
    "": 1,
    "b": 1,
    "k": KiB,
    "kib": KiB,
    "kb": 1000,
    "m": MiB,
    "mib": MiB,
    "mb": 1000**2,
    "g": GiB,
    "gib": GiB,
    "gb": 1000**3,
    "t": TiB,
    "tib": TiB,
    "tb": 1000**4,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*")


def minus(a: int | None, b: int | None) -> int | None:
    """Return a difference, `None` where one of both is missing."""
    return None if a is None or b is None else a - b


def format_bytes(size: int | None) -> str:
    """Return a size as people read it: `0 B`, `512 B`, `65.00 MiB`, `139.80 GiB`, and `-` for a missing one."""
    if size is None:
        return "-"
    magnitude = abs(size)
    if magnitude < KiB:
        return f"{size} B"
    for unit, name in ((KiB, "KiB"), (MiB, "MiB"), (GiB, "GiB")):
        # 1023.995 and more would print as 1024.00: the next unit says it better.
        if magnitude < unit * 1023.995:
            return f"{size / unit:.2f} {name}"
    return f"{size / TiB:.2f} TiB"


def format_delta(size: int | None) -> str:
    """Return a change with its sign: `+65.00 MiB`, `-1.00 GiB`, `0 B`, and `-` for a missing one."""
    text = format_bytes(size)
    return f"+{text}" if size is not None and size > 0 else text


def format_seconds(seconds: float) -> str:
    """Return a duration with three significant digits: `312 us`, `45.1 ms`, `1.20 s`, `2 min 05 s`."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 59.95:
        value, unit = (seconds * 1e3, "ms") if seconds < 0.9995 else (seconds, "s")
        return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def parse_bytes(text: str) -> int:
    """Return the bytes that a text such as `512MiB`, `1.5 GiB`, `2g` or `4096` names.

    `k`, `m`, `g`, `t` and their `...iB` forms are binary; `kB`, `MB`, `GB`, `TB` are decimal, as printed on the box.

    Raises:
        InvalidValueError: the text is not a size, or names a part of a byte: `1.5` lacks its unit.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None or (factor == 1 and "." in match[1]):
        raise InvalidValueError(f"not a size: {text!r}; write a number and a unit, such as 512MiB or 1.5GiB")
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor
