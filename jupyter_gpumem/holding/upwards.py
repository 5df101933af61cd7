"""Which objects lead to some others: references followed backwards, from what has no name to whatever holds it.

A process with PyTorch has hundreds of thousands of objects, of which few lead to a tensor. So the collector is asked
who refers to it, which takes milliseconds, instead of walking through them one by one.

What refers to a class or a function that its module names is not asked for: the module holds it, whoever uses it. All
instances, subclasses, annotations and caches of `typing` refer to a class, and lead on to much of the process. So do
all tasks that wait to their event loop, which leads to each of them.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .classes import is_a, module_of, name_of
from .collector import in_parts, objects
from .counting import references, surplus
from .edges import ATOMS, elements_of, holds_objects, loop_types, task_type
from .tensors import attributes_of, ndarray_types

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from types import FrameType

    from .tensors import Torch

_MOST_STEPS, _MOST_ASKED = 16, 256
"""Asking for the holders of n objects takes about (25 + n) ms in a process of 250,000 objects, and all references are
listed in 900 ms: so many steps and objects come first."""

_FEW = 500
"""Objects whose references are compared at once: where one is found, they are compared one by one."""


class Arrays:
    """NumPy's arrays of objects, whose elements the collector does not see. Looked for when they are first asked for.

    Args:
        reached: the ids of objects whose references are known: these arrays need not be looked into.
    """

    def __init__(self, reached: Container[int] = frozenset()) -> None:
        self.reached = reached

    @property
    def ours(self) -> set[int]:
        """The ids of the objects in which the arrays are kept here."""
        kept = vars(self).get("by_element", {})
        return {id(vars(self)), id(kept), *map(id, kept.values())}

    @functools.cached_property
    def by_element(self) -> dict[int, list[Any]]:
        """The arrays by the ids of their elements."""
        found: dict[int, list[Any]] = {}
        if not ndarray_types():
            return found
        waiting: dict[int, Any] = {}
        for those in in_parts(objects()):
            kinds = {id(kind): kind for kind in map(type, those)}
            arrays = {key for key, kind in kinds.items() if issubclass(kind, ndarray_types())}
            if arrays:
                waiting |= {id(item): item for item in those if id(type(item)) in arrays and holds_objects(item)}
        seen = set(waiting)
        while waiting:
            _, array = waiting.popitem()
            if id(array) in self.reached:
                continue
            for element in elements_of(array):
                if id(type(element)) in ATOMS:
                    continue
                found.setdefault(id(element), []).append(array)
                if id(element) not in seen and holds_objects(element):
                    seen.add(id(element))
                    waiting[id(element)] = element
        return found


def outsiders(items: list[Any], ignored: set[int], torch: Torch, arrays: Arrays) -> list[Any]:
    """Return the objects that refer to some others, which were reached, and were not reached themselves.

    Args:
        items: the others.
        ignored: the ids of objects that are passed over: namespaces, and our own.
        torch: as for `leading_to`.
        arrays: as for `leading_to`.
    """
    if not items:
        return []
    passed = {*ignored, id(items), *_running_frames()}
    return [
        holder
        for holder in _holders(items, passed, torch, arrays)
        if id(holder) not in arrays.reached and not _is_running(holder)
    ]


def leading_to(ends: list[Any], ignored: Iterable[int], torch: Torch, arrays: Arrays) -> dict[int, Any]:
    """Return by their ids the objects that lead to some others, those themselves included.

    Args:
        ends: the others.
        ignored: the ids of objects that are passed over, with all that only they lead from: namespaces, and our own.
        torch: what knows which references PyTorch has itself.
        arrays: the arrays of NumPy's that may lead to some.
    """
    found = {id(end): end for end in ends}
    passed = {*ignored, id(ends), id(found), *_running_frames()}
    waiting, asked, loops = list(found.values()), 0, loop_types()
    for _ in range(_MOST_STEPS):
        asked += len(waiting)
        if not waiting or asked > _MOST_ASKED:
            break
        passed.add(id(waiting))
        holders = _holders(waiting, passed, torch, arrays)
        new = {id(item): item for item in holders if id(item) not in found and not _is_running(item)}
        passed.discard(id(waiting))
        found |= new
        waiting = [item for item in new.values() if not _is_a_beginning(item, loops)]
        del holders, new
    if waiting:
        _follow_all(found, [id(item) for item in waiting], arrays.by_element, passed | arrays.ours, loops)
    return found


def _holders(items: list[Any], passed: set[int], torch: Torch, arrays: Arrays) -> list[Any]:
    """Return what refers to some objects; arrays of NumPy's too, looked for if the collector shows too little."""
    holders = gc.get_referrers(*items) if len(items) <= _MOST_ASKED else _referring(items)
    instances = [item for item in items if not is_a(item, type)]
    if hidden := surplus(instances, references(holders, set(map(id, items))), torch, ours=1):
        holders += [array for item in hidden for array in arrays.by_element.get(id(item), ())]
    return [holder for holder in holders if id(holder) not in passed and id(holder) not in arrays.ours]


def _referring(items: list[Any]) -> list[Any]:
    """Return what refers to some of many objects; in one pass, where asking for each takes too long."""
    wanted, found = set(map(id, items)), []
    everything = objects()
    for start in range(0, len(everything), _FEW):
        part = everything[start : start + _FEW]
        if not wanted.isdisjoint(map(id, gc.get_referents(*part))):
            found += [item for item in part if not wanted.isdisjoint(map(id, gc.get_referents(item)))]
    return found


def _follow_all(
    found: dict[int, Any],
    waiting: list[int],
    arrays: dict[int, list[Any]],
    passed: set[int],
    loops: frozenset[int],
) -> None:
    """Add what leads to objects that wait, from a list of all references."""
    parents: dict[int, list[Any]] = defaultdict(list, {key: list(those) for key, those in arrays.items()})
    passed |= {id(waiting), id(parents), *map(id, parents.values())}
    for item in objects():
        if id(item) not in passed:
            for child in map(id, gc.get_referents(item)):
                parents[child].append(item)
    while waiting:
        for parent in parents.get(waiting.pop(), ()):
            if id(parent) not in found:
                found[id(parent)] = parent
                if not _is_a_beginning(parent, loops):
                    waiting.append(id(parent))


def _is_a_beginning(item: Any, loops: frozenset[int]) -> bool:
    """Whether who refers to an object is not asked: its module names it, or it is a task or an event loop."""
    task = task_type()
    return _is_named_by_its_module(item) or id(type(item)) in loops or (task is not None and is_a(item, task))


def _is_named_by_its_module(item: Any) -> bool:
    """Whether an object is a class or function that its module has under its name; no code of a metaclass is run.

    Not those of the notebook: names that it had from the start, such as those of startup files, are nobody's.
    """
    if is_a(item, types.FunctionType):
        module, name = item.__module__, item.__name__
    elif is_a(item, type):
        module, name = module_of(item), name_of(item)
    else:
        return False
    if type(module) is not str or module == "__main__":
        return False
    names = attributes_of(sys.modules.get(module))
    return names is not None and names.get(name) is item


def _running_frames() -> set[int]:
    """Return the ids of the frames that lead here: what they refer to is found by name, or ours."""
    found = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return found


def _is_running(item: Any) -> bool:
    """Whether an object is a coroutine or generator that runs now: its local names are those of a running function."""
    return (
        (is_a(item, types.CoroutineType) and item.cr_running)
        or (is_a(item, types.GeneratorType) and item.gi_running)
        or (is_a(item, types.AsyncGeneratorType) and item.ag_running)
    )
