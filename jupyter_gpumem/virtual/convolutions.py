"""What cuDNN's convolutions need while they run.

Its fast kernels want channels last. For tensors in the usual layout the workspace holds copies of input, output and
weight in that layout; for weight gradients partial results as well, of the blocks that share the work. Measured on an
H200 with cuDNN 9.19, for the kernels that its heuristics choose; `benchmarks/results/kernels-h200.json` has the calls.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from . import reductions
from .storages import contiguous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cards import Card
    from .temporaries import Result

_ALIGNED, _ALIGNED_FLOAT, _FEW = 8, 4, 4  # channels that kernels read at once, and that are too few for that
_TILE = 128
_MOST_PARTIAL = 8 * 1024**2
_PARTIAL = 4


def forward(_card: Card, args: Any, results: list[Any]) -> list[int | None]:
    """Return what `aten::convolution` needs."""
    x, w, step, spread, groups = args[0], args[1], args[3], args[5], args[8]
    if _depthwise(w, groups):
        return []
    if _last(x, w):
        size = _padded(x, w) if w.size(1) < _FEW and max(w.shape[2:]) > 3 else 0
        size += 0 if w.is_contiguous(memory_format=torch.channels_last) else _bytes(w)
    elif _pointwise(w, step) or _direct(x, w, step):
        size = 0
    else:
        size = _copies(x, w)
        half = x.dtype != torch.float32
        if half or not (max(spread) > 1 or max(w.shape[2:]) == 1):
            size += _bytes(results[0])
    return [size] if size else []


def backward(card: Card, args: Any, results: list[Any]) -> list[int | None]:
    """Return what `aten::convolution_backward` needs: for the input's gradient, then the weight's and the bias'."""
    g, x, w, step, groups, mask = args[0], args[1], args[2], args[4], args[9], args[10]
    last = _last(x, w)
    events: list[int | None] = []
    if w.dim() > 3 and not g.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format):
        events.append(_bytes(g))
    whole = 0
    if not _depthwise(w, groups) and not _direct(x, w, step):
        whole = _copies(x, w) + _bytes(g) if not last else 0
    alone = _pointwise(w, step) and g.size(1) % 4 == 0
    events.append(None)
    if mask[0] and whole and not alone:
        size = _bytes(g) + _bytes(w) if args[7] and _patches(w, step) else whole
        events += [size, -size]
    events.append(None)
    if mask[1] and not _depthwise(w, groups):
        size = _weight_gradient(card, g, x, w, whole, alone=alone and not last)
        events += [size, -size] if size else []
    events.append(None)
    if mask[2] and results[2] is not None:
        stride = contiguous(g.size(), torch.channels_last if last else None)
        dims = [0, *range(2, g.dim())]
        events += reductions.temporaries(g.size(), stride, dims, _PARTIAL, card.multiprocessors, card.threads)
    return events


def _weight_gradient(
    card: Card, g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, whole: int, *, alone: bool
) -> int:
    """Return the bytes for a weight's gradient: copies, and partial results."""
    single = w.numel() * _PARTIAL
    few = w.size(1) < _FEW
    if alone:
        # One result for each picture, if rows of a picture can be read at once.
        return single * x.size(0) if math.prod(x.shape[2:]) % 4 == 0 else _bytes(x) + _bytes(g)
    if few and (x.dtype == torch.float32 and not whole):
        return 0
    window = math.prod(w.shape[2:])
    tiles = math.ceil(w.size(0) / _TILE)
    if few:
        single = single * _ALIGNED // w.size(1)
        whole = _padded(x, w) + (_bytes(g) if whole else 0)
        tiles *= math.ceil(w.size(1) * window / _TILE)
    else:
        tiles *= math.ceil(w.size(1) / _TILE) * window
    splits = card.multiprocessors // tiles
    return whole + (min(single * splits, _MOST_PARTIAL) if splits > 1 else 0)


def _direct(x: torch.Tensor, w: torch.Tensor, step: Sequence[int]) -> bool:
    """Whether a kernel for few channels reads the usual layout."""
    if w.size(1) >= _FEW:
        return False
    return max(w.shape[2:], default=0) < 7 or (x.dtype == torch.float32 and _patches(w, step))


def _copies(x: torch.Tensor, w: torch.Tensor) -> int:
    """Return the bytes of copies of input and weight."""
    return _bytes(x) + _bytes(w) if x.dtype == torch.float32 else _padded(x, w)


def _padded(x: torch.Tensor, w: torch.Tensor) -> int:
    """Return the bytes of copies of input and weight, with as many channels as kernels read at once."""
    aligned = _ALIGNED_FLOAT if x.dtype == torch.float32 else _ALIGNED
    copies = _bytes(x) + _bytes(w)
    return copies if w.size(1) >= _FEW else copies * aligned // w.size(1)


def _last(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether PyTorch does it with channels last."""
    return w.dim() == 4 and (_channels_last(x) or _channels_last(w))


def _depthwise(w: torch.Tensor, groups: int) -> bool:
    return groups > 1 and w.size(1) == 1


def _pointwise(w: torch.Tensor, step: Sequence[int]) -> bool:
    """Whether it is a product of matrices, in any layout."""
    return all(size == 1 for size in (*w.shape[2:], *step))


def _patches(w: torch.Tensor, step: Sequence[int]) -> bool:
    """Whether windows do not overlap."""
    return tuple(w.shape[2:]) == tuple(step)


def _channels_last(tensor: torch.Tensor) -> bool:
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _bytes(tensor: torch.Tensor | Result) -> int:
    return tensor.numel() * int(tensor.dtype.itemsize)
