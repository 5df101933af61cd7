"""Which objects only wait for the cycle collector: found as it finds them, without collecting anything."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from .collector import referents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .walk import Walk


def unreachable(walk: Walk, leading: dict[int, Any]) -> list[Any]:
    """Return the objects that nothing outside of themselves refers to.

    The walk must have reached what it can. Of the rest, each object's references from the rest are subtracted from its
    reference count; what has some left is held from elsewhere, and so is everything that it reaches.

    Args:
        walk: what is reached by a name or a module.
        leading: the objects to choose from, by their ids, with everything that leads to them; nothing of ours may refer
            to what the walk has not reached, but this.
    """
    rest = [item for item in leading.values() if walk.number(item) is None]
    inside = Counter(key for item in rest for key in map(id, referents([item])))
    own = _references_of_ours()
    doubtful = {id(item): item for item in rest if sys.getrefcount(item) - own <= inside[id(item)]}
    frontier = [item for item in rest if id(item) not in doubtful]
    del rest
    while frontier:
        children = {key for item in frontier for key in map(id, referents([item]))}
        frontier = [doubtful.pop(key) for key in children & doubtful.keys()]
    return list(doubtful.values())


def _references_of_ours() -> int:
    """Return what `sys.getrefcount` counts for an object that only a dict, a list and a comprehension refer to."""
    leading = {0: object()}
    probe = list(leading.values())
    return next(iter({id(item): sys.getrefcount(item) for item in probe}.values()))


def unreached(walk: Walk, items: Iterable[Any]) -> list[Any]:
    """Return the objects that the walk has not reached."""
    return [item for item in items if walk.number(item) is None]
