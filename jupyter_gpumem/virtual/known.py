"""The few values that do exist on the virtual device: those of small tensors that follow from the host alone.

Lengths, positions, masks and flags decide where a program goes: whether generation is finished, whether a mask is
needed. Where such a tensor was copied or filled from the host, and so was everything that it is computed from, a copy
in host memory is computed along with it. What is not known is taken to be zero, and marked as assumed, with all that
comes of it. Numbers with a fraction are followed one by one only; nothing random is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .storages import NATIVE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LIMIT = 1 << 20
"""Bytes of the largest storage that is followed."""

_OVERWRITES = frozenset({"fill_", "zero_"})
_ATTRIBUTE = "_gpumem_values"
_RANDOM = torch.Tag.nondeterministic_seeded
_CPU = torch.device("cpu")
_Tensor = torch.Tensor
_set = torch.ops.aten.set_.source_Storage_storage_offset


def exact(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor of the device as a CPU tensor, or `None` if they are not known.

    The CPU tensor is of the same shape and layout and is not a copy: what is written to it is written to the values.
    """
    host = getattr(tensor.untyped_storage(), _ATTRIBUTE, None)
    return None if host is None or host.assumed else _view(tensor, host)


def assumed(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor of the device, known or assumed; `None` if nothing is followed there."""
    host = getattr(tensor.untyped_storage(), _ATTRIBUTE, None)
    return None if host is None else _view(tensor, host)


def carry(storage: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
    """Note that a storage of the device holds the bytes of one in host memory, or of another card's that are known."""
    host = _Host(0)
    if source.device.type == "cpu":
        kept = source
    else:
        known = getattr(source, _ATTRIBUTE, None)
        if known is None:
            return
        kept, host.assumed = known.storage, known.assumed
    if kept.nbytes() <= _LIMIT:
        host.storage = kept.clone()
        setattr(storage, _ATTRIBUTE, host)


def forget(tensor: torch.Tensor) -> None:
    """Note that what was written to a tensor is not known."""
    storage = tensor.untyped_storage()
    if getattr(storage, _ATTRIBUTE, None) is not None:
        setattr(storage, _ATTRIBUTE, None)


def write(tensor: torch.Tensor, source: torch.Tensor | None, *, sure: bool = True) -> None:
    """Note what was written to a tensor of the device: the values of a CPU tensor, or something unknown.

    Args:
        tensor: the tensor.
        source: the values, or `None`.
        sure: whether they are known, not assumed.
    """
    target = _target(tensor) if source is not None else None
    if target is None or source is None:
        forget(tensor)
    else:
        target.copy_(source)
        _mark(tensor, sure=sure)


def follow(
    op: Any,
    name: str,
    out: Sequence[str],
    args: Any,
    kwargs: Any,
    written: list[torch.Tensor],
    results: list[Any],
) -> None:
    """Compute an operator's values, if all that it reads is known and all that it gives may be.

    Args:
        op: the operator.
        name: its name, without name space and overload.
        out: names of the arguments that it only writes to.
        args: its arguments.
        kwargs: its arguments by name.
        written: those of its tensors that it writes to.
        results: what it returned.
    """
    given = list(_flat(results)) or written  # operators on lists return nothing where they write
    if not given or not all(_followed(tensor) for tensor in given):
        for tensor in written:
            forget(tensor)
        return
    on_host = _HostArguments()
    try:
        if _RANDOM in op.tags:
            raise _UnknownError
        read = on_host.all(args) if name not in _OVERWRITES else [_written(args[0]), *on_host.all(args[1:])]
        named = {key: _written(value) if key in out else on_host.one(value) for key, value in kwargs.items()}
        found = op(*read, **named)
    except (_UnknownError, RuntimeError, IndexError, ValueError):
        # A value that the CPU refuses, a device would not have refused here either.
        for tensor in written:
            forget(tensor)
        return
    for tensor in written:
        _mark(tensor, sure=not on_host.assumed)
    fresh = found if isinstance(found, (list, tuple)) else [found]
    touched = {id(tensor) for tensor in written}
    for tensor, value in zip(given, _flat(fresh), strict=False):
        if id(tensor) not in touched:
            write(tensor, value, sure=not on_host.assumed)


class _UnknownError(Exception):
    """Something that is read is not known."""


class _Host:
    """The values of a storage, and whether some of them are assumed."""

    __slots__ = ("assumed", "storage")

    def __init__(self, nbytes: int) -> None:
        self.storage = torch.UntypedStorage(nbytes)
        self.assumed = False


class _HostArguments:
    """Arguments with their values for the tensors of the device.

    Attributes:
        assumed: whether a value was met that is not known.
    """

    def __init__(self) -> None:
        self.assumed = False

    def all(self, arguments: Iterable[Any]) -> list[Any]:
        return [self.one(argument) for argument in arguments]

    def one(self, argument: Any) -> Any:
        if isinstance(argument, _Tensor):
            return argument if argument.is_cpu else self._values(argument)
        if isinstance(argument, (list, tuple)):
            return self.all(argument)
        return _CPU if isinstance(argument, torch.device) else argument

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        host = getattr(tensor.untyped_storage(), _ATTRIBUTE, None)
        if host is not None:
            self.assumed = self.assumed or host.assumed
            return _view(tensor, host)
        if not _followed(tensor):
            raise _UnknownError
        self.assumed = True
        return torch.zeros(tensor.size(), dtype=tensor.dtype, device=_CPU)


def _mark(tensor: torch.Tensor, *, sure: bool) -> None:
    """Note whether what was written to a tensor is known; a whole storage of known values is known again."""
    storage = tensor.untyped_storage()
    host = getattr(storage, _ATTRIBUTE, None)
    if host is not None and (not sure or storage.nbytes() == tensor.numel() * tensor.dtype.itemsize):
        host.assumed = not sure


def _followed(tensor: torch.Tensor) -> bool:
    dtype = tensor.dtype
    if dtype.is_floating_point or dtype.is_complex:
        return bool(tensor.numel() == 1)
    return bool(tensor.numel() * dtype.itemsize <= _LIMIT)


def _target(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return where the values of a tensor go that is written to as a whole, or `None` if they are not followed."""
    found = assumed(tensor)
    if found is not None or not _followed(tensor):
        return found
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.numel() * tensor.dtype.itemsize:
        return None  # only a part of the storage
    host = _Host(storage.nbytes())
    setattr(storage, _ATTRIBUTE, host)
    return _view(tensor, host)


def _written(tensor: torch.Tensor) -> torch.Tensor:
    """Return where the values of a tensor go that is only written to."""
    found = _target(tensor)
    if found is None:
        raise _UnknownError
    return found


def _view(tensor: torch.Tensor, host: _Host) -> torch.Tensor:
    empty = torch.empty((0,), dtype=tensor.dtype, device=_CPU)
    return _set.redispatch(NATIVE, empty, host.storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _flat(found: Iterable[Any]) -> Iterable[torch.Tensor]:
    for one in found:
        if isinstance(one, _Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _flat(one)


class Kept:
    """What is followed of a tensor, remembered and put back."""

    __slots__ = ("_before", "_sure", "_values")

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        host: _Host | None = getattr(storage, _ATTRIBUTE, None)
        self._before = (storage, host)
        self._values = None if host is None else host.storage.clone()
        self._sure = host is None or not host.assumed

    def restore(self) -> None:
        """Put it back."""
        storage, host = self._before
        if host is not None:
            host.storage.copy_(self._values)
            host.assumed = not self._sure
        if getattr(storage, _ATTRIBUTE, None) is not host:
            setattr(storage, _ATTRIBUTE, host)
