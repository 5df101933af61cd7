"""Kernels of their own, where PyTorch's meta kernels do not tell what CUDA does to a result's shape or storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .storages import contiguous, resize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .memory import VirtualMemory


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
            self.memory.scratch(one.get_device(), [out.numel() * out.dtype.itemsize])
            resize(self.memory, out, (), ())
        return out

    @staticmethod
    def ctc_loss_backward(_grad: torch.Tensor, log_probs: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return the gradient of the probabilities."""
        return torch.empty_like(log_probs)
