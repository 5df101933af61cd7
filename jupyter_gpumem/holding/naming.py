"""The way from a root to a tensor, as a person would write it: `cache['a'][3].weight`."""

from __future__ import annotations

import functools
import gc
import itertools
import threading
import types
from collections import deque
from typing import TYPE_CHECKING, Any

from .checkpoints import is_holder
from .classes import is_a, mro_of, name_of, namespace_of_class
from .edges import function_name, local_names, task_type
from .tensors import attributes_of, ndarray_types, scripted, view_of_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .tensors import Torch

_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
_TRACED = "_actual_script_module"
"""Where a traced module keeps the module of TorchScript that it stands for."""
_PLAIN = (type(None), int, str, bytes, float, bool)
_SEQUENCES = (list, tuple, deque)
_CACHED = type(functools.lru_cache(len))
_LONGEST_KEY = 40
_LONGEST_HEAD, _LONGEST_TAIL = 120, 80
"""Characters at either end that are left of a way that is too long to read, such as one along a linked list."""
_STEPS = ".[ "
"""What a step begins with."""


def describe(item: Any) -> str:
    """Return what an object is: `Linear`, `list of 3`, `float32 tensor of shape (3, 4)`."""
    torch = view_of_torch()
    kind = type(item)
    if torch is not None and torch.is_tensor(kind):
        with torch.undisturbed():
            dtype = str(torch.read(item, "dtype")).removeprefix("torch.")
            noun = "Parameter" if name_of(kind) == "Parameter" else "tensor"
            return f"{dtype} {noun} of shape {tuple(torch.read(item, 'shape'))}"
    if any(kind is one for one in (list, tuple, dict, set, deque)):
        return f"{name_of(kind)} of {len(item)}"
    if issubclass(kind, ndarray_types()):
        return f"array of shape {ndarray_types()[0].shape.__get__(item)}"
    if is_a(item, types.FunctionType):
        return f"function {function_name(item)}"
    return name_of(kind)


def name_in(namespace: Mapping[str, Any], item: Any, module: str) -> str:
    """Return what code outside calls an object of a module, such as `library.CACHE`; the module if it has no name."""
    name = next((name for name, value in list(namespace.items()) if value is item), None)
    return module if name is None else f"{module.removeprefix('module ')}.{name}"


def path_text(name: str, path: Sequence[Any]) -> str:
    """Return a way in words; of a very long one, its beginning and its end.

    Args:
        name: what the first object is called.
        path: the objects from there to the end.
    """
    writer = _Writer(name)
    for before, after in itertools.pairwise(path):
        writer.step(before, after)
    return _shortened(writer.text)


def _shortened(text: str) -> str:
    """Return a way without its middle if it is very long, cut between two steps where that is possible."""
    if len(text) <= 2 * (_LONGEST_HEAD + _LONGEST_TAIL):
        return text
    head, tail = text[:_LONGEST_HEAD], text[-_LONGEST_TAIL:]
    end = max(head.rfind(mark) for mark in _STEPS)
    begin = min((at for at in (tail.find(mark) for mark in _STEPS) if at >= 0), default=0)
    return f"{head[:end] if end > 0 else head} ... {tail[begin:].lstrip()}"


