"""Kernels of their own, where PyTorch's meta kernels do not tell what CUDA does to a result's shape or storage."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from jupyter_gpumem.errors import UnavailableError

from . import convolutions, reductions
from .places import place
from .storages import contiguous, resize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .memory import VirtualMemory


_CPU = torch.device("cpu")
_MOST = 1 << 26
"""Bytes of arguments up to which a shape is computed with values: zeros in host memory."""


def without_meta(op: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator without a meta kernel gives: computed with zeros in host memory.

    Raises:
        UnavailableError: the arguments are too large for that, or it has no kernel for host memory either.
    """
    made = _MADE.get(op)
    if made is not None:
        return made(*args)
    try:
        return on_host(op, args, kwargs)
    except NotImplementedError:
        file, line = place()
        raise UnavailableError(
            f"{op} is not known to a virtual GPU, at {file}:{line}; run this line on the CPU"
        ) from None


def on_host(op: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator gives for zeros in host memory.

    Raises:
        NotImplementedError: it has no kernel there, or its arguments are too large.
    """
    size = sum(t.numel() * t.dtype.itemsize for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
    if size > _MOST:
        raise NotImplementedError
    given = _zeros((args, kwargs))
    return op(*given[0], **given[1])


@functools.cache
def functional(op: Any) -> Any:
    """Return the operator that makes what this one writes to `out=`, or itself if there is none.

    PyTorch's meta kernels know the layout of results that they make; of those that they are given, not always.
    """
    wanted = [(argument.name, str(argument.type)) for argument in op._schema.arguments if not argument.is_out]
    for name in op._overloadpacket.overloads():
        other = getattr(op._overloadpacket, name)
        arguments = [(argument.name, str(argument.type)) for argument in other._schema.arguments]
        if arguments == wanted and not other._schema.is_mutable:
            return other
    return op


def text_of(error: Exception, op: Any, args: Any, kwargs: Any) -> Exception:
    """Return the error of a meta kernel as the kernels with values have it, where they refuse as well."""
    try:
        on_host(op, args, kwargs)
    except (RuntimeError, IndexError, ValueError) as found:
        if type(found) is type(error):
            return found.with_traceback(None)  # where it was tried is nothing to the user
    except NotImplementedError:
        pass
    return error.with_traceback(None)


def _on_meta(like: torch.Tensor, *size: int) -> torch.Tensor:
    return torch.empty(size or like.shape, dtype=like.dtype, device="meta")


def _gru_cell(_gates: Any, _hidden_gates: Any, hx: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    """Return the state, and what the backward pass needs of the gates."""
    return _on_meta(hx), _on_meta(hx, hx.size(0), hx.size(1) * 5)


def _gru_cell_backward(grad: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[Any, ...]:
    """Return the gradients of both gates, the state and both biases."""
    rows, width = workspace.size(0), workspace.size(1) // 5 * 3
    gates = _on_meta(workspace, rows, width)
    bias = _on_meta(workspace, width) if has_bias else None
    return gates, gates, _on_meta(grad), bias, bias


_MADE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._logcumsumexp.default: lambda tensor, _dim: _on_meta(tensor),
    torch.ops.aten._thnn_fused_gru_cell.default: _gru_cell,
    torch.ops.aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
"""The results of operators without a meta kernel, as meta tensors."""


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


def _first_contiguous(_args: Any, found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results with the first one in the usual layout, whatever that of the arguments."""
    first, *rest = found
    return (first if first is None else torch.empty_like(first, memory_format=torch.contiguous_format), *rest)


@dataclasses.dataclass(frozen=True, slots=True)
class OnHost:
    """A result without dimensions in host memory.

    Attributes:
        dtype: its type.
    """

    dtype: torch.dtype

    def make(self) -> torch.Tensor:
        """Return it."""
        return torch.empty((), dtype=self.dtype, device=_CPU)


def _state_on_host(_args: Any, found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results with the state of random numbers in host memory, where CUDA has it for this kernel."""
    return (*found[:2], *(OnHost(one.dtype) for one in found[2:]))


def _without_sums(args: Any, found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results, with sums for a backward pass only where one may follow."""
    sums = found[1] if args[4] else found[1].new_empty((0,))
    return (found[0], sums, *found[2:])


_aten = torch.ops.aten
LAYOUTS = {
    _aten.convolution.default: _images,
    _aten.convolution_backward.default: _gradients,
    _aten._fused_rms_norm_backward.default: _first_contiguous,
    _aten._log_softmax_backward_data.default: _first_contiguous,
    _aten._scaled_dot_product_cudnn_attention.default: _without_sums,
    _aten._scaled_dot_product_efficient_attention.default: _state_on_host,
    _aten.mse_loss_backward.default: _first_contiguous,
    _aten.native_layer_norm_backward.default: _first_contiguous,
}
"""What CUDA's results are like where those of meta tensors differ: their layout, or where they are."""


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
        """Resize in place; the storage only grows, and what has the size already keeps its layout."""
        __tracebackhide__ = True
        if memory_format is None and tuple(size) == tuple(tensor.size()):
            return tensor
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
        return torch.empty_like(log_probs, memory_format=torch.contiguous_format)
