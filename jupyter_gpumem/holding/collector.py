"""What the cycle collector says of references; it runs no code of the objects that it is asked about.

The C half of asyncio is never asked. Before Python 3.12.6 it also names futures' iterators that were freed: once such
an answer is dropped they are freed again, into a ring, and the next collection never ends (python/cpython#122695). What
device memory hangs on there, tasks, hangs on the Python half as well.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_AT_ONCE = 20_000
"""Objects whose references are listed by one call: there are millions of them, and a list of all takes memory."""


def objects() -> list[Any]:
    """Return every object that can be asked what it refers to."""
    return _askable(gc.get_objects())


def referents(items: Iterable[Any]) -> list[Any]:
    """Return what some objects refer to, with repetitions."""
    return gc.get_referents(*_askable(items))


def in_parts(items: list[Any]) -> Iterator[list[Any]]:
    """Yield what many objects refer to, with repetitions."""
    for start in range(0, len(items), _AT_ONCE):
        yield referents(items[start : start + _AT_ONCE])


def _askable(items: Iterable[Any]) -> list[Any]:
    never = sys.modules.get("_asyncio")
    return [item for item in items if item is not never]
