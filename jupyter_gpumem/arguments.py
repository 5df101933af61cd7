"""What public functions ask of their arguments before they begin: a wrong one is refused at once, in one line."""

from __future__ import annotations

import inspect
import operator
import os
from numbers import Real
from typing import Any

from .errors import InvalidValueError


def whole(value: Any) -> int | None:
    """Return a whole number as Python's own, also one of NumPy's or of any other kind; `None` if it is none.

    `True` is none: who writes it has mistaken one argument for another.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def real(value: Any) -> float | None:
    """Return a real number as Python's own, also one of NumPy's; `None` if it is none, or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def check_whole(name: str, value: object, *, least: int = 1) -> int:
    """Return a whole number of at least so much.

    Raises:
        InvalidValueError: it is none.
    """
    number = whole(value)
    if number is None or number < least:
        raise InvalidValueError(f"{name} must be a whole number of {least} or more, got {shown(value)}")
    return number


def check_share(name: str, value: object) -> float:
    """Return a number from 0 to below 1.

    Raises:
        InvalidValueError: it is none.
    """
    number = real(value)
    if number is None or not 0 <= number < 1:
        raise InvalidValueError(f"{name} must be a share from 0 to below 1, such as 0.05, got {shown(value)}")
    return number


def check_function(name: str, value: object, takes: str) -> None:
    """Refuse what cannot be called.

    Args:
        name: what the argument is called.
        value: what was given for it.
        takes: what it would be called with, in words.

    Raises:
        InvalidValueError: it cannot be called.
    """
    if not callable(value):
        raise InvalidValueError(f"{name} must be a function that takes {takes}, got {shown(value)}")


def check_listener(name: str, value: object, told: str) -> None:
    """Refuse what cannot be called with one argument; where a function does not say what it takes, it is believed.

    Args:
        name: what the argument is called.
        value: what was given for it.
        told: what it would be called with, in words.

    Raises:
        InvalidValueError: it cannot be called, or takes none or needs more.
    """
    check_function(name, value, told)
    try:
        signature = inspect.signature(value, follow_wrapped=False)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError:
        takes = f"{getattr(value, '__name__', type(value).__name__)}{signature}"
        raise InvalidValueError(f"{name} must be a function that takes {told}, got {takes:.60}") from None


def is_method(value: object) -> bool:
    """Whether something is what `@classmethod` or `@staticmethod` makes, before its class has it."""
    return isinstance(value, (classmethod, staticmethod))


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither `True` nor `False`.

    Raises:
        InvalidValueError: it is something else.
    """
    if not isinstance(value, bool):
        raise InvalidValueError(f"{name} must be True or False, got {shown(value)}")


def check_text(name: str, value: object, example: str) -> None:
    """Refuse what is no text.

    Raises:
        InvalidValueError: it is something else.
    """
    if not isinstance(value, str):
        raise InvalidValueError(f"{name} must be a text such as {example!r}, got {shown(value)}")


def check_path(value: object) -> None:
    """Refuse what cannot be the name of a file.

    Raises:
        InvalidValueError: it is neither a text nor a path.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise InvalidValueError(f"the name of a file must be a text or a path, got {shown(value)}")


def shown(value: Any) -> str:
    """Return a value as a message shows it: its `repr`, on one line and not too long."""
    return " ".join(f"{value!r:.400}".split())[:60]
