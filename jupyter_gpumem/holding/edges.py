"""What an object refers to, found without running any of its code."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

from jupyter_gpumem.notebook import LAST_ERROR

from . import tensors
from .checkpoints import Checkpoints, is_holder
from .classes import is_a, module_of, name_of
from .frames import is_machinery, is_result, machinery_around, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Children: TypeAlias = "Callable[[Any], Iterable[Any]]"

ATOMS = frozenset(
    map(
        id,
        {
            bool,
            bytearray,
            bytes,
            complex,
            float,
            int,
            memoryview,
            range,
            str,
            type(None),
            type(Ellipsis),
            type(NotImplemented),
            types.CodeType,
            types.GetSetDescriptorType,
            types.MemberDescriptorType,
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
            types.ClassMethodDescriptorType,
        },
    )
)
"""The ids of types whose instances hold nothing that could lead to device memory."""


def task_type() -> Any:
    """Return the type of asyncio's tasks, once somebody has imported it."""
    return getattr(sys.modules.get("asyncio"), "Task", None)


def loop_types() -> frozenset[int]:
    """Return the ids of the types of asyncio's event loops, and of those that inherit from them."""
    base = getattr(sys.modules.get("asyncio"), "AbstractEventLoop", None)
    found: list[type] = [] if base is None else [base]
    for kind in found:
        found += type.__subclasses__(kind)
    return frozenset(map(id, found))


class Edges:
    """The children of any object. What a type's objects refer to is decided once for each type.

    Attributes:
        classes: whether classes of modules other than the notebook are looked into.
    """

    def __init__(self) -> None:
        self.classes = False
        # By the ids of the types: a class whose metaclass compares it has no hash. Every one lives as long as the walk.
        self._ways: dict[int, Children | None] = dict.fromkeys(ATOMS)
        self._torch = tensors.view_of_torch()
        self._running = running()
        self._checkpoints = Checkpoints()
        self._last_error = {id(getattr(sys, name, None)) for name in LAST_ERROR} - {id(None)}

    def way(self, kind: type) -> Children | None:
        """Return the function that lists the children of a type's objects; `None` if they have none."""
        try:
            return self._ways[id(kind)]
        except KeyError:
            found = self._ways[id(kind)] = self._find(kind)
            return found

    def _find(self, kind: type) -> Children | None:
        if self._torch is not None and (way := self._torch.way(kind)) is not None:
            return way
        if issubclass(kind, weakref.ref):
            return None
        if issubclass(kind, types.ModuleType):
            return _of_module
        if issubclass(kind, type):
            return self._of_class
        if issubclass(kind, types.FunctionType):
            return _of_function
        if issubclass(kind, types.FrameType):
            return self._of_frame
        if issubclass(kind, tensors.ndarray_types()):
            return self._of_array
        if is_result(kind):
            return self._of_result
        if is_holder(kind):
            return self._checkpoints.children
        return gc.get_referents

    def between(self, item: Any) -> list[Any]:
        """Return the containers of an object's own, between it and its children, that the walk passes over."""
        kind = type(item)
        if issubclass(kind, types.FunctionType):
            found = [item.__defaults__, item.__closure__]
        elif issubclass(kind, type):
            found = [value for value in gc.get_referents(item) if type(value) is tuple]
        elif self.way(kind) in (tensors.values_of, tensors.of_scripted):
            found = [tensors.attributes_of(item)]
        elif issubclass(kind, types.FrameType):
            found = machinery_around(item, self._running)
        elif is_result(kind):
            found = [tensors.attributes_of(item)]
        elif is_holder(kind):
            found = self._checkpoints.between(item)
        else:
            return []
        return [container for container in found if container is not None]

    def _of_frame(self, frame: types.FrameType) -> list[Any]:
        """Return what a frame that has ended keeps: its values and its callers; nothing that still runs, or is ours."""
        return [
            value
            for value in gc.get_referents(frame)
            if value is not frame.f_globals
            and value is not frame.f_builtins
            and not (type(value) is types.FrameType and (id(value) in self._running or is_machinery(value)))
        ]

    def _of_result(self, result: Any) -> list[Any]:
        """Return what IPython keeps about a cell; nothing of the one that the last error ended: that is the notebook's.

        Whatever keeps the task that a cell ran in keeps its result: a `TaskGroup` does until Python 3.12.
        """
        kept = dict.values(tensors.attributes_of(result) or {})
        return [] if any(id(value) in self._last_error for value in kept) else gc.get_referents(result)

    def _of_array(self, array: Any) -> Iterable[Any]:
        return itertools.chain(gc.get_referents(array), elements_of(array))

    def _of_class(self, kind: type) -> Iterable[Any]:
        if self.classes or module_of(kind) == "__main__":
            return [value for value in gc.get_referents(kind) if type(value) is not tuple]
        return ()


def _of_module(module: types.ModuleType) -> tuple[Any, ...]:
    """Return the names of a module, which the walk does not enter where the module was imported: it is a root then."""
    return (tensors.attributes_of(module),)


def _of_function(function: types.FunctionType) -> list[Any]:
    """Return what a function keeps, with its module's names: not entered either where that one was imported."""
    own: tuple[Any, ...] = (*(function.__closure__ or ()), *(function.__defaults__ or ()))
    return [*own, function.__kwdefaults__, function.__dict__, function.__globals__]


def holds_objects(item: Any) -> bool:
    """Whether an object is an array of NumPy's, or of a class that inherits from it, with objects as elements."""
    kinds = tensors.ndarray_types()
    return issubclass(type(item), kinds) and kinds[0].dtype.__get__(item).hasobject


def elements_of(array: Any) -> Iterable[Any]:
    """Return the elements of a NumPy array of objects, which the garbage collector does not see."""
    if not holds_objects(array):
        return ()
    (kind,) = tensors.ndarray_types()
    plain = kind.dtype.__get__(array).names is None  # otherwise some of its fields are objects
    elements: Iterable[Any] = kind.flat.__get__(array) if plain else kind.tolist(array)
    return elements


_OPTIMIZED = 0x1
"""The flag of code whose variables are not in a dict: a function's, but not a module's."""


def namespace_of(frame: types.FrameType) -> dict[str, Any] | None:
    """Return the dict that a module's or class's frame runs in; `None` for a function's frame."""
    return None if frame.f_code.co_flags & _OPTIMIZED else frame.f_locals


def local_names(frame: types.FrameType) -> dict[str, Any]:
    """Return the local variables of a frame, and leave the frame as it was.

    Before Python 3.13, asking a function's frame makes a dict that keeps the values alive from then on; it is emptied
    again if it was empty before, or nobody else has it.
    """
    empty = {id(item) for item in gc.get_referents(frame) if type(item) is dict and not item}
    found = frame.f_locals
    if not is_a(found, dict):
        return {}  # any mapping may be the namespace of a class, and reading it runs its code
    names = dict.copy(found)
    ours = id(found) in empty or sys.getrefcount(found) <= _OURS_ALONE
    if ours and namespace_of(frame) is None and type(found) is dict:
        found.clear()
    return names


_OURS_ALONE = 3  # the frame, `found` and the argument


def function_name(function: Any) -> str:
    """Return how a function, a bound method, a partial or a cached function is called."""
    while is_a(function, (functools.partial, types.MethodType)):
        function = function.func if is_a(function, functools.partial) else function.__func__
    if is_a(function, (types.FunctionType, types.BuiltinFunctionType)):
        return str(function.__qualname__).replace("<locals>.", "")
    return name_of(function if is_a(function, type) else type(function))
