"""The walk: which objects can be reached from where, and which of them lead to device memory."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from .checkpoints import is_holder
from .classes import is_a
from .edges import ATOMS, Edges, loop_types
from .tensors import Location, view_of_torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from jupyter_gpumem.devices import Backend

    from .tensors import Torch

BUDGET = 1_000_000
"""Objects looked at by default: 1 to 2 s of work."""

_HUGE = 10_000
"""Children of one object that are looked at in turn with those of other such objects."""

_NONE: list[int] = []
"""The children of what has none, or was not looked at yet."""


class Walk:
    """A graph of objects by number, grown from one set of objects after another. Keeps them alive while it lives.

    Args:
        barred: objects that are not entered: namespaces that everything leads to, and what belongs to us.
        backends: the devices that count, by their type, such as `cuda`.
        budget: how many objects may be looked at.

    Attributes:
        objects: every object that was reached, by its number.
        children: the numbers that each one refers to.
        located: number and place of everything that has device memory of its own.
        numbers: the number of each object by its id.
        barred: what is not entered, by its id.
        complete: whether the budget was enough.
    """

    def __init__(self, barred: Iterable[object], backends: Mapping[str, Backend], budget: int = BUDGET) -> None:
        self.objects: list[Any] = []
        self.children: list[list[int]] = []
        self.located: dict[int, Location] = {}
        self.complete = True
        self.numbers: dict[int, int] = {}
        # Kept alive: the id of one that died would be given to another object, which the walk would then not see.
        self.barred = {id(item): item for item in barred}
        self._backends, self._budget = backends, budget
        self._torch = view_of_torch()
        self._edges = Edges()
        self._waiting: deque[int] = deque()
        self._only: Mapping[int, Any] | None = None
        self._passing: dict[int, bool] = {}
        # Every task and future leads to its event loop, and that one to all that waits in it, whoever it belongs to.
        self._not_entered = ATOMS | loop_types()

    def number(self, item: object) -> int | None:
        """Return the number of an object that was reached."""
        return self.numbers.get(id(item))

    @property
    def ignored(self) -> set[int]:
        """The ids of what is not entered, and of what the walk itself consists of."""
        return {*self.barred, id(self), id(vars(self)), *map(id, vars(self).values())}

    def between(self) -> Iterator[Any]:
        """Yield the containers of reached objects that are passed over, such as the dict of a module's attributes."""
        for item in self.objects:
            yield from self._edges.between(item)

    def narrow(self, leading: Mapping[int, Any]) -> None:
        """Enter from now on only what leads to something: these objects, by their ids, and what PyTorch shows."""
        self._only = leading

    def _passes(self, kind: type) -> bool:
        """Whether a type's objects are entered though no Python object leads from them to what is looked for."""
        found = self._passing.get(id(kind))
        if found is None:
            torch = self._torch
            tests = (
                () if torch is None else (torch.is_tensor, torch.is_node, torch.is_storage, torch.is_saved, is_holder)
            )
            found = any(test(kind) for test in tests)
            self._passing[id(kind)] = found
        return found

    def enter(self, found: Iterable[Any], *, loops: bool = False) -> list[int]:
        """Return the numbers of objects, but of those that cannot lead anywhere; new ones wait for `expand`.

        Args:
            found: the objects.
            loops: whether event loops are entered, as what holding begins with.
        """
        numbers, objects, only, entered = self.numbers, self.objects, self._only, []
        not_entered = ATOMS if loops else self._not_entered
        for item in found:
            if id(type(item)) in not_entered:
                continue
            key = id(item)
            number = numbers.get(key)
            if number is None:
                if key in self.barred or not (only is None or key in only or self._passes(type(item))):
                    continue
                number = numbers[key] = len(objects)
                objects.append(item)
                self.children.append(_NONE)
                self._waiting.append(number)
            entered.append(number)
        return entered

    def expand(self, *, classes: bool = False) -> None:
        """Reach everything from what was entered, in breadth: a huge container waits until all else was looked at.

        Args:
            classes: whether attributes of imported classes are followed too.
        """
        edges, waiting, objects, children, enter = self._edges, self._waiting, self.objects, self.children, self.enter
        if classes and not edges.classes:
            edges.classes = True
            waiting.extend(number for number, item in enumerate(objects) if is_a(item, type))
        huge: deque[tuple[list[int], Iterator[Any]]] = deque()
        with self._torch.undisturbed() if self._torch is not None else contextlib.nullcontext():
            while waiting or huge:
                if len(objects) > self._budget:
                    self.complete = False
                    waiting.clear()
                    break
                if not waiting:
                    those, rest = huge.popleft()
                    if part := list(itertools.islice(rest, _HUGE)):
                        those += enter(part)
                        huge.append((those, rest))
                    continue
                number = waiting.popleft()
                item = objects[number]
                children_of = edges.way(type(item))
                if children_of is not None:
                    found = children_of(item)
                    rest = iter(found)
                    part = list(itertools.islice(rest, _HUGE))
                    if len(part) < _HUGE:
                        children[number] = enter(part)
                    else:
                        those = children[number] = []
                        huge.append((those, itertools.chain(part, rest)))
                self._locate(number, item)

    def _locate(self, number: int, item: Any) -> None:
        torch = self._torch
        if torch is not None and (torch.is_tensor(type(item)) or torch.is_storage(type(item))):
            location = torch.locate(item)
            if location is not None and self._counts(torch, location, item):
                self.located[number] = location

    def reachable(self, starts: Iterable[int]) -> set[int]:
        """Return the numbers of what can be reached from some of the objects, themselves included."""
        found = set(starts)
        waiting = list(found)
        while waiting:
            for child in self.children[waiting.pop()]:
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return found

    def lies_on_a_device(self, tensor: Any) -> bool:
        """Whether a tensor, reached or not, has memory on a device that counts."""
        torch = self._torch
        if torch is None:
            return False
        with torch.undisturbed():
            location = torch.locate(tensor)
            return location is not None and self._counts(torch, location, tensor)

    def _counts(self, torch: Torch, location: Location, item: Any) -> bool:
        """Whether memory is that of a device that counts: tensors of a virtual GPU outlive it, and look like others."""
        backend = self._backends.get(location.kind)
        return backend is not None and backend.owns(location.ordinal, location.address, torch.storage_of(item))
