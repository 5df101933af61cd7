"""What Python objects hold, remembered and put back: lists, dicts, sets and the attributes of the user's objects."""

from __future__ import annotations

import functools
import gc
import io
import pickle
import random
import sys
import types
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import torch

from .ownership import is_of_the_user, is_users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    _Way = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]
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
            for read, write in _ways(item):
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
        elif isinstance(item, _numpy("ndarray")):
            self.arrays.append(item)
        elif isinstance(item, io.IOBase):
            self.files.append(item)
        elif isinstance(item, types.GeneratorType):
            self._generators.append((item, _place(item)))


def _is_left_alone(item: Any) -> bool:
    if isinstance(item, _LEFT_ALONE):
        return True
    if isinstance(item, (type, types.ModuleType)):
        return not is_users(item.__module__ if isinstance(item, type) else item.__name__)
    return False


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


def _ways(item: Any) -> Iterator[_Way]:
    """Yield how what an object holds is read, as a copy, and written back."""
    for kinds, read, write in _KINDS:
        if isinstance(item, kinds):
            yield read, write
            break
    else:
        if isinstance(item, _numpy("random", "Generator")):
            yield _read_numpy_generator, _write_numpy_generator
    kind: Any = type(item)
    if type(getattr(item, "__dict__", None)) is dict and (isinstance(item, torch.Tensor) or is_of_the_user(kind)):
        yield _read_attributes, _write_attributes


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


def _write_dict(owner: dict[Any, Any], before: dict[Any, Any]) -> None:
    kind: Any = OrderedDict if isinstance(owner, OrderedDict) else dict
    if len(owner) == len(before) and all(a is b for a, b in zip(owner, before, strict=True)):
        for key, value in before.items():
            kind.__setitem__(owner, key, value)
        return
    # Names that other threads look up meanwhile (a kernel's own, say) are never missing.
    for key in [key for key in owner if key not in before]:
        kind.__delitem__(owner, key)
    for key, value in before.items():
        kind.__setitem__(owner, key, value)
    if any(a is not b for a, b in zip(owner, before, strict=True)):
        for key, value in before.items():  # the order, too, is as it was
            kind.__delitem__(owner, key)
            kind.__setitem__(owner, key, value)


def _write_list(owner: Any, before: list[Any]) -> None:
    if isinstance(owner, deque):
        owner.clear()
        owner.extend(before)
    else:
        list.__setitem__(owner, slice(None), before)


def _write_set(owner: set[Any], before: set[Any]) -> None:
    owner.clear()
    owner.update(before)


def _read_function(function: types.FunctionType) -> list[Any]:
    """Return what a function holds in its closure, and the defaults of its arguments."""
    cells = [cell.cell_contents if _filled(cell) else _EMPTY for cell in function.__closure__ or ()]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _write_function(function: types.FunctionType, before: list[Any]) -> None:
    cells, named = function.__closure__ or (), function.__kwdefaults__ or {}
    first, last = len(cells), len(before) - len(named)
    if function.__defaults__:
        function.__defaults__ = tuple(before[first:last])
    named.update(zip(named, before[last:], strict=True))
    for cell, value in zip(cells, before, strict=False):
        if value is not _EMPTY:
            cell.cell_contents = value
        elif _filled(cell):
            del cell.cell_contents


def _read_partial(partial: functools.partial[Any]) -> list[Any]:
    return [partial.func, partial.args, partial.keywords, vars(partial)]


def _write_partial(partial: functools.partial[Any], before: list[Any]) -> None:
    partial.__setstate__(tuple(before))  # type: ignore[attr-defined]


_EMPTY = object()


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - whether that is an error is the question
    except ValueError:
        return False
    return True


def _read_class(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("__")}


def _write_class(kind: type, before: dict[str, Any]) -> None:
    now = _read_class(kind)
    for name in now.keys() - before.keys():
        delattr(kind, name)
    for name, value in before.items():
        if now.get(name, _EMPTY) is not value:
            setattr(kind, name, value)


def _read_module(module: types.ModuleType) -> dict[str, Any]:
    return dict(vars(module))


def _write_module(module: types.ModuleType, before: dict[str, Any]) -> None:
    """Put the names of a module back; a part of it that was imported meanwhile stays one, as it stays imported."""
    parts = {
        name: value
        for name, value in vars(module).items()
        if name not in before and isinstance(value, types.ModuleType) and value.__name__ == f"{module.__name__}.{name}"
    }
    _write_dict(vars(module), before | parts)


def _read_numpy_generator(generator: Any) -> bytes:
    return pickle.dumps(generator.bit_generator.state)


def _write_numpy_generator(generator: Any, before: bytes) -> None:
    generator.bit_generator.state = pickle.loads(before)  # noqa: S301 - written by ourselves, a moment ago


def _numpy(*names: str) -> Any:
    """Return a class of NumPy, or `()`, which nothing is an instance of, where it is not imported."""
    found: Any = sys.modules.get("numpy")
    for name in names:
        found = getattr(found, name, ())
    return found


def _place(generator: types.GeneratorType[Any, Any, Any]) -> Any:
    """Return where a generator stands and with what: after a round of a loop it stands at the same place again."""
    frame = generator.gi_frame
    return None if frame is None else (frame.f_lasti, [id(item) for item in gc.get_referents(generator, frame)])


def _read_attributes(owner: Any) -> dict[str, Any]:
    return dict(vars(owner))


def _write_attributes(owner: Any, before: dict[str, Any]) -> None:
    _write_dict(vars(owner), before)


def _write_bytes(owner: bytearray, before: bytes) -> None:
    owner[:] = before


_KINDS: tuple[tuple[Any, Callable[[Any], Any], Callable[[Any, Any], Any]], ...] = (
    (dict, dict, _write_dict),
    ((list, deque), list, _write_list),
    (set, set, _write_set),
    (bytearray, bytes, _write_bytes),
    (types.FunctionType, _read_function, _write_function),
    (functools.partial, _read_partial, _write_partial),
    (type, _read_class, _write_class),
    (types.ModuleType, _read_module, _write_module),
    (random.Random, random.Random.getstate, random.Random.setstate),
    (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
)
