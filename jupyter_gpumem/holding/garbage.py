"""Which objects only wait for the cycle collector: found as it finds them, without collecting anything."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .walk import Walk


def tracked_tensors(walk: Walk, tensor: type) -> list[Any]:
    """Return the tensors with a Python object that the walk did not reach. By type alone: proxies are not touched."""
    return [item for item in gc.get_objects() if issubclass(type(item), tensor) and walk.number(item) is None]


def unreachable(walk: Walk) -> list[Any]:
    """Return the objects that nothing outside of themselves refers to.

    The walk must have reached what it can. Of the rest, each object's references from the rest are subtracted from its
    reference count; what has some left is held from elsewhere, and so is everything that it reaches.
    """
    rest = [item for item in gc.get_objects() if walk.number(item) is None]
    own = _references_of_ours()
    counts = {id(item): sys.getrefcount(item) - own for item in rest}
    counts.pop(id(rest), None)
    for item in rest:
        for child in gc.get_referents(item):
            if id(child) in counts:
                counts[id(child)] -= 1
    held = {key for key, count in counts.items() if count > 0}
    waiting = [item for item in rest if id(item) in held]
    while waiting:
        for child in gc.get_referents(waiting.pop()):
            key = id(child)
            if key in counts and key not in held:
                held.add(key)
                waiting.append(child)
    return [item for item in rest if id(item) in counts and id(item) not in held]


def _references_of_ours() -> int:
    """Return what `sys.getrefcount` counts for an object that only a list and a comprehension's variable refer to."""
    probe = [object()]
    return next(iter({id(item): sys.getrefcount(item) for item in probe}.values()))