class _Writer:
    """Puts a way together; steps through the insides of an object are said together with the next one."""

    def __init__(self, name: str) -> None:
        self.text = name
        self._torch = view_of_torch()
        self._owner: Any = None  # whose attributes the dict at hand holds
        self._in_graph = False
        self._optimizer: Any = None  # of which the state is at hand

    def step(self, parent: Any, child: Any) -> None:
        """Say one step."""
        owner, self._owner = self._owner, None
        torch = self._torch
        if torch is not None and torch.is_node(type(child)):
            if not self._in_graph:
                self.text, self._in_graph = f"the autograd graph of {self.text}", True
            return
        if torch is not None and torch.is_node(type(parent)):
            self._saved(parent, child)
            return
        if is_a(child, dict) and (child is attributes_of(parent) or child is namespace_of_class(parent)):
            self._owner = parent
        elif is_a(parent, dict):
            self._key(parent, child, owner)
        else:
            self._other(parent, child)

    def _saved(self, node: Any, child: Any) -> None:
        if child is attributes_of(node):
            self.text += f", kept by {name_of(type(node))}"
            self._owner = node
        elif is_a(child, dict):
            self.text += f", hooks of {name_of(type(node))}"
        elif not is_a(child, (tuple, list)):
            self.text += f", saved by {name_of(type(node))}"

    def _key(self, parent: dict[Any, Any], child: Any, owner: Any) -> None:
        key = _key_of(parent, child)
        if owner is not None and is_a(key, str):
            self._attribute(owner, key, child)
        elif is_a(owner, threading.local):
            self._owner = owner  # a dict of dicts, one for each thread
        elif key is _NONE:
            self._stored(parent, child, " (a key)")
        elif any(type(key) is kind for kind in _PLAIN):
            self.text += f"[{key!r:.{_LONGEST_KEY}}]"
        else:
            self.text += f"[{_parameter_name(self._optimizer, key) or _label(key)}]"

    def _attribute(self, owner: Any, name: str, child: Any) -> None:
        if name in _MODULE_DICTS and is_a(child, dict):
            self._owner = owner  # `model.fc`, as PyTorch names it, not `model._modules['fc']`
        elif name != _TRACED:
            self.text += f".{name}"
        kind = self._torch.optimizer if self._torch is not None else None
        self._optimizer = owner if name == "state" and kind is not None and is_a(owner, kind) else None

    def _stored(self, parent: Any, child: Any, otherwise: str) -> None:
        """Say an attribute of an object that also holds others in a way of its own; without one, that way."""
        name = _attribute_name(parent, child)
        if name is not None:
            self._attribute(parent, name, child)
        else:
            self.text += otherwise

    def _other(self, parent: Any, child: Any) -> None:  # noqa: C901 - one case for each kind of object
        if is_a(parent, _SEQUENCES):
            self._element(parent, child)
        elif is_a(parent, types.FunctionType):
            self._function(parent, child)
        elif is_a(parent, (types.CellType, *filter(None, [task_type()]))):
            return
        elif is_a(parent, types.MethodType):
            self.text += ".__self__" if child is parent.__self__ else ""
        elif is_a(parent, functools.partial):
            self.text += f" (an argument of partial {function_name(parent)})"
        elif is_a(parent, _CACHED):
            self.text += " (a cached result)"
        elif is_a(parent, types.FrameType):
            if not is_a(child, types.FrameType):  # its caller: the local name of that one comes next
                self._local(parent, child)
        elif is_a(parent, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)):
            frame = getattr(parent, "gi_frame", None) or getattr(parent, "cr_frame", None)
            frame = frame or getattr(parent, "ag_frame", None)
            if frame is not None and child is not frame:
                self._local(frame, child)
        elif is_a(parent, BaseException):
            if not is_a(child, (BaseException, types.TracebackType)):
                self._stored(parent, child, " (an argument of the exception)")
        elif is_a(parent, types.TracebackType):
            return
        elif is_a(parent, threading.local):
            self._owner = parent
        elif is_a(parent, ndarray_types()):
            self.text += f"[{_position(parent, child)}]"
        elif is_a(parent, (set, frozenset)):
            self._stored(parent, child, " (an element)")
        else:
            self._instance(parent, child)

    def _element(self, parent: Any, child: Any) -> None:
        index = _index_of(parent, child)
        if index is None:
            self._stored(parent, child, "[...]")
        else:
            self.text += f"[{index}]"

    def _instance(self, parent: Any, child: Any) -> None:
        name = _attribute_name(parent, child)
        if name is None and self._torch is not None and self._torch.is_scripted(type(parent)):
            name = next((name for name, value in scripted(parent) if value is child), None)
        if name is not None:
            self._attribute(parent, name, child)
        elif is_holder(type(parent)):
            self.text += ", in a checkpoint"
        elif self._torch is not None and self._torch.is_saved(type(parent)):
            return
        elif self._torch is not None and self._torch.is_tensor(type(parent)):
            with self._torch.undisturbed():
                self.text += self._part(self._torch, parent, child)
        elif not is_a(child, type):
            self.text += f" (in a {name_of(type(parent))})"

    def _part(self, torch: Torch, tensor: Any, child: Any) -> str:
        if (hooks := torch.hooks_name(tensor, child)) is not None:
            return f".{hooks}"
        if torch.read(tensor, "_base") is child:
            return " (a view)"
        is_grad = torch.read(tensor, "is_leaf") and torch.read(tensor, "grad") is child
        return ".grad" if is_grad else " (a part of it)"

    def _function(self, function: types.FunctionType, child: Any) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            if cell is child:
                self.text += f" (closure variable {name} of {function_name(function)})"
                return
        if child is function.__globals__:
            self.text += f" (a global name of {function_name(function)})"
        elif child is not function.__dict__:
            self.text += f" (a default of {function_name(function)})"

    def _local(self, frame: types.FrameType, child: Any) -> None:
        names = local_names(frame)
        # A variable that a function inside uses lies in a cell.
        wanted = gc.get_referents(child) if is_a(child, types.CellType) else [child]
        name = next((name for name, value in names.items() if any(value is one for one in wanted)), None)
        self.text += f" (local {name or '?'} of {frame.f_code.co_name}, line {frame.f_lineno})"


