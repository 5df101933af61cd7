"""Recurrent layers on the virtual device: cuDNN's fused kernels, which keep one reserve for the whole sequence.

PyTorch takes them for `nn.LSTM`, `nn.GRU` and `nn.RNN` on a CUDA device, and step-by-step code on any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .storages import NATIVE

if TYPE_CHECKING:
    from .kernels import Kernels
    from .registry import Registry

_aten = torch.ops.aten
_set = _aten.set_.source_Storage_storage_offset
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
_PER_WEIGHT, _PER_WEIGHT_BYTE = 4, 0.34
"""What the workspace holds of each weight: a sum in full precision, and something in the type of the weights."""
_STATES = {0: 1, 1: 1, 2: 5, 3: 6}
"""What is kept of each cell for the backward pass: the gates, and an LSTM's cell state. Plain cells: assumed."""


def install(kernels: Kernels, registry: Registry) -> None:
    """Register the layers and the operators behind them.

    Args:
        kernels: where cuDNN's state of random numbers is taken.
        registry: where they are registered.
    """
    for name, mode in _MODES.items():
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            registry.impl(f"{name}.input", _padded(kernels, mode), key)
            registry.impl(f"{name}.data", _packed(kernels, mode), key)
    registry.impl("_cudnn_rnn_flatten_weight", flatten_weight, "PrivateUse1")
    registry.impl("_cudnn_rnn", _rnn, "PrivateUse1")
    registry.impl("_cudnn_rnn_backward", rnn_backward, "PrivateUse1")


