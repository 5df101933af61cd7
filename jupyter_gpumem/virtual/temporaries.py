"""What single CUDA kernels take from the allocator and give back while they run, where a formula says it.

Each function here is one kernel of PyTorch: it is given the card, the arguments and the results to come, and returns
sizes in bytes, positive when taken and negative when given back, in the order of the kernel. `None` stands for the next
result; those that no `None` stands for are made first. What is left at the end is given back last. The formulas are
those of the sources of torch 2.11, and hold for all calls of `benchmarks/results/kernels-h200.json` up to fixed parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import convolutions, reductions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .cards import Card

    Steps = Sequence[int | None]

    Kernel = Callable[[Card, Any, list[Any]], Steps]

_INDEX = 8
_FLOAT = 4
_PAIR = 16  # a value and its index, or the state of a variance
_SORT = 18 * 1024  # what a radix sort needs besides a copy of its keys and values
_SORT_LEAST = 2048  # elements up to which one block sorts


@dataclass(frozen=True, slots=True)
class Result:
    """A result that is still to be made: sizes, strides in elements, and type."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.size)


def _bytes(tensor: torch.Tensor | Result) -> int:
    return tensor.numel() * int(tensor.dtype.itemsize)


def _whole(given: int) -> Kernel:
    """Return a kernel that needs a copy of one of its arguments, whatever its layout."""
    return lambda _card, args, _results: [_bytes(args[given])]


def _contiguous(*given: int) -> Kernel:
    """Return a kernel that copies those of its arguments that are not contiguous."""

    def kernel(_card: Card, args: Any, _results: list[Any]) -> Steps:
        among = (args[at] for at in given if at < len(args))
        return [_bytes(one) for one in among if isinstance(one, torch.Tensor) and not one.is_contiguous()]

    return kernel


def _dense(card: Card, args: Any, results: list[Any]) -> Steps:
    """Return what a kernel needs that copies its first argument unless it is contiguous or channels last."""
    last = args[0].dim() == 4 and args[0].is_contiguous(memory_format=torch.channels_last)
    return [] if last else _contiguous(0)(card, args, results)


def _result(number: int) -> Kernel:
    return lambda _card, _args, results: [_bytes(results[number])]


def _reduction(partial: int = 0) -> Kernel:
    """Return a reduction whose partial results have so many bytes, or are of the input's type or wider."""

    def kernel(card: Card, args: Any, results: list[Any]) -> Steps:
        x = args[0]
        if not isinstance(x, torch.Tensor) or not x.numel():
            return []
        size = partial or max(int(x.dtype.itemsize), _FLOAT)
        dims = next((one for one in args[1:] if isinstance(one, (list, tuple)) and one), ())
        first = results[0]
        cast = []
        if isinstance(first, Result) and not partial and first.dtype.itemsize > max(x.dtype.itemsize, _FLOAT):
            # There is no kernel from this type to that one: the input is cast first.
            size = int(first.dtype.itemsize)
            cast = [x.numel() * size]
        dims = [int(dim) % max(1, x.dim()) for dim in dims]
        stride = x.stride()
        return cast + reductions.temporaries(x.size(), stride, dims, size, card.multiprocessors, card.threads)

    return kernel


def _along(partial: int) -> Kernel:
    """Return a reduction along one dimension, given as a number."""

    def kernel(card: Card, args: Any, _results: list[Any]) -> Steps:
        x = args[0]
        dims = [] if len(args) < 2 or args[1] is None else [int(args[1]) % max(1, x.dim())]
        size = partial or int(x.dtype.itemsize)
        return reductions.temporaries(x.size(), x.stride(), dims, size, card.multiprocessors, card.threads)

    return kernel


def _extremum(card: Card, args: Any, _results: list[Any]) -> Steps:
    x = args[0]
    dims = [int(dim) % max(1, x.dim()) for dim in (args[1] if len(args) > 1 else ())]
    return reductions.temporaries(x.size(), x.stride(), dims, int(x.dtype.itemsize), card.multiprocessors, card.threads)


def _sort(count: int) -> list[int]:
    """Return what sorting pairs of a key and an index takes."""
    return [2 * _INDEX * count + _SORT] if count > _SORT_LEAST else [1]


