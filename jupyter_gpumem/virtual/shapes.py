"""Kernels of their own, where PyTorch's meta kernels do not tell what CUDA does to a result's shape or storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from jupyter_gpumem.errors import UnavailableError

from . import convolutions, reductions
from .storages import contiguous, resize
from .values import place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .memory import VirtualMemory


_CPU = torch.device("cpu")
_MOST = 1 << 26
"""Bytes of arguments up to which a shape is computed with values: zeros in host memory."""


def without_meta(op: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator without a meta kernel gives: computed with zeros in host memory.

    Raises:
        UnavailableError: the arguments are too large for that, or it has no kernel for host memory either.
    """
    given = _zeros((args, kwargs))
    size = sum(t.numel() * t.dtype.itemsize for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
    try:
        if size <= _MOST:
            return op(*given[0], **given[1])
        if op in _LIKE_INPUT:
            return torch.empty_like(args[0], device="meta")
    except NotImplementedError:
        pass
    file, line = place()
    raise UnavailableError(f"{op} is not known to a virtual GPU, at {file}:{line}; run this line on the CPU")


_LIKE_INPUT = {torch.ops.aten._logcumsumexp.default}


def _zeros(given: Any) -> Any:
    def zeros(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.zeros((1,), dtype=value.dtype, device=_CPU).as_strided(value.size(), [0] * value.dim())
        return _CPU if isinstance(value, torch.device) else value

    return tree_map(zeros, given)


def _images(args: Any, found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the result of a convolution in CUDA's layout: channels last if input or weight are."""
    return (_last(found[0]), *found[1:]) if convolutions.channels_last(args[0], args[1]) else found


def _gradients(args: Any, found: tuple[Any, ...]) -> tuple[Any, ...]:
    if not convolutions.channels_last(args[1], args[2]):
        return found
    return tuple(_last(one) if one is not None and one.dim() == 4 else one for one in found)


def _last(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.channels_last)


LAYOUTS = {
    torch.ops.aten.convolution.default: _images,
    torch.ops.aten.convolution_backward.default: _gradients,
}
"""What CUDA's layout of results is where that of meta tensors differs."""


class Shapes:
    """The kernels.

    Args:
        memory: where storages that grow are allocated.
    """

    def __init__(self, memory: VirtualMemory) -> None:
        self.memory = memory

    def kernels(self) -> dict[str, Any]:
        """Return `{operator: kernel}`."""
        return {
            "resize_": self.resize_,
            "mse_loss.out": self.loss_out,
            "smooth_l1_loss.out": self.loss_out,
            "_ctc_loss_backward": self.ctc_loss_backward,
            "_ctc_loss_backward.Tensor": self.ctc_loss_backward,
        }

    def resize_(self, tensor: torch.Tensor, size: Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
        """Resize in place; the storage only grows."""
        resize(self.memory, tensor, size, contiguous(size, memory_format))
        return tensor

    def loss_out(
        self, one: torch.Tensor, _other: torch.Tensor, reduction: int = 1, _more: float = 1.0, *, out: torch.Tensor
    ) -> torch.Tensor:
        """Reduce a loss: its elements are computed aside, and the result keeps a storage that could hold them."""
        if reduction:
            card = self.memory.cards[one.get_device()]
            count, size = one.numel(), int(out.dtype.itemsize)
            sums = reductions.temporaries((count,), (1,), (), max(size, 4), card.multiprocessors, card.threads)
            self.memory.scratch(one.get_device(), [count * size, *sums])
            resize(self.memory, out, (), ())
        return out

    @staticmethod
    def ctc_loss_backward(_grad: torch.Tensor, log_probs: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return the gradient of the probabilities."""
        return torch.empty_like(log_probs)