def _padded(kernels: Kernels, mode: int) -> Any:
    def layer(data: torch.Tensor, hx: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
        return _layer(kernels, mode, data, [], hx, *rest)

    return layer


def _packed(kernels: Kernels, mode: int) -> Any:
    def layer(data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
        return _layer(kernels, mode, data, batch_sizes.tolist(), hx, *rest)

    return layer


def _layer(
    kernels: Kernels,
    mode: int,
    data: torch.Tensor,
    batch_sizes: list[int],
    hx: Any,
    params: list[torch.Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[torch.Tensor, ...]:
    hidden, cell = (hx[0], hx[1]) if mode == _MODES["lstm"] else (hx, None)
    for name, others in (("hidden", [hidden] if cell is None else [hidden, cell]), ("parameter", params)):
        for other in others:
            if other.device != data.device:
                raise RuntimeError(
                    f"Input and {name} tensors are not at the same device, found input tensor at {data.device} "
                    f"and {name} tensor at {other.device}"
                )
    size = cell.size(2) if cell is not None else hidden.size(2)
    projected = hidden.size(2) if cell is not None and hidden.size(2) != size else 0
    per_layer = (4 if biases else 2) + (1 if projected else 0)
    flat = _flat(params)
    if dropout and train:
        # PyTorch makes it before autocast makes its copies of the weights.
        kernels.dropout_state(data.get_device())
    output, hy, cy, _, _ = _aten._cudnn_rnn(
        data,
        params,
        per_layer,
        flat,
        hidden,
        cell,
        mode,
        size,
        projected,
        layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        batch_sizes,
        None,
    )
    return (output, hy, cy) if cell is not None else (output, hy)


def _flat(params: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the buffer that the weights lie in, if they lie in one."""
    storage = params[0].untyped_storage()
    if any(param.untyped_storage()._cdata != storage._cdata for param in params):
        return None
    if sum(param.numel() for param in params) * params[0].dtype.itemsize != storage.nbytes():
        return None
    with torch.no_grad():
        return params[0].detach().as_strided((storage.nbytes() // params[0].dtype.itemsize,), (1,), 0)


def flatten_weight(weights: list[torch.Tensor], *_: Any) -> torch.Tensor:
    """Move the weights into one buffer; `aten::_cudnn_rnn_flatten_weight`."""
    buffer = weights[0].new_empty((sum(weight.numel() for weight in weights),))
    offset = 0
    for weight in weights:
        _set.redispatch(NATIVE, weight, buffer.untyped_storage(), offset, weight.size(), weight.stride())
        offset += weight.numel()
    return buffer


def _rnn(
    data: torch.Tensor,
    weight: list[torch.Tensor],
    _stride: int,
    weight_buf: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    _state: torch.Tensor | None = None,
) -> tuple[Any, ...]:
    """Return output, last states, reserve and weights; `aten::_cudnn_rnn`."""
    directions = 2 if bidirectional else 1
    width = (proj_size or hidden_size) * directions
    if batch_sizes:
        steps, batch, total = len(batch_sizes), batch_sizes[0], data.size(0)
        shape: tuple[int, ...] = (total, width)
    else:
        batch, steps = (data.size(0), data.size(1)) if batch_first else (data.size(1), data.size(0))
        total = batch * steps
        shape = (batch, steps, width) if batch_first else (steps, batch, width)
    if weight_buf is None:
        # The kernel wants them in one buffer, and copies them there for this call.
        weight_buf = data.new_empty((sum(one.numel() for one in weight),))
    if batch_first and not batch_sizes:
        data = data.transpose(0, 1).contiguous()
    output = data.new_empty((steps, batch, width) if batch_first and not batch_sizes else shape)
    hy = hx.new_empty((num_layers * directions, batch, proj_size or hidden_size))
    cy = cx.new_empty((num_layers * directions, batch, hidden_size)) if cx is not None else data.new_empty((0,))
    size = reserve_bytes(mode, total, hidden_size, num_layers, directions, data.dtype.itemsize, dropout=dropout > 0)
    workspace = _workspace(mode, output, num_layers, weight)
    reserve = data.new_empty((size if train else 0,), dtype=torch.uint8)
    del workspace
    if batch_first and not batch_sizes:
        output = output.transpose(0, 1)
    return output, hy, cy, reserve, weight_buf


def reserve_bytes(
    mode: int, rows: int, hidden: int, layers: int, directions: int, itemsize: int, *, dropout: bool
) -> int:
    """Return what cuDNN keeps for the backward pass; exact for the LSTMs and the GRU seen on an H200 (cuDNN 9.19).

    Args:
        mode: 0 and 1 for plain cells, 2 for LSTM, 3 for GRU.
        rows: steps times batch.
        hidden: features of a state.
        layers: how many lie on each other.
        directions: 2 for a bidirectional layer, otherwise 1.
        itemsize: bytes of an element.
        dropout: whether there is dropout between layers.
    """
    width = rows * hidden * directions
    between = (layers - 1) * width
    masks = between * directions // 8 + 256 if dropout else 0
    return (_STATES[mode] * layers * width + between) * itemsize + masks


def workspace_bytes(mode: int, values: int, layers: int, itemsize: int, weights: int) -> int:
    """Return what cuDNN needs while it runs: the gates of every layer, and something for each weight.

    It makes the reserved peaks of two LSTMs and a GRU come out that ran on an H200 (cuDNN 9.19) with two layers, each
    in two sizes: they tell it to 2 MiB. Of other numbers of layers, and of plain cells, nothing was seen.

    Args:
        mode: 0 and 1 for plain cells, 2 for LSTM, 3 for GRU.
        values: in the output: steps times batch times features, of both directions.
        layers: how many lie on each other.
        itemsize: bytes of an element.
        weights: how many there are in all, with biases.
    """
    return _GATES[mode] * layers * values * itemsize + int(weights * (_PER_WEIGHT + _PER_WEIGHT_BYTE * itemsize))


def _workspace(mode: int, output: torch.Tensor, layers: int, weight: list[torch.Tensor]) -> torch.Tensor:
    weights = sum(one.numel() for one in weight)
    size = workspace_bytes(mode, output.numel(), layers, output.dtype.itemsize, weights)
    return output.new_empty((size,), dtype=torch.uint8)


def rnn_backward(
    data: torch.Tensor,
    weight: list[torch.Tensor],
    _stride: int,
    weight_buf: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    *args: Any,
) -> tuple[Any, ...]:
    """Return the gradients of data, states and weights; `aten::_cudnn_rnn_backward`."""
    output, grad_output, grad_hy, grad_cy, mode, layers, batch_first, mask = (*args[:5], *args[7:9], args[-1])
    given = [
        grad if grad is not None else torch.zeros_like(state)
        for grad, state in ((grad_hy, hx), (grad_cy, cx))
        if state is not None
    ]
    steps = data.transpose(0, 1).contiguous() if batch_first else data
    grads = grad_output if grad_output is not None else torch.zeros_like(output)
    grads = grads.transpose(0, 1).contiguous() if batch_first else grads.contiguous()
    grad_data = torch.empty_like(steps)
    grad_hx = torch.empty_like(hx)
    grad_cx = torch.empty_like(cx) if cx is not None else None
    workspace = _workspace(mode, output, layers, weight)
    del workspace, steps, grads
    found: list[torch.Tensor] = []
    if mask[3]:
        steps = data.transpose(0, 1).contiguous() if batch_first else data
        buffer = weight_buf.new_zeros(weight_buf.shape)
        workspace = _workspace(mode, output, layers, weight)
        del workspace, steps
        offset = 0
        for one in weight:
            found.append(buffer.as_strided(one.size(), one.stride(), offset))
            offset += one.numel()
    del given
    return grad_data.transpose(0, 1) if batch_first else grad_data, grad_hx, grad_cx, found


class Flatten(torch.autograd.Function):  # type: ignore[misc]
    """Weights in another type, in one new buffer: what autocast gives cuDNN's layers."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return them."""
        ctx.dtypes = [weight.dtype for weight in weights]
        buffer = weights[0].new_empty((sum(weight.numel() for weight in weights),), dtype=dtype)
        found, offset = [], 0
        for weight in weights:
            found.append(buffer.as_strided(weight.size(), weight.stride(), offset))
            offset += weight.numel()
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Return the gradients in the type of the weights; autograd begins with the weight that was copied last."""
        found = [grad.to(dtype) for grad, dtype in zip(reversed(grads), reversed(ctx.dtypes), strict=True)]
        return None, *reversed(found)
