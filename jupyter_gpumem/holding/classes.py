"""What a class is, read past its metaclass: no code of either runs, and a class that cannot be hashed is one too."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Generic, TypeVar

_Known = TypeVar("_Known")

_read_module, _read_name, _read_mro, _read_names = (
    vars(type)[name].__get__ for name in ("__module__", "__name__", "__mro__", "__dict__")
)


class ByType(Generic[_Known]):
    """What is known of types, by their ids: a class whose metaclass compares it has no hash.

    None is kept alive: what refers to a class would be found as one who holds what the class has.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Known, weakref.ref[type]]] = {}

    def get(self, kind: type) -> _Known | None:
        """Return what is known of a type; `None` if that is nothing."""
        found = self._known.get(id(kind))
        return found[0] if found is not None and found[1]() is kind else None

    def put(self, kind: type, known: _Known) -> _Known:
        """Note what is known of a type, and return it."""
        self._known[id(kind)] = known, weakref.ref(kind)
        return known


def is_a(item: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether an object is of a type. Unlike `isinstance`, this does not ask the object: a lazy proxy stays asleep."""
    return issubclass(type(item), kinds)


def module_of(kind: type) -> str | None:
    """Return the name of the module that a class says it is from; `None` if it says none."""
    try:
        found = _read_module(kind)
    except AttributeError:
        return None
    return found if type(found) is str else None


def name_of(kind: type) -> str:
    """Return the name of a class."""
    return str(_read_name(kind))


def mro_of(kind: type) -> tuple[type, ...]:
    """Return a class and those it inherits from."""
    found: tuple[type, ...] = _read_mro(kind)
    return found


def namespace_of_class(kind: Any) -> dict[str, Any] | None:
    """Return the dict in which a class keeps its attributes; `None` for no class."""
    if not is_a(kind, type):
        return None
    (found,) = gc.get_referents(_read_names(kind))
    return found if type(found) is dict else None


def has(kind: type, name: str) -> bool:
    """Whether a class or one that it inherits from defines an attribute."""
    return any(name in (namespace_of_class(one) or ()) for one in mro_of(kind))