class _None:
    """No key."""


_NONE = _None()


def _key_of(mapping: dict[Any, Any], child: Any) -> Any:
    # A list, made at once: another thread may change the dict meanwhile.
    return next((key for key, value in list(dict.items(mapping)) if value is child), _NONE)


def _index_of(sequence: Any, child: Any) -> int | None:
    kind = next(kind for kind in _SEQUENCES if is_a(sequence, kind))
    return next((index for index, item in enumerate(list(kind.__iter__(sequence))) if item is child), None)


def _position(array: Any, child: Any) -> str:
    (kind,) = ndarray_types()
    for index, item in enumerate(kind.flat.__get__(array)):
        if item is child:
            position = []
            for length in reversed(kind.shape.__get__(array)):
                index, rest = divmod(index, length)  # noqa: PLW2901
                position.append(rest)
            return ", ".join(map(str, reversed(position)))
    return "..."


def _attribute_name(item: Any, child: Any) -> str | None:
    return next((name for name, value in _attributes(item) if value is child), None)


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes an instance stores, without running a property."""
    yield from list((attributes_of(item) or {}).items())
    for kind in mro_of(type(item)):
        for name, descriptor in list((namespace_of_class(kind) or {}).items()):
            if type(descriptor) is types.MemberDescriptorType:
                try:
                    yield name, descriptor.__get__(item)
                except AttributeError:
                    continue


def _parameter_name(optimizer: Any, key: Any) -> str | None:
    """Return what a parameter is called that an optimizer has: the name that it was given with, or its number."""
    found = (attributes_of(optimizer) or {}).get("param_groups")
    groups: list[Any] = found if type(found) is list else []
    for number, group in enumerate(groups):
        parameters = group.get("params") if type(group) is dict else None
        if type(parameters) is list and (at := _index_of(parameters, key)) is not None:
            names = group.get("param_names")  # PyTorch 2.6, where the parameters were given with their names
            if type(names) is list and at < len(names) and type(names[at]) is str:
                return str(names[at])
            return f"parameter {at}" + (f" of group {number}" if len(groups) > 1 else "")
    return None


def _label(key: Any) -> str:
    """Return how a key that is an object is written; its own `repr` is not run."""
    return f"a {name_of(type(key))}"
