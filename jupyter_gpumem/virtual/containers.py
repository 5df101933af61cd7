"""What Python objects hold, remembered and put back: lists, dicts, sets and the attributes of the user's objects."""

from __future__ import annotations

import gc
import io
import itertools
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from .ownership import is_users
from .walk import NEAR, SMALL, Origin, Walk
from .ways import PLAIN_CONTAINERS, numpy_class, ways

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from .walk import Found

    _Kept = tuple[Any, Any, Callable[[Any], Any], Callable[[Any, Any], Any]]

MOST = 200_000
"""So many objects are remembered, and beyond that only what is near; see `Walk`."""

_LEFT_ALONE = (str, bytes, int, float, complex, type(None))


class Contents:
    """What every container holds that can be reached from some objects.

    The objects of installed packages other than PyTorch are left alone, with all that only they hold: they may have
    threads, files and sockets.

    Args:
        reaches: the dicts whose names code may bind, and other objects that it can reach.
        names: the names that the code uses itself.
        modules: the user's modules.
        others: what is always remembered, wherever it is: models and optimizers.

    Attributes:
        notes: a sentence if there was too much to be remembered of what the code can reach by names.
        unwatched: the other variables that not all was remembered of.
        tensors, arrays, files: the tensors, the NumPy arrays and the files that were met.
    """

    def __init__(
        self,
        reaches: Iterable[Any],
        names: Iterable[str],
        modules: Sequence[types.ModuleType],
        others: Iterable[Any],
    ) -> None:
        self._cut: dict[str, bool] = {}
        self.tensors: list[torch.Tensor] = []
        self.arrays: list[Any] = []
        self.files: list[Any] = []
        self._kept: list[_Kept] = []
        self._exchanging: list[_Kept] | None = None
        self._generators: list[tuple[types.GeneratorType[Any, Any, Any], Any]] = []
        self._seen: set[int] = set()
        self._kinds: set[type] = set()
        self._small: list[int] = []
        walk = Walk()
        for reach in reaches:
            if isinstance(reach, dict):
                walk.add_names(reach, names)
                self._remember(reach)
            else:
                walk.add(0, Origin("an argument", named=True), [reach])
        for other in others:
            walk.add(0, Origin(f"a {type(other).__name__}", named=True), [other])
        for module in modules:
            walk.add_names(vars(module), (), f"{module.__name__}.")
            self._remember(module)
        self._walk(walk)
        reached = [label for label, named in self._cut.items() if named]
        self.notes = [_too_many(reached)] if reached else []
        self.unwatched = tuple(label for label, named in self._cut.items() if not named)

    def exchange(self, instead: Mapping[int, Any]) -> None:
        """Put other objects in the place of some, by their ids, until `restore`; of the same ones each time."""
        if self._exchanging is None:
            others = set(map(id, instead.values()))  # which may hold what they stand for
            self._exchanging = [
                kept
                for kept in self._kept
                if id(kept[0]) not in others and any(id(_unwrapped(item)) in instead for item in _held(kept[1]))
            ]
        for owner, before, _, write in self._exchanging:
            write(owner, _exchanged(owner, before, instead))

    def look(self) -> dict[int, Any]:
        """Return what is held now, by the number of what holds it, for `keep_changes`; of rows of data sets nothing."""
        return {number: read(owner) for number in self._small for owner, _, read, _ in [self._kept[number]]}

    def keep_changes(self, since: dict[int, Any]) -> None:
        """Have what was changed since then be as it was before already; what had been changed earlier is put back."""
        for number, earlier in since.items():
            owner, before, read, write = self._kept[number]
            now = read(owner)
            if not _same(now, earlier):
                self._kept[number] = (owner, _merged(before, earlier, now), read, write)
                self._exchanging = None

    def add(self, modules: Iterable[types.ModuleType]) -> None:
        """Remember also what these modules hold, which are new, and what can be reached from them."""
        self._seen = {id(owner) for owner, *_ in self._kept}  # of others the ids may be those of new objects by now
        self._exchanging = None
        walk = Walk()
        for module in modules:
            walk.add(0, Origin(module.__name__, named=True), [module])
        self._walk(walk)

    def restore(self) -> list[str]:
        """Put back what was changed; returns a sentence for each thing that cannot be."""
        for owner, before, read, write in reversed(self._kept):
            if not _same(read(owner), before):
                write(owner, before)
        return [
            f"the generator {generator.__name__}() was advanced, which cannot be undone"
            for generator, place in self._generators
            if _place(generator) != place
        ]

    def _walk(self, walk: Walk) -> None:
        for found in walk:
            item = found.item
            kind = type(item)
            plain = kind in PLAIN_CONTAINERS
            if id(item) in self._seen or (not plain and _is_left_alone(item)):
                continue
            if len(self._kept) >= MOST and found.distance > NEAR:
                self._tell_unwatched(itertools.chain([found], walk.rest()))
                return
            before = self._remember(item, small=found.distance <= SMALL)
            if plain:
                held = _held(*before)
                walk.add(found.distance + len(held), found.origin, held)
                continue
            self._note(item)
            if kind not in self._kinds:
                self._kinds.add(kind)
                walk.add(found.distance, found.origin, kind.__mro__)
            for one in before:
                _add_held(walk, found, one)
            if isinstance(item, tuple):
                walk.add(found.distance + len(item), found.origin, item)
            elif isinstance(item, (types.MethodType, types.BuiltinFunctionType)):  # a list's `append`, say
                walk.add(found.distance, found.origin, [item.__self__])

    def _remember(self, item: Any, *, small: bool = True) -> list[Any]:
        """Remember what an object holds; returns that."""
        self._seen.add(id(item))
        kept = [(item, read(item), read, write) for read, write in ways(item)]
        if small:
            self._small += range(len(self._kept), len(self._kept) + len(kept))
        self._kept += kept
        return [before for _, before, _, _ in kept]

    def _tell_unwatched(self, rest: Iterable[Found]) -> None:
        for item, _, (label, named) in rest:
            told = label in self._cut and (self._cut[label] or not named)
            if not told and self._is_to_watch(item):
                self._cut[label] = named

    def _is_to_watch(self, item: Any) -> bool:
        if id(item) in self._seen or _is_left_alone(item):
            return False
        if isinstance(item, tuple):
            return any(map(self._is_to_watch, item))
        return next(iter(ways(item)), None) is not None

    def _note(self, item: Any) -> None:
        if isinstance(item, torch.Tensor):
            self.tensors.append(item)
        elif isinstance(item, numpy_class("ndarray")):
            self.arrays.append(item)
        elif isinstance(item, io.IOBase):
            self.files.append(item)
        elif isinstance(item, types.GeneratorType):
            self._generators.append((item, _place(item)))


