"""What cuDNN's convolutions need while they run.

Its fast kernels want channels last. For tensors in the usual layout the workspace holds copies of input, output and
weight in that layout; for weight gradients partial results as well, of the blocks that share the work. The formulas
are what was seen on an H200 with cuDNN 9.19 for the kernels that its heuristics choose
(`benchmarks/results/kernels-h200.json` has the calls); shapes that were measured and are otherwise are in a table. The
table also serves for the same layers with other batches: there cuDNN mostly takes the same kernels, and of what these
need, the copies of input and output grow with the batch.
"""

from __future__ import annotations

import functools
import json
import math
from importlib import resources
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
_MEASURED = (9, 0)  # compute capability of the card that was measured
_MOST_PICTURES = 40 * 1024**2  # bytes up to which there is a partial result for each picture
_LARGE, _LARGE_HALF = 1 << 20, 1 << 19  # elements of a weight from which products go by copies, too
_PARTIAL = 4
_HEAD = 16  # bytes beside copies: they decide where a block ends, and with that the size of a new segment


def key(kind: str, x: torch.Tensor, w: torch.Tensor, options: Sequence[Any]) -> str:
    """Return what a measured convolution is called in the table.

    Args:
        kind: `forward` or `backward`.
        x: the input.
        w: the weight.
        options: stride, padding, dilation, whether it is transposed, output padding and groups.
    """
    return _layer(kind, x, w, options).format(x.size(0))


def _layer(kind: str, x: torch.Tensor, w: torch.Tensor, options: Sequence[Any]) -> str:
    """Return that name with `{}` for the batch."""
    sizes = "x".join(["{}", *map(str, x.shape[1:])]), "x".join(map(str, w.shape))
    layout = "last" if channels_last(x, w) else "first"
    step, padding, spread, transposed, _, groups = options
    numbers = ["".join(map(str, sorted(set(given)))) for given in (step, padding, spread)]
    dtype = str(x.dtype).removeprefix("torch.")
    return " ".join([kind, dtype, layout, *sizes, *numbers, str(int(transposed)), str(groups)])


def layer_of(name: str) -> tuple[str, int]:
    """Return what all batches of a convolution of that name have in common, and its batch."""
    kind, dtype, layout, shape, rest = name.split(" ", 4)
    batch, _, picture = shape.partition("x")
    return f"{kind} {dtype} {layout} {{}}x{picture} {rest}", int(batch)


@functools.cache
def measured() -> dict[str, list[int]]:
    """Return the workspaces of measured convolutions, of layers that some batch is not as the formulas say."""
    text = resources.files(__package__).joinpath("kernels.json").read_text(encoding="utf-8")
    found: dict[str, list[int]] = json.loads(text)["convolutions"]
    return found


@functools.cache
def _batches() -> dict[str, dict[int, list[int]]]:
    """Return that table by layer: for each batch that was measured, the workspaces."""
    found: dict[str, dict[int, list[int]]] = {}
    for name, sizes in measured().items():
        layer, batch = layer_of(name)
        found.setdefault(layer, {})[batch] = sizes
    return found


def _seen(kind: str, x: torch.Tensor, w: torch.Tensor, out: Any, options: Sequence[Any]) -> list[int] | None:
    """Return the workspaces of a measured convolution, or of one whose layer was; `None` if it is in no table."""
    batches = _batches().get(_layer(kind, x, w, options))
    if not batches or not x.size(0):
        return None
    batch = int(x.size(0))
    nearest = min(batches, key=lambda one: abs(math.log(one / batch)))
    return [_grown(size, nearest, batch, x, out) for size in batches[nearest]]


def _grown(size: int, seen: int, batch: int, x: torch.Tensor, out: Any) -> int:
    """Return what a workspace of one batch is for another: the copies of input and output in it grow with the batch."""
    copies = [one + other for one in _picture(x) for other in _picture(out)]
    return size + max(one for one in copies if one * seen <= size) * (batch - seen)


