"""What a call of an operator consists of: its schema, its card, what decides its shapes, and its arguments as meta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import refusals
from .operators import MANY_DEVICES
from .storages import BACKEND

if TYPE_CHECKING:
    from collections.abc import Iterable

NEW, VIEW = object(), object()
"""A result of its own, and one that shares an argument's storage."""

_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_META_DEVICE = torch.device("meta")
_empty_strided = torch.ops.aten.empty_strided.default
_Tensor = torch.Tensor


class Signature:
    """What an operator's schema says about its results.

    Attributes:
        name: the operator without name space and overload.
        results: for each result `NEW`, `VIEW`, or the position and the name of the argument that it is.
        fresh: whether there is a new one.
        check: raises what CUDA's operator refuses of arguments, where a meta kernel does not.
        native: whether the CPU's kernel serves, because it makes views only.
        out: names of the arguments that results are written to, for an `out=` overload.
        writes: position and name of every argument that is written to.
        many: whether its tensors may be on different devices.
    """

    __slots__ = ("check", "fresh", "many", "name", "native", "out", "results", "writes")

    def __init__(self, op: Any) -> None:
        schema = op._schema
        self.name = schema.name.rpartition("::")[2]
        arguments = [(at, arg) for at, arg in enumerate(schema.arguments) if arg.alias_info is not None]
        self.results: list[Any] = []
        for result in schema.returns:
            info = result.alias_info
            if info is None:
                self.results.append(NEW)
            elif not info.is_write:
                self.results.append(VIEW)
            else:
                self.results.append(
                    next((at, arg.name) for at, arg in arguments if arg.alias_info.before_set == info.before_set)
                )
        self.fresh = NEW in self.results
        self.native = VIEW in self.results or self.name in {"set_", "is_set_to", "as_strided_"}
        self.out = [arg.name for _, arg in arguments if arg.is_out]
        self.writes = [(at, arg.name) for at, arg in arguments if arg.alias_info.is_write]
        self.many = self.name in MANY_DEVICES
        self.check = refusals.CHECKS.get(self.name)


def key_of(values: Iterable[Any], tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    """Return what decides the shapes of results, and collect the tensors on the way."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, _Tensor):
            tensors.append(value)
            parts.append((value.dtype, value.size(), value.stride(), value.get_device()))
            continue
        kind = type(value)
        if kind is list or kind is tuple:
            parts.append(key_of(value, tensors))
        elif kind is int or kind is float or kind is bool:
            parts.append((kind, value))
        elif isinstance(value, torch._C.Generator):
            parts.append(None)
        else:
            parts.append(value)
    return tuple(parts)


def card_of(signature: Signature, tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> int:
    """Return the index of the card that the tensors are on.

    Raises:
        RuntimeError: they are not all on one.
    """
    index = other = -1
    for tensor in tensors:
        at = tensor.get_device()
        if at >= 0:
            if index < 0:
                index = at
            elif at != index:
                other = at
    if index < 0:
        return index_of(kwargs.get("device"))
    if not signature.many:
        if other >= 0:
            _refuse(f"cuda:{index}", f"cuda:{other}")
        if any(tensor.is_cpu and tensor.dim() for tensor in tensors):
            _refuse(f"cuda:{index}", "cpu")
    return index


def _refuse(first: str, second: str) -> None:
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    )


def index_of(device: torch.device | None) -> int:
    """Return the index of a card that PyTorch or a user has named."""
    if device is None or device.index is None:
        return torch.cuda.current_device() if device is not None and device.type != BACKEND else 0
    return int(device.index)


def given(where: tuple[int, str], args: Any, kwargs: Any) -> Any:
    """Return the argument at a position and of a name."""
    at, name = where
    return kwargs[name] if name in kwargs else args[at]


def shape_of(result: Any) -> Any:
    """Return sizes, strides and type of a result; of several a list, and what is no tensor as it is."""
    if isinstance(result, _Tensor):
        return (tuple(result.size()), result.stride(), result.dtype)
    if isinstance(result, (list, tuple)):
        return [shape_of(one) for one in result]
    return result


def on_meta(values: Iterable[Any]) -> list[Any]:
    """Return the values with tensors of the meta device for tensors, and that device for any other."""
    found = []
    for value in values:
        if isinstance(value, _Tensor):
            found.append(
                _empty_strided.redispatch(_META, value.size(), value.stride(), dtype=value.dtype, device=_META_DEVICE)
            )
        elif isinstance(value, torch.device):
            found.append(_META_DEVICE)
        elif isinstance(value, (list, tuple)):
            found.append(on_meta(value))
        elif isinstance(value, torch._C.Generator):
            found.append(None)
        else:
            found.append(value)
    return found


def on_meta_named(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the same of arguments by name."""
    return dict(zip(kwargs, on_meta(kwargs.values()), strict=True))
