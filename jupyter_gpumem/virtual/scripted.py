"""TorchScript modules: their tensors lie in PyTorch's own objects, and cannot be put on another device from Python."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.errors import UnavailableError

from .storages import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable

    from .patches import Patches

_raw_device = torch._C.TensorBase.device.__get__


def install(patches: Patches) -> None:
    """Refuse to move them to the virtual device or from it, which would leave their parameters where they are."""
    plain = torch.jit.ScriptModule._apply

    @functools.wraps(plain)
    def apply(self: Any, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        for tensor in itertools.chain(self.parameters(), self.buffers()):
            here = _raw_device(tensor)
            with torch.no_grad():
                there = _raw_device(fn(torch.empty((0,) * max(1, tensor.dim()), dtype=tensor.dtype, device=here)))
            if here.type != there.type and BACKEND in {here.type, there.type}:
                raise UnavailableError(
                    "a virtual GPU cannot move a TorchScript module; move the module before it is scripted or traced, "
                    "or load it with torch.jit.load(..., map_location='cuda')"
                )
        return plain(self, fn, *args, **kwargs)

    patches.set(torch.jit.ScriptModule, "_apply", apply)