def _picture(tensor: torch.Tensor | Result) -> list[int]:
    """Return the bytes that copies of a single picture may take: none, one or two, with few channels filled up."""
    _, channels, *_ = shape = tuple(tensor.shape if isinstance(tensor, torch.Tensor) else tensor.size)
    one = math.prod(shape[1:]) * int(tensor.dtype.itemsize)
    filled = {channels} if channels >= _FEW else {channels, _ALIGNED_FLOAT, _ALIGNED}
    return [0, *(one * number * turns // channels for number in filled for turns in (1, 2))]


def forward(card: Card, args: Any, results: list[Any]) -> list[int | None]:
    """Return what `aten::convolution` needs."""
    if card.capability == _MEASURED:
        found = _seen("forward", args[0], args[1], results[0], args[3:9])
        if found is not None:
            return list(found)
    return forward_formula(args, results)


def forward_formula(args: Any, results: list[Any]) -> list[int | None]:
    """Return the same for a convolution that was not measured."""
    x, w, step, spread, groups = args[0], args[1], args[3], args[5], args[8]
    if _depthwise(w, groups):
        return []
    if channels_last(x, w):
        size = _padded(x, w) if w.size(1) < _FEW and max(w.shape[2:]) > 3 else 0
        size += 0 if w.is_contiguous(memory_format=torch.channels_last) else _bytes(w)
    elif (_product(x, w, step) and not _large(x, w)) or _direct(x, w, step):
        size = 0
    elif max(w.shape[2:]) == 1:
        size = _bytes(x) + _bytes(results[0]) + _HEAD
    else:
        size = _copies(x, w)
        if x.dtype != torch.float32 or max(spread) <= 8:
            size += _bytes(results[0])
    return [size] if size else []


def backward(card: Card, args: Any, results: list[Any]) -> list[int | None]:
    """Return what `aten::convolution_backward` needs: for the input's gradient, then the weight's and the bias'."""
    g, x, w, mask = args[0], args[1], args[2], args[10]
    last = channels_last(x, w)
    events: list[int | None] = []
    if w.dim() > 3 and not g.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format):
        events.append(_bytes(g))
    data, weight = backward_formula(card, args)
    if card.capability == _MEASURED:
        data, weight = _seen("backward", x, w, g, args[4:10]) or (data, weight)
    events.append(None)
    if mask[0] and data:
        events += [data, -data]
    events.append(None)
    if mask[1] and weight:
        events += [weight, -weight]
    events.append(None)
    if mask[2] and results[2] is not None:
        stride = contiguous(g.size(), torch.channels_last if last else None)
        dims = [0, *range(2, g.dim())]
        events += reductions.temporaries(g.size(), stride, dims, _PARTIAL, card.multiprocessors, card.threads)
    return events


def backward_formula(card: Card, args: Any) -> tuple[int, int]:
    """Return the workspaces for the gradients of input and weight of a convolution that was not measured."""
    g, x, w, step, groups = args[0], args[1], args[2], args[4], args[9]
    last = channels_last(x, w)
    if _depthwise(w, groups):
        return 0, 0
    alone = not last and _product(x, w, step)
    whole = 0 if last or _direct(x, w, step) else _copies(x, w) + _bytes(g)
    data = _bytes(g) + _bytes(w) + _HEAD if args[7] and _patches(w, step) and whole else whole
    if alone and not _large(x, w):
        data = 0
    return data, _weight_gradient(card, g, x, w, whole, alone=alone)


def _weight_gradient(card: Card, g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, whole: int, *, alone: bool) -> int:
    """Return the bytes for a weight's gradient: copies, and partial results."""
    single = w.numel() * _PARTIAL
    few = w.size(1) < _FEW
    if math.prod(w.shape[2:]) == 1 and whole:
        pictures: int = single * x.size(0)
        if alone and pictures <= _MOST_PICTURES:
            return pictures
        if _large(x, w):
            return _bytes(x) + _bytes(g) + _HEAD
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
    return whole + (single * splits if splits > 1 else 0)


def _direct(x: torch.Tensor, w: torch.Tensor, step: Sequence[int]) -> bool:
    """Whether a kernel for few channels reads the usual layout."""
    if w.size(1) >= _FEW:
        return False
    return max(w.shape[2:], default=0) < 7 or (x.dtype == torch.float32 and _patches(w, step))


def _copies(x: torch.Tensor, w: torch.Tensor) -> int:
    """Return the bytes of copies of input and weight."""
    return (_bytes(x) + _bytes(w) if x.dtype == torch.float32 else _padded(x, w)) + _HEAD


def _padded(x: torch.Tensor, w: torch.Tensor) -> int:
    """Return the bytes of copies of input and weight, with as many channels as kernels read at once."""
    aligned = _ALIGNED_FLOAT if x.dtype == torch.float32 else _ALIGNED
    copies = _bytes(x) + _bytes(w)
    return copies if w.size(1) >= _FEW else copies * aligned // w.size(1)


def channels_last(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether PyTorch does it with channels last."""
    return w.dim() == 4 and (_channels_last(x) or _channels_last(w))


def _depthwise(w: torch.Tensor, groups: int) -> bool:
    return groups > 1 and w.size(1) == 1


def _product(x: torch.Tensor, w: torch.Tensor, step: Sequence[int]) -> bool:
    """Whether it is a product of matrices for each picture."""
    aligned = x.dtype != torch.float32 or w.size(0) % 4 == 0
    return aligned and all(size == 1 for size in (*w.shape[2:], *step))


def _large(x: torch.Tensor, w: torch.Tensor) -> bool:
    return bool(w.numel() >= (_LARGE if x.dtype == torch.float32 else _LARGE_HALF))


def _patches(w: torch.Tensor, step: Sequence[int]) -> bool:
    """Whether windows do not overlap."""
    return tuple(w.shape[2:]) == tuple(step)


def _channels_last(tensor: torch.Tensor) -> bool:
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return bool(last and not tensor.is_contiguous())


def _bytes(tensor: torch.Tensor | Result) -> int:
    return tensor.numel() * int(tensor.dtype.itemsize)