def _embedding_backward(_card: Card, args: Any, _results: list[Any]) -> Steps:
    grad, indices, rows = args[0], args[1], args[2]
    copied = [] if grad.is_contiguous() else [_bytes(grad)]
    if indices.numel() <= 3072:
        return copied
    return [*copied, *_rows_of_gradient(indices.numel(), rows, grad.size(-1))]


def _embedding_bag_backward(_card: Card, args: Any, _results: list[Any]) -> Steps:
    grad, indices, rows, mode, sparse = args[0], args[1], args[6], args[8], args[9]
    copied = [] if grad.is_contiguous() else [_bytes(grad)]
    if sparse or mode == 2:
        return copied
    return [*copied, *_rows_of_gradient(indices.numel(), rows, grad.size(-1))]


def _rows_of_gradient(count: int, rows: int, width: int) -> list[int | None]:
    """Return what adding up the gradients of each row takes: indices in order, and sums of parts of 10."""
    keys = _INDEX * count
    sort = _sort(count)
    segments = min(count, rows)
    parts = count // 10 + segments
    return [
        *(keys, keys, keys, *sort, *(-size for size in sort), -keys, None),
        *(keys, _INDEX, _INDEX * segments, _INDEX * segments, _INDEX),
        *(_INDEX * parts, parts * width * _FLOAT),
    ]