def _too_many(variables: Sequence[str]) -> str:
    return (
        f"what the code may have changed inside {', '.join(variables)}: there are more than {MOST:,} lists, dicts and "
        "other objects, and those that lie in the largest containers are not watched"
    )


def _is_left_alone(item: Any) -> bool:
    if isinstance(item, _LEFT_ALONE):
        return True
    if isinstance(item, types.ModuleType):
        return not is_users(item.__name__)
    return isinstance(item, type) and not is_users(item.__module__) and not _is_of_one_module(item)


def _is_of_one_module(kind: type) -> bool:
    """Whether a class was made for one neural network module, as parametrizations do: that one's state is in it."""
    module = sys.modules.get(kind.__module__)
    return issubclass(kind, torch.nn.Module) and getattr(module, "__dict__", {}).get(kind.__name__) is not kind


def _held(before: Any) -> Collection[Any]:
    """Return the objects in what was read."""
    if isinstance(before, dict):
        return before.values()
    return before if isinstance(before, (list, tuple, set)) else ()


def _add_held(walk: Walk, found: Found, before: Any) -> None:
    """Have the objects met that are in what was read."""
    item, distance, origin = found
    if isinstance(item, types.ModuleType):
        walk.add_names(before, (), f"{item.__name__}.")
        return
    held = list(_held(before))
    if isinstance(item, types.FunctionType):
        walk.add_globals(item, found)
        cells = len(item.__code__.co_freevars)
        for name, value in zip(item.__code__.co_freevars, held, strict=False):
            walk.add(distance, origin._replace(label=name), [value])
        held = held[cells:]
    elif isinstance(item, type):
        held = [function for value in held for function in _functions(value)]
    walk.add(distance + len(held), origin, held)


def _functions(value: Any) -> tuple[Any, ...]:
    """Return the functions that stand in a class in another form; anything else as it is."""
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    return (value.fget, value.fset) if isinstance(value, property) else (value,)


def _exchanged(owner: Any, before: Any, instead: Mapping[int, Any]) -> Any:
    if isinstance(owner, type):  # in which a function would become a method, as what it stands for does not
        return {
            name: staticmethod(instead[id(_unwrapped(value))]) if id(_unwrapped(value)) in instead else value
            for name, value in before.items()
        }
    if isinstance(before, dict):
        return {key: instead.get(id(value), value) for key, value in before.items()}
    return type(before)(instead.get(id(item), item) for item in before)


def _unwrapped(item: Any) -> Any:
    return item.__func__ if type(item) is staticmethod else item


def _same(now: Any, before: Any) -> bool:
    """Whether two copies hold the very same objects, in the same order."""
    if isinstance(before, dict):
        return len(now) == len(before) and all(
            a[0] is b[0] and a[1] is b[1] for a, b in zip(now.items(), before.items(), strict=True)
        )
    if type(before) is list:
        return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
    if isinstance(before, torch.Tensor):
        return bool(torch.equal(now, before))
    same: bool = now == before
    return same


def _merged(before: Any, earlier: Any, now: Any) -> Any:
    """Return what there was before with what has been changed between two later moments, as far as that can be told."""
    if _same(earlier, before):
        return now
    if isinstance(before, dict):
        kept = {key: value for key, value in before.items() if key in now or key not in earlier}
        return kept | {key: value for key, value in now.items() if key not in earlier or earlier[key] is not value}
    if type(before) is list and _same(now[: len(earlier)], earlier):
        return before + now[len(earlier) :]
    if isinstance(before, set):
        return (before | (now - earlier)) - (earlier - now)
    return before


def _place(generator: types.GeneratorType[Any, Any, Any]) -> Any:
    """Return where a generator stands and with what: after a round of a loop it stands at the same place again."""
    frame = generator.gi_frame
    return None if frame is None else (frame.f_lasti, [id(item) for item in gc.get_referents(generator, frame)])
