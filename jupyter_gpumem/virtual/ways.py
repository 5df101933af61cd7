"""How what a Python object holds is read, as a copy, and written back, by the kind of the object."""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import random
import sys
import types
import weakref
from array import array
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import torch

from .ownership import is_of_the_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Way = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]


def ways(item: Any) -> Iterator[_Way]:
    """Yield how what an object holds is read, as a copy, and written back."""
    if (exact := PLAIN_CONTAINERS.get(type(item))) is not None:
        yield exact
        return
    for kinds, read, write in _KINDS:
        if isinstance(item, kinds):
            yield read, write
            break
    else:
        if isinstance(item, numpy_class("random", "Generator")):
            yield _read_numpy_generator, _write_numpy_generator
    kind: Any = type(item)
    if (_has_attributes(item) or _slots(kind)) and (isinstance(item, torch.Tensor) or is_of_the_user(kind)):
        yield _read_attributes, _write_attributes


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


def _read_cache(function: Any) -> tuple[int, Any]:
    """Return how often a function with a cache was really called, and the function inside."""
    return function.cache_info().misses, getattr(function, "__wrapped__", None)


def _empty_cache(function: Any, before: tuple[int, Any]) -> None:
    function.cache_clear()  # what was in it cannot be read


_EMPTY, _CLASS = object(), object()


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


def numpy_class(*names: str) -> Any:
    """Return a class of NumPy, or `()`, which nothing is an instance of, where it is not imported."""
    found: Any = sys.modules.get("numpy")
    for name in names:
        found = getattr(found, name, ())
    return found


def _read_attributes(owner: Any) -> dict[Any, Any]:
    """Return the class of an object, which may be changed, what is in its slots, and its attributes."""
    kind: Any = type(owner)
    found: dict[Any, Any] = {_CLASS: kind}
    for slot in _slots(kind):
        with contextlib.suppress(AttributeError):  # nothing is in it
            found[slot] = slot.__get__(owner)
    return found | vars(owner) if _has_attributes(owner) else found


def _write_attributes(owner: Any, before: dict[Any, Any]) -> None:
    attributes = dict(before)
    kind = attributes.pop(_CLASS)
    if type(owner) is not kind:
        object.__setattr__(owner, "__class__", kind)
    for slot in _slots(kind):
        if slot in attributes:
            slot.__set__(owner, attributes.pop(slot))
        else:
            with contextlib.suppress(AttributeError):
                slot.__delete__(owner)
    if _has_attributes(owner):
        _write_dict(vars(owner), attributes)


@functools.lru_cache(maxsize=4096)
def _slots(kind: type) -> tuple[Any, ...]:
    """Return what reads and writes the slots of a class in Python."""
    return tuple(
        value
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for value in vars(base).values()
        if isinstance(value, types.MemberDescriptorType)
    )


def _has_attributes(owner: Any) -> bool:
    return type(getattr(owner, "__dict__", None)) is dict


def _read_buffer(buffer: Any) -> Any:
    """Return what is in a file in memory, and where it stands; `None` for one that is closed."""
    return None if buffer.closed else _base_of(buffer).__getstate__(buffer)[:-1]


def _write_buffer(buffer: Any, before: Any) -> None:
    if before is None:
        return
    if isinstance(buffer, io.StringIO):
        if buffer.closed:
            io.StringIO.__init__(buffer)
        buffer.__setstate__((*before, None))  # type: ignore[attr-defined]
        return
    content, place = before
    if not buffer.closed and len(buffer.getbuffer()) == len(content):  # which somebody may hold a view of
        with buffer.getbuffer() as view:
            view[:] = content
    else:
        io.BytesIO.__init__(buffer, content)
    io.BytesIO.seek(buffer, place)


def _base_of(buffer: Any) -> Any:
    return io.BytesIO if isinstance(buffer, io.BytesIO) else io.StringIO


def _write_items(owner: Any, before: Any) -> None:
    owner[:] = before


def _read_weak(owner: Any) -> Any:
    """Return the references that a weak dictionary or set has."""
    return dict(owner.data) if isinstance(owner.data, dict) else set(owner.data)


def _write_weak(owner: Any, before: Any) -> None:
    """Put them back, without those to what is gone: nobody would take these out again."""
    if isinstance(before, dict):
        _write_dict(owner.data, {key: value for key, value in before.items() if _lives(key) and _lives(value)})
    else:
        _write_set(owner.data, set(filter(_lives, before)))


def _lives(item: Any) -> bool:
    return not isinstance(item, weakref.ref) or item() is not None


_KINDS: tuple[tuple[Any, Callable[[Any], Any], Callable[[Any, Any], Any]], ...] = (
    (dict, dict, _write_dict),
    ((list, deque), list, _write_list),
    (set, set, _write_set),
    (bytearray, bytes, _write_items),
    (array, lambda items: items[:], _write_items),
    ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet), _read_weak, _write_weak),
    (types.FunctionType, _read_function, _write_function),
    (functools.partial, _read_partial, _write_partial),
    (functools._lru_cache_wrapper, _read_cache, _empty_cache),
    (type, _read_class, _write_class),
    (types.ModuleType, _read_module, _write_module),
    ((io.BytesIO, io.StringIO), _read_buffer, _write_buffer),
    (random.Random, random.Random.getstate, random.Random.setstate),
    (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
)

PLAIN_CONTAINERS: dict[type, _Way] = {dict: (dict, _write_dict), list: (list, _write_list), set: (set, _write_set)}
"""What holds nothing beside its items; a data set may have millions of them."""
