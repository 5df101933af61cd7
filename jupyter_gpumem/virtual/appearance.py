"""What tensors and storages of the virtual device are for whoever reads them: `cuda`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.errors import UnavailableError

from . import known
from .storages import BACKEND, new_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from .memory import VirtualMemory
    from .patches import Patches

_raw_device = torch._C.TensorBase.device.__get__
_on_cpu = torch._C.TensorBase.is_cpu.__get__
_raw_data = torch._C.TensorBase.data


def of_tensors(inside: tuple[torch.device, ...], shown: tuple[torch.device, ...], patches: Patches) -> None:
    """Have tensors of the virtual device say that they are of `cuda`.

    Args:
        inside: the devices as PyTorch knows them.
        shown: the devices as they are shown.
        patches: where the replacements are made.
    """
    tensor = torch.Tensor

    # The commonest calls of all, for tensors of the host as well: what is asked of these first is what is cheapest.
    host, names = torch.device("cpu"), dict(zip(inside, shown, strict=True))

    def device(self: torch.Tensor) -> torch.device:
        if _on_cpu(self):
            return host
        where = _raw_device(self)
        return names.get(where, where)

    def is_cuda(self: torch.Tensor) -> bool:
        return not _on_cpu(self) and _raw_device(self).type in {BACKEND, "cuda"}

    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        if _on_cpu(self) and _on_cpu(value):
            _raw_data.__set__(self, value)
            return
        kinds = {_raw_device(self).type, _raw_device(value).type}
        if BACKEND in kinds and len(kinds) > 1:
            _exchange(self, value)
        else:
            _raw_data.__set__(self, value)

    patches.set(tensor, "device", property(device))
    patches.set(tensor, "is_cuda", property(is_cuda))
    patches.set(tensor, "data", property(_raw_data.__get__, set_data))
    compatible = torch._has_compatible_shallow_copy_type

    def has_compatible_shallow_copy_type(input: torch.Tensor, from_: torch.Tensor) -> bool:  # noqa: A002
        kinds = {_raw_device(input).type, _raw_device(from_).type}
        return kinds == {BACKEND, "cpu"} or compatible(input, from_)

    patches.set(torch, "_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type)
    plain_str = torch._tensor_str._str

    def show(self: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if tensor_contents is None and _raw_device(self).type == BACKEND:
            tensor_contents = "..."
            size = "" if self.is_nested or self.dim() == 0 else f", size={tuple(self.shape)}"
            dtype = "" if self.dtype == torch.get_default_dtype() else f", dtype={self.dtype}"
            grad = f", grad_fn=<{type(self.grad_fn).__name__}>" if self.grad_fn is not None else ""
            grad = grad or (", requires_grad=True" if self.requires_grad else "")
            return f"tensor(..., device='{self.device}'{size}{dtype}{grad})"
        return str(plain_str(self, tensor_contents=tensor_contents))

    patches.set(torch._tensor_str, "_str", show)


def of_storages(
    translate: Callable[[Any], Any], memory: VirtualMemory, shown: tuple[torch.device, ...], patches: Patches
) -> None:
    """Have storages of the virtual device say that they are of `cuda`, and copy them to it.

    That they cannot be resized, as PyTorch has no way to it for them, is said in words that a user can act on.

    Args:
        translate: returns the device that PyTorch is to be given for what the user wrote.
        memory: the cards' memory.
        shown: the devices as they are shown.
        patches: where the replacements are made.
    """
    untyped = torch.UntypedStorage
    plain_device, plain_to, plain_clone = inspect.getattr_static(untyped, "device"), untyped.to, untyped.clone

    def device(self: torch.UntypedStorage) -> torch.device:
        where = plain_device.__get__(self)
        return shown[where.index] if where.type == BACKEND else where

    def copy(storage: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
        __tracebackhide__ = True
        made = new_storage(memory, index, storage.nbytes())
        known.carry(made, storage)
        return made

    def to(self: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
        __tracebackhide__ = True
        where = self_device(self, device)
        if where is None:
            return plain_to(self, device=device, non_blocking=non_blocking)
        return self if where == plain_device.__get__(self) else copy(self, where.index)

    def self_device(_storage: torch.UntypedStorage, device: Any) -> torch.device | None:
        where = translate(device)
        return where if isinstance(where, torch.device) and where.type == BACKEND else None

    def cuda(self: torch.UntypedStorage, device: Any = None, non_blocking: bool = False) -> torch.UntypedStorage:
        __tracebackhide__ = True
        return to(self, device="cuda" if device is None else device, non_blocking=non_blocking)

    def clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
        __tracebackhide__ = True
        where = plain_device.__get__(self)
        return copy(self, where.index) if where.type == BACKEND else plain_clone(self)

    plain_resize = untyped.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if plain_device.__get__(self).type == BACKEND:
            instead = "resize a tensor of it with resize_(), or give the tensor other data"
            raise UnavailableError(f"the storage of a tensor on a virtual GPU cannot be resized; {instead}")
        return plain_resize(self, size)

    patches.set(untyped, "resize_", resize_)
    patches.set(untyped, "device", property(device))
    patches.set(untyped, "is_cuda", property(lambda storage: storage.device.type == "cuda"))
    patches.set(untyped, "to", to)
    patches.set(untyped, "cuda", cuda)
    patches.set(untyped, "clone", clone)


def _exchange(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Do what `tensor.data = value` does between CPU and CUDA: another tensor in the same Python object.

    PyTorch allows that between its own devices only. Everybody who holds the object sees the change, as it must be for
    tied weights and for an optimizer made earlier.
    """
    grad, hooks = tensor.grad, tensor._backward_hooks
    with torch.no_grad():
        fresh = value.detach().requires_grad_(tensor.requires_grad)
    torch._C._swap_tensor_impl(tensor, fresh)
    if hooks:
        tensor._backward_hooks = hooks
    if grad is not None:
        grad.data = grad.to(tensor.device)
        tensor.grad = grad
