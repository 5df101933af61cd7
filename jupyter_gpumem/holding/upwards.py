"""Which objects lead to some others: references followed backwards, from what has no name to whatever holds it.

A process with PyTorch has hundreds of thousands of objects, of which few lead to a tensor. So the collector is asked
who refers to it, which takes milliseconds, instead of walking through them one by one.

What refers to a class or a function that its module names is not asked for: the module holds it, whoever uses it. All
instances, subclasses, annotations and caches of `typing` refer to a class, and lead on to much of the process.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .edges import ATOMS, elements_of, is_a
from .tensors import attributes_of, ndarray_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

_MOST_STEPS, _MOST_ASKED = 16, 256
"""Asking for the holders of n objects takes about (25 + n) ms in a process of 250,000 objects, and all references are
listed in 900 ms: so many steps and objects come first."""

_AT_ONCE = 20_000
"""Objects whose references are listed by one call: there are millions of them, and a list of all takes memory."""


def leading_to(
    ends: Iterable[Any], ignored: Iterable[int], known: Callable[[object], bool] = lambda _: False
) -> dict[int, Any]:
    """Return by their ids the objects that lead to some others, those themselves included.

    Args:
        ends: the others.
        ignored: the ids of objects that are passed over, with all that only they lead from: namespaces, and our own.
        known: whether an array of NumPy's was looked into already, and does not lead to any of them.
    """
    found = {id(end): end for end in ends}
    arrays = _arrays_by_element(known)
    passed = {*ignored, id(ends), id(found), id(arrays), *map(id, arrays.values()), *_running_frames()}
    waiting, asked = list(found.values()), 0
    for _ in range(_MOST_STEPS):
        asked += len(waiting)
        if not waiting or asked > _MOST_ASKED:
            break
        holders = gc.get_referrers(*waiting)
        for item in waiting:
            holders += arrays.get(id(item), ())
        passed.add(id(waiting))
        new = {id(holder): holder for holder in holders if id(holder) not in passed and id(holder) not in found}
        passed.discard(id(waiting))
        found |= new
        waiting = [item for item in new.values() if not _is_named_by_its_module(item)]
        del holders, new
    if waiting:
        _follow_all(found, [id(item) for item in waiting], arrays, passed)
    return found


def _follow_all(found: dict[int, Any], waiting: list[int], arrays: dict[int, list[Any]], passed: set[int]) -> None:
    """Add what leads to objects that wait, from a list of all references."""
    parents: dict[int, list[Any]] = defaultdict(list, {key: list(those) for key, those in arrays.items()})
    passed |= {id(waiting), id(parents), *map(id, parents.values())}
    for item in gc.get_objects():
        if id(item) not in passed:
            for child in map(id, gc.get_referents(item)):
                parents[child].append(item)
    while waiting:
        for parent in parents.get(waiting.pop(), ()):
            if id(parent) not in found:
                found[id(parent)] = parent
                if not _is_named_by_its_module(parent):
                    waiting.append(id(parent))


def _is_named_by_its_module(item: Any) -> bool:
    """Whether an object is a class or function that its module has under its name; no code of a metaclass is run.

    Not those of the notebook: names that it had from the start, such as those of startup files, are nobody's.
    """
    if is_a(item, types.FunctionType):
        module, name = item.__module__, item.__name__
    elif is_a(item, type):
        try:
            module, name = _module_of(item), _name_of(item)
        except AttributeError:
            return False
    else:
        return False
    if type(module) is not str or module == "__main__":
        return False
    names = attributes_of(sys.modules.get(module))
    return names is not None and names.get(name) is item


_module_of, _name_of = (vars(type)[name].__get__ for name in ("__module__", "__name__"))


def _running_frames() -> set[int]:
    """Return the ids of the frames that lead here: what they refer to is found by name, or ours."""
    found = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return found


def _arrays_by_element(known: Callable[[object], bool]) -> dict[int, list[Any]]:
    """Return NumPy's arrays of objects by the ids of their elements: the collector sees neither."""
    kinds = ndarray_types()
    found: dict[int, list[Any]] = {}
    if not kinds:
        return found
    everything = gc.get_objects()
    waiting: dict[int, Any] = {}
    for start in range(0, len(everything), _AT_ONCE):
        referents = gc.get_referents(*everything[start : start + _AT_ONCE])
        if not set(map(type, referents)).isdisjoint(kinds):
            waiting |= {id(item): item for item in referents if type(item) in kinds and item.dtype.hasobject}
    seen = set(waiting)
    while waiting:
        _, array = waiting.popitem()
        if known(array):
            continue
        for element in elements_of(array):
            if type(element) in ATOMS:
                continue
            found.setdefault(id(element), []).append(array)
            if type(element) in kinds and element.dtype.hasobject and id(element) not in seen:
                seen.add(id(element))
                waiting[id(element)] = element
    return found
