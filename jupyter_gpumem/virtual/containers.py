"""What Python objects hold, remembered and put back: lists, dicts, sets and the attributes of the user's objects."""

from __future__ import annotations

import gc
import io
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from .ownership import is_users
from .ways import numpy_class, ways

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    _Kept = tuple[Any, Any, Callable[[Any], Any], Callable[[Any, Any], Any]]

MOST = 200_000
"""So many objects are remembered."""

_LEFT_ALONE = (types.BuiltinFunctionType, str, bytes, int, float, complex, type(None))


class Contents:
    """What every container holds that can be reached from some objects.

    The objects of installed packages other than PyTorch are left alone, with all that only they hold: they may have
    threads, files and sockets.

    Args:
        roots: where to begin.

    Attributes:
        complete: whether all was remembered, not only the first `MOST`.
        tensors, arrays, files: the tensors, the NumPy arrays and the files that were met.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self.complete = True
        self.tensors: list[torch.Tensor] = []
        self.arrays: list[Any] = []
        self.files: list[Any] = []
        self._kept: list[_Kept] = []
        self._exchanging: list[_Kept] | None = None
        self._generators: list[tuple[types.GeneratorType[Any, Any, Any], Any]] = []
        self._walk(roots)

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

    def _walk(self, roots: Iterable[Any]) -> None:
        seen: set[int] = set()
        kinds: set[type] = set()
        todo = deque(roots)  # the nearest first: what is left out where there is too much lies deep
        while todo:
            item = todo.popleft()
            if id(item) in seen or _is_left_alone(item):
                continue
            seen.add(id(item))
            self._note(item)
            kind = type(item)
            if kind not in kinds:
                kinds.add(kind)
                todo.extend(kind.__mro__)
            for read, write in ways(item):
                if len(self._kept) >= MOST:
                    self.complete = False
                    return
                before = read(item)
                self._kept.append((item, before, read, write))
                todo.extend(_held(before))
            todo.extend(_held(item) if isinstance(item, tuple) else ())
            if isinstance(item, types.MethodType):
                todo.append(item.__self__)

    def _note(self, item: Any) -> None:
        if isinstance(item, torch.Tensor):
            self.tensors.append(item)
        elif isinstance(item, numpy_class("ndarray")):
            self.arrays.append(item)
        elif isinstance(item, io.IOBase):
            self.files.append(item)
        elif isinstance(item, types.GeneratorType):
            self._generators.append((item, _place(item)))


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


def _held(before: Any) -> Iterable[Any]:
    """Return the objects in what was read."""
    if isinstance(before, dict):
        return before.values()
    return before if isinstance(before, (list, tuple, set)) else ()


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


def _place(generator: types.GeneratorType[Any, Any, Any]) -> Any:
    """Return where a generator stands and with what: after a round of a loop it stands at the same place again."""
    frame = generator.gi_frame
    return None if frame is None else (frame.f_lasti, [id(item) for item in gc.get_referents(generator, frame)])
