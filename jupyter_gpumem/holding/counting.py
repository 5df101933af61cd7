"""Counting references: an object that has more of them than were seen is held by something that was not."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from .edges import elements_of, holds_objects

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from .tensors import Torch

_AT_ONCE = 20_000
"""Objects whose references are listed by one call: there are millions of them, and a list of all takes memory."""


def referents(items: list[Any]) -> Iterator[list[Any]]:
    """Yield what some objects refer to, with repetitions, in parts."""
    for start in range(0, len(items), _AT_ONCE):
        yield gc.get_referents(*items[start : start + _AT_ONCE])


def references(items: list[Any], wanted: Container[int]) -> Counter[int]:
    """Return how many references some objects have to others, by the ids of those; arrays of objects included."""
    seen: Counter[int] = Counter()
    for found in referents(items):
        seen.update(filter(wanted.__contains__, map(id, found)))
    for item in items:
        if holds_objects(item):
            seen.update(filter(wanted.__contains__, map(id, elements_of(item))))
    return seen


def surplus(items: Iterable[Any], seen: Counter[int], torch: Torch, ours: int = 0) -> list[Any]:
    """Return the objects that have more references than were seen.

    Args:
        items: the objects.
        seen: the references that were seen, by the ids of the objects.
        torch: what knows which references PyTorch has itself: to the Python object of a tensor that a graph uses, say.
        ours: how many references of our own to each of them were not counted.
    """
    listed = list(items)
    own = _counts([object()])[0] + ours
    return [
        item
        for item, count in zip(listed, _counts(listed), strict=True)
        if count - own - seen[id(item)] > torch.own_references(item)
    ]


def _counts(items: list[Any]) -> list[int]:
    return [sys.getrefcount(item) for item in items]
