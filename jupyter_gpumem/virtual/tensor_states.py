"""What a tensor is beside its values: its memory, history, gradient, hooks, and how often it was written to."""

from __future__ import annotations

from typing import Any

import torch

from . import known
from .storages import BACKEND

_raw_device = torch._C.TensorBase.device.__get__
_raw_data = torch._C.TensorBase.data
_set_version = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)
_HOOKS: tuple[Any, ...] = (torch._C.TensorBase._backward_hooks, torch._C.TensorBase._post_accumulate_grad_hooks)


class TensorState:
    """What a tensor is beside its values, to be put back.

    Args:
        tensor: the tensor.

    Attributes:
        tensor, version: the tensor, and how often it had been written to.
    """

    __slots__ = ("_alias", "_grad", "_grad_fn", "_hooks", "_known", "_requires_grad", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._alias = _raw_data.__get__(tensor)  # the same memory, with a version of its own
        self.version = version(tensor)
        self._hooks = hooks_of(tensor)
        self._requires_grad = tensor.requires_grad
        self._grad = tensor.grad if tensor.is_leaf else None
        self._grad_fn = tensor.grad_fn
        self._known = known.Kept(tensor) if _raw_device(tensor).type == BACKEND else None

    def restore(self) -> str | None:
        """Put all back that says which memory it is; returns a sentence if something cannot be."""
        tensor = self.tensor
        with torch.no_grad():
            if tensor.grad_fn is not self._grad_fn:
                if self._grad_fn is not None:
                    return f"the history of a tensor of shape {tuple(tensor.shape)} was changed in place"
                tensor.detach_()
            if not _alike(tensor, self._alias):
                _raw_data.__set__(tensor, self._alias)
            if tensor.requires_grad != self._requires_grad:
                tensor.requires_grad_(self._requires_grad)
        if self._known is not None:
            self._known.restore()
        return None

    def restore_rest(self) -> None:
        """Put its gradient, its hooks and its version back, when its values are as before."""
        if self._grad_fn is None and self.tensor.grad is not self._grad:
            self.tensor.grad = self._grad
        for way, hooks, now in zip(_HOOKS, self._hooks, hooks_of(self.tensor), strict=True):
            if now is not hooks:
                if now is not None:
                    now.clear()  # the graph of a result keeps it
                way.__set__(self.tensor, hooks)
        if self.version is not None and _set_version is not None and version(self.tensor) != self.version:
            _set_version((self.tensor,), (self.version,))


def hooks_of(tensor: torch.Tensor) -> tuple[dict[int, Any] | None, ...]:
    """Return the dicts of a tensor's hooks, `None` where it has none."""
    return tuple(way.__get__(tensor) for way in _HOOKS)


def _alike(tensor: torch.Tensor, alias: torch.Tensor) -> bool:
    """Whether a tensor is still the same piece of the same memory."""
    return bool(
        tensor.layout == alias.layout
        and tensor.dtype == alias.dtype
        and tensor.size() == alias.size()
        and (
            tensor.layout != torch.strided
            or (
                tensor.stride() == alias.stride()
                and tensor.storage_offset() == alias.storage_offset()
                and tensor.untyped_storage()._cdata == alias.untyped_storage()._cdata
            )
        )
    )


def version(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was written to; `None` for one of inference mode, which does not count."""
    return None if tensor.is_inference() else int(tensor._version)
