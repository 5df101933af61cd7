"""Which objects only wait for the cycle collector: found as it finds them, without collecting anything."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .walk import Walk

_AT_ONCE = 20_000
"""Objects whose references are listed by one call: there are millions of them, and a list of all takes memory."""


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the automatic collector from running: it would take garbage away that is being counted, and much time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def unreached(walk: Walk, tensor: type) -> list[Any]:
    """Return the device tensors that the walk did not reach. Looked for by type: lazy proxies are not touched."""
    everything = gc.get_objects()
    kinds = {kind for kind in set(map(type, everything)) if issubclass(kind, tensor)}
    found = [item for item in everything if type(item) in kinds]
    return [item for item in found if walk.number(item) is None and walk.lies_on_a_device(item)]


def any_unreached(walk: Walk, tensor: type) -> bool:
    """Whether there are any; keeps none of them."""
    return bool(unreached(walk, tensor))


def unreachable(walk: Walk) -> list[Any]:
    """Return the objects that nothing outside of themselves refers to.

    The walk must have reached what it can. Of the rest, each object's references from the rest are subtracted from its
    reference count; what has some left is held from elsewhere, and so is everything that it reaches.
    """
    rest = [item for item in gc.get_objects() if walk.number(item) is None]
    inside: Counter[int] = Counter()
    for referents in _referents(rest):
        inside.update(map(id, referents))
    del referents
    own = _references_of_ours()
    doubtful = {id(item): item for item in rest if sys.getrefcount(item) - own <= inside[id(item)]}
    frontier = [item for item in rest if id(item) not in doubtful]
    del rest
    while frontier:
        reached: dict[int, Any] = {}
        for referents in _referents(frontier):
            for key in doubtful.keys() & map(id, referents):
                reached[key] = doubtful.pop(key)
        frontier = list(reached.values())
    return list(doubtful.values())


def _referents(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), _AT_ONCE):
        yield gc.get_referents(*items[start : start + _AT_ONCE])


def _references_of_ours() -> int:
    """Return what `sys.getrefcount` counts for an object that only a list and a comprehension's variable refer to."""
    probe = [object()]
    return next(iter({id(item): sys.getrefcount(item) for item in probe}.values()))
