"""Everything that can be reached from some objects, in the order in which it matters to whoever remembers it."""

from __future__ import annotations

import functools
import heapq
import itertools
import re
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from .ownership import is_users

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NEAR = 100
"""What lies this near to what code names, or to a model or an optimizer, is always met."""

_UNNAMED = 10_000
"""So far away is a variable that the code does not name: small things of others come before the rows of a data set."""

SMALL = 2 * _UNNAMED
"""What lies farther away is in a large container: the rows of a data set, not what a session keeps its state in."""

_PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None)})
_NAME = re.compile(r"[^\W\d]\w*")


class Origin(NamedTuple):
    """By what an object was reached first: a variable, say, and whether the code names it."""

    label: str
    named: bool


class Found(NamedTuple):
    """An object that was met; how far away is the sum of the sizes of the containers that lead to it."""

    item: Any
    distance: int
    origin: Origin


class Walk:
    """Objects, the nearest first: those in a container of a million rows are a million away, and come last."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, int, Origin, Iterator[Any]]] = []
        self._numbers = itertools.count()  # among equals the first comes first, and no two objects are compared

    def add(self, distance: int, origin: Origin, items: Iterable[Any]) -> None:
        """Have some objects met, and what they lead to if that is added in turn."""
        found = [item for item in items if type(item) not in _PLAIN]
        if found:
            heapq.heappush(self._batches, (distance, next(self._numbers), origin, iter(found)))

    def add_names(self, names: dict[str, Any], wanted: Iterable[str], label: str = "") -> None:
        """Have the variables of a namespace met: those that the code names before all others."""
        wanted = frozenset(wanted)
        for name, value in names.items():
            named = name in wanted
            self.add(0 if named else _UNNAMED + len(names), Origin(f"{label}{name}", named), [value])

    def add_globals(self, function: types.FunctionType, found: Found) -> None:
        """Have the global variables met that a function of the user's names."""
        names = function.__globals__
        if is_users(str(names.get("__name__"))):
            for name in names_in(function.__code__) & names.keys():
                self.add(found.distance + 1, Origin(name, found.origin.named), [names[name]])

    def __iter__(self) -> Iterator[Found]:
        while self._batches:
            distance, number, origin, items = heapq.heappop(self._batches)
            for item in items:
                yield Found(item, distance, origin)
                if self._batches and self._batches[0][0] < distance:
                    break
            else:
                continue
            heapq.heappush(self._batches, (distance, number, origin, items))

    def rest(self) -> Iterator[Found]:
        """Yield what is not yet met, as it lies there."""
        for distance, _, origin, items in sorted(self._batches, key=lambda batch: batch[:2]):
            for item in items:
                yield Found(item, distance, origin)


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Return the names that code may use, also in functions within it, and in texts: of a magic, or for `eval`."""
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
        elif isinstance(constant, str):
            names.update(_NAME.findall(constant))
    return frozenset(names)
