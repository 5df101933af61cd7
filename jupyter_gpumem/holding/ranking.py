"""Who holds what: for every object that leads to device memory, the roots that reach it, the nearest first."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .naming import name_in, path_text
from .tensors import attributes_of, view_of_torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .walk import Walk

MOST_ROOTS = 8
"""Holders that are told apart for one storage; more are only known to exist."""

_STEP, _BORROWED, _HOOK, _GRAPH = 1, 10_000, 100_000, 1_000_000
KIND = 100_000_000
"""Costs of a step. What an optimizer or a graph only borrows belongs to its owner, however deep that one keeps it."""

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass(slots=True, eq=False)
class Root:
    """Where holding begins: a variable, an output, a local name of a frame.

    Attributes:
        kind, name: as in `records.Holder`.
        rank: which kinds are named first.
        items: the numbers of the objects it refers to.
        namespace: of a module: its names and what they are bound to.
    """

    kind: str
    name: str
    rank: int
    items: list[int] = field(default_factory=list)
    namespace: Mapping[str, Any] | None = None

    def goes_with(self, other: Root) -> bool:
        """Whether letting go of another root lets go of this: of the same name, of the last error, or of garbage.

        Letting go of an error sweeps the garbage too, in which IPython leaves the frames that it has shown.
        """
        if self.kind in {"error", "cycle"}:
            return other.kind in {self.kind, "error"}
        return (self.kind, self.name) == (other.kind, other.name)


class Reach(NamedTuple):
    """How a root reaches an object: the cost, whether through a graph or a hook, and the object before it."""

    cost: int
    route: str
    before: int | None


class Ranking:
    """For every useful object the roots that reach it.

    Args:
        walk: the graph.
        roots: in the order in which they are named.

    Attributes:
        reached: by object number and root number.
    """

    def __init__(self, walk: Walk, roots: list[Root]) -> None:
        self.walk, self.roots = walk, roots
        self.reached: dict[int, dict[int, Reach]] = defaultdict(dict)
        self._torch = view_of_torch()
        self._states: set[int] = set()
        self._useful = leading_down(walk, walk.located)
        self._spread()

    def holders(self, number: int) -> dict[int, Reach]:
        """Return the roots that reach an object, the nearest first."""
        return self.reached.get(number, {})

    def path(self, number: int, root: int) -> list[int]:
        """Return the objects from a root to an object that it reaches."""
        path: list[int] = []
        step: int | None = number
        while step is not None:
            path.append(step)
            step = self.reached[step][root].before
        return path[::-1]

    def text(self, number: int, root_index: int) -> str:
        """Return the way from a root to an object in words."""
        root, path = self.roots[root_index], [self.walk.objects[step] for step in self.path(number, root_index)]
        return path_text(root.name if root.namespace is None else name_in(root.namespace, path[0], root.name), path)

    def _spread(self) -> None:
        waiting: list[tuple[int, int, int, str, int | None]] = []
        for index, root in enumerate(self.roots):
            for number in root.items:
                if number in self._useful:
                    heapq.heappush(waiting, (root.rank * KIND, index, number, "", None))
        children, useful, reached = self.walk.children, self._useful, self.reached
        named = {number for root in self.roots if root.kind == "module" for number in root.items}
        while waiting:
            cost, root_index, number, route, before = heapq.heappop(waiting)
            here = reached[number]
            if root_index in here or len(here) >= MOST_ROOTS:
                continue
            here[root_index] = Reach(cost, route, before)
            for child in children[number]:
                if child in useful and root_index not in reached[child]:
                    if child in named and self._is_class_of(child, number):
                        continue
                    step, onwards = self._step(number, child)
                    heapq.heappush(waiting, (cost + step, root_index, child, onwards or route, number))

    def _is_class_of(self, number: int, instance: int) -> bool:
        """Whether an object is another one's class: a module holds that one, with or without instances."""
        return type(self.walk.objects[instance]) is self.walk.objects[number]

    def _step(self, number: int, child: int) -> tuple[int, str]:
        torch = self._torch
        parent, item = self.walk.objects[number], self.walk.objects[child]
        kind = type(parent)
        if torch is None:
            return _STEP, ""
        if torch.is_node(kind):
            return (_BORROWED if hasattr(kind, "variable") else _STEP), ""
        if torch.is_tensor(kind) and torch.is_node(type(item)):
            return _GRAPH, "graph"
        if torch.is_tensor(kind):
            return (_STEP, "") if torch.hooks_name(parent, item) is None else (_HOOK, "hook")
        if torch.optimizer is not None and issubclass(kind, torch.optimizer):
            names = attributes_of(parent) or {}
            self._states.add(id(names.get("state")))
            return (_BORROWED if item is names.get("param_groups") else _STEP), ""
        if id(parent) in self._states and torch.is_tensor(type(item)):
            return _BORROWED, ""  # the parameter is the key of its own state
        if issubclass(kind, torch.module) and any(item is (attributes_of(parent) or {}).get(name) for name in _HOOKS):
            return _HOOK, "hook"
        return _STEP, ""


def leading_down(walk: Walk, ends: Iterable[int]) -> set[int]:
    """Return the objects from which one of these can be reached, themselves included."""
    parents: dict[int, list[int]] = defaultdict(list)
    for number, children in enumerate(walk.children):
        for child in children:
            parents[child].append(number)
    found, waiting = set(ends), list(ends)
    while waiting:
        for parent in parents[waiting.pop()]:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found
