"""Counting references: an object that has more of them than were seen is held by something that was not."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from .collector import in_parts
from .edges import elements_of, holds_objects

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from .tensors import Torch


def references(items: list[Any], wanted: Container[int]) -> Counter[int]:
    """Return how many references some objects have to others, by the ids of those; arrays of objects included."""
    seen: Counter[int] = Counter()
    for found in in_parts(items):
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