def _index_put(_card: Card, args: Any, _results: list[Any]) -> Steps:
    target, indices, values = args[0], args[1], args[2]
    if not (len(args) > 3 and args[3]):
        return []
    found = [index for index in indices if index is not None]
    if not found:
        return []
    keys = _INDEX * math.prod(torch.broadcast_shapes(*(index.shape for index in found)))
    events = [keys]
    wanted = keys // _INDEX * math.prod(target.shape[len(indices) :])
    if values.numel() > 1 and not (values.numel() == wanted and values.is_contiguous()):
        events.append(wanted * int(values.dtype.itemsize))
    return [*events, keys, keys, keys, *_sort(keys // _INDEX)]


def _cudnn_attention(_card: Card, args: Any, _results: list[Any]) -> Steps:
    return [256] if args[0].size(2) > 1 else []


def _cudnn_attention_backward(_card: Card, args: Any, _results: list[Any]) -> Steps:
    batch, heads, queries, width = args[1].shape
    return [batch * heads * queries * (width + 1) * _FLOAT + 256]


def _flash_attention_backward(_card: Card, args: Any, _results: list[Any]) -> Steps:
    batch, heads, queries, width = args[1].shape
    rows = batch * heads * math.ceil(queries / 128) * 128
    return [rows * _FLOAT, rows * math.ceil(width / 32) * 32 * _FLOAT]


def _efficient_attention_backward(_card: Card, args: Any, _results: list[Any]) -> Steps:
    grad, query, out = args[0], args[1], args[5]
    batch, heads, queries, width = query.shape
    copied = [] if grad.transpose(1, 2).is_contiguous() else [_bytes(grad)]
    product, delta = out.numel() * _FLOAT, batch * heads * queries * _FLOAT
    events = [*copied, product, delta]
    if queries > 1:
        events += [delta, -delta]
    events.append(-product)
    if width > 0:
        # An accumulator for each block of queries, behind a lock and a counter.
        events.append(batch * heads * math.ceil(queries / 64) * (16 + 64 * math.ceil(width / 64) * 64 * _FLOAT))
    return events


def _layer_norm_backward(card: Card, args: Any, _results: list[Any]) -> Steps:
    grad, x, shape = args[0], args[1], args[2]
    copied = [_bytes(one) for one in (grad, x) if not one.is_contiguous()]
    width = math.prod(shape)
    rows = x.numel() // max(1, width)
    if rows <= 64 * 1024 or width // 32 >= card.multiprocessors // 2 or not args[7][1]:
        return copied
    # Many narrow rows: sums of 32 of them each, and then the sum of those, for weight and bias.
    parts = -(-rows // 32)
    part, whole = parts * width * _FLOAT, width * _FLOAT
    size = (parts, width)
    last = reductions.temporaries(size, (width, 1), (0,), _FLOAT, card.multiprocessors, card.threads)
    one = [whole, *last, *(-size for size in reversed(last)), -whole]
    return [*copied, part, part, *one, *one]


def _group_norm_backward(_card: Card, args: Any, _results: list[Any]) -> Steps:
    batch, channels = args[1].size(0), args[1].size(1)
    size = batch * channels * _FLOAT
    return [size, size, size]


def _group_norm(_card: Card, args: Any, _results: list[Any]) -> Steps:
    size = args[0].size(0) * args[0].size(1) * _FLOAT
    return [size, size]


def _encoder_layer(_card: Card, args: Any, _results: list[Any]) -> Steps:
    """Return what a whole encoder layer for inference takes, one step after the other."""
    x, first = args[0], args[15 - 1]
    rows = x.numel() // x.size(-1)
    size, inner = _bytes(x), rows * first.size(0) * int(x.dtype.itemsize)
    norm = rows * _FLOAT
    stats = [norm, norm, -norm, -norm]
    return [
        *(3 * size, size, size, -size, -3 * size),
        *(size, *stats, -size),
        *(inner, size, -inner),
        *(None, *stats, -size, -size),
    ]


def _roll(_card: Card, args: Any, _results: list[Any]) -> Steps:
    return [_bytes(args[0])] if len(args[1]) > 1 else []


def _topk(card: Card, args: Any, _results: list[Any]) -> Steps:
    """Return what selection by several blocks a slice takes: counts of digits, and where each block's results go."""
    x = args[0]
    length = x.size(args[2] if len(args) > 2 else -1) if x.dim() else 1
    slices = x.numel() // max(1, length)
    if length < next(least for most, least in _SEVERAL_BLOCKS if slices <= most):
        return []
    each = -(-x.numel() // (card.multiprocessors * _BLOCKS * _BLOCK))
    blocks = -(-length // (_BLOCK * max(4, min(each, 64))))
    digits, own = 2 * 256 * blocks * slices, _FLOAT * blocks * slices
    return [int(x.dtype.itemsize) * slices, _INDEX * slices, _INDEX * slices, digits, 1024 * slices, own, own]


_BLOCK, _BLOCKS = 256, 6  # threads of a block, and blocks of a multiprocessor
_SEVERAL_BLOCKS = (
    *((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800)),
    (math.inf, 400),
)
"""Up to so many slices of at least this length are shared by several blocks each."""


KERNELS: dict[str, Kernel] = {
    "_cdist_backward": _result(0),
    "_embedding_bag_backward": _embedding_bag_backward,
    "_embedding_bag_dense_backward": _embedding_bag_backward,
    "_fused_rms_norm": _contiguous(0),
    "_log_softmax": _contiguous(0),
    "_scaled_dot_product_cudnn_attention": _cudnn_attention,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_attention_backward,
    "_scaled_dot_product_flash_attention_backward": _flash_attention_backward,
    "_softmax": _contiguous(0),
    "_softmax_backward_data": _whole(1),
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "all": _along(0),
    "amax": _extremum,
    "amin": _extremum,
    "any": _along(0),
    "argmax": _along(_PAIR),
    "argmin": _along(_PAIR),
    "convolution": convolutions.forward,
    "convolution_backward": convolutions.backward,
    "embedding": _contiguous(1),
    "embedding_dense_backward": _embedding_backward,
    "index_put": _index_put,
    "index_put_": _index_put,
    "_index_put_impl_": _index_put,
    "linalg_vector_norm": _reduction(_FLOAT),
    "max": _along(_PAIR),
    "mean": _reduction(),
    "min": _along(_PAIR),
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_layer_norm": _contiguous(0),
    "native_layer_norm_backward": _layer_norm_backward,
    "prod": _reduction(),
    "roll": _roll,
    "std": _reduction(_PAIR),
    "sum": _reduction(),
    "topk": _topk,
    "upsample_bilinear2d_backward": _dense,
    "upsample_nearest2d": _dense,
    "upsample_nearest2d_backward": _dense,
    "var": _reduction(_PAIR),
    "var_mean": _reduction(_PAIR),
}
