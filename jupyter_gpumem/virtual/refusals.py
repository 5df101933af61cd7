"""What CUDA's operators refuse and PyTorch's meta kernels let pass, in the words of PyTorch.

A program that mixes types or shapes is to fail here at the line where it would fail on a real card. Each check is made
once for the same operator, shapes and numbers.
"""

from __future__ import annotations

import itertools
import math
import weakref
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.errors import UnavailableError

from .places import place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TYPES = {
    torch.bfloat16: ("BFloat16", "c10::BFloat16"),
    torch.bool: ("Bool", "bool"),
    torch.complex128: ("ComplexDouble", "c10::complex<double>"),
    torch.complex64: ("ComplexFloat", "c10::complex<float>"),
    torch.float16: ("Half", "c10::Half"),
    torch.float32: ("Float", "float"),
    torch.float64: ("Double", "double"),
    torch.int16: ("Short", "short int"),
    torch.int32: ("Int", "int"),
    torch.int64: ("Long", "long int"),
    torch.int8: ("Char", "signed char"),
    torch.uint8: ("Byte", "unsigned char"),
}
_C_TYPES = {
    torch.bfloat16: "at::BFloat16",
    torch.float16: "at::Half",
    torch.int16: "int16_t",
    torch.int64: "int64_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
}

_MOST_BYTES = (1 << 63) - 1

VIRTUAL_GENERATORS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Generators of virtual cards by their C++ object: kernels are given another Python object of it."""


def scalar_type(dtype: torch.dtype) -> str:
    """Return what PyTorch's texts call a type: `Half`."""
    return _TYPES[dtype][0] if dtype in _TYPES else str(dtype)


def c_type(dtype: torch.dtype) -> str:
    """Return what other texts of PyTorch call it: `c10::Half`."""
    return _TYPES[dtype][1] if dtype in _TYPES else str(dtype)


def check_generator(generator: Any, kind: str) -> None:
    """Refuse a generator of another kind of device.

    Raises:
        RuntimeError: it is one; the text is PyTorch's.
    """
    if generator is not None:
        found = "cuda" if generator._cdata in VIRTUAL_GENERATORS else generator.device.type
        if found != kind:
            raise RuntimeError(f"Expected a '{kind}' device type for generator but found '{found}'")


def check_size(size: Sequence[int], dtype: torch.dtype) -> None:
    """Refuse the size of a new tensor that no tensor can have.

    Raises:
        RuntimeError: a dimension is negative, or the bytes are too many to be counted; the texts are PyTorch's.
    """
    __tracebackhide__ = True
    nbytes = dtype.itemsize
    for length in size:
        if length < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {length}: {list(size)}")
        nbytes *= length
    if nbytes > _MOST_BYTES:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={list(size)}")


def check_broadcast(target: torch.Tensor, source: torch.Tensor) -> None:
    """Refuse to write a tensor to another of a shape that it does not broadcast to.

    Raises:
        RuntimeError: it does not; the text is PyTorch's.
    """
    sizes = [*itertools.zip_longest(reversed(target.shape), reversed(source.shape), fillvalue=1)]
    for behind, (one, other) in enumerate(sizes):
        if one != other and 1 not in {one, other}:
            raise RuntimeError(
                f"The size of tensor a ({one}) must match the size of tensor b ({other}) at non-singleton dimension "
                f"{len(sizes) - 1 - behind}"
            )
    shape = [other if one == 1 else one for one, other in reversed(sizes)]
    if shape != list(target.shape):
        raise RuntimeError(f"output with shape {list(target.shape)} doesn't match the broadcast shape {shape}")


def _has_kernel(name: str, tensor: torch.Tensor) -> None:
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise RuntimeError(f"\"{name}\" not implemented for '{scalar_type(tensor.dtype)}'")


def _product(args: Any) -> None:
    one, other = args[0], args[1]
    if one.dtype != other.dtype:
        raise RuntimeError(
            f"expected mat1 and mat2 to have the same dtype, but got: {c_type(one.dtype)} != {c_type(other.dtype)}"
        )
    _has_kernel("addmm_cuda", one)


def _sum_and_product(args: Any) -> None:
    _has_kernel("addmm_cuda", args[1])


def _batched_product(*given: int) -> Callable[[Any], None]:
    def check(args: Any) -> None:
        one, other = (args[at] for at in given)
        if one.dtype != other.dtype:
            raise RuntimeError(f"expected scalar type {scalar_type(one.dtype)} but found {scalar_type(other.dtype)}")
        _has_kernel("baddbmm_cuda", one)

    return check


def _softmax(args: Any) -> None:
    _has_kernel("host_softmax", args[0])


def _convolution(args: Any) -> None:
    data, weight, bias = args[:3]
    for what, other in (("weight", weight), ("bias", bias)):
        if other is not None and (other.dtype, other.get_device()) != (data.dtype, data.get_device()):
            raise RuntimeError(f"Input type ({data.type()}) and {what} type ({other.type()}) should be the same")


def _fill(args: Any) -> None:
    tensor, value = args[0], args[-1]
    dtype = tensor.dtype
    if isinstance(value, bool) or not isinstance(value, (int, float)) or dtype.is_complex or dtype == torch.bool:
        return
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if (math.isfinite(value) or not dtype.is_floating_point) and not limits.min <= value <= limits.max:
        name = _C_TYPES.get(dtype, c_type(dtype))
        raise RuntimeError(f"value cannot be converted to type {name} without overflow")


def _masked_fill(args: Any) -> None:
    mask, value = args[1:3]
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_fill_ only supports boolean masks, but got mask with dtype {c_type(mask.dtype)}")
    if isinstance(value, torch.Tensor) and value.dim():
        raise RuntimeError(
            f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {value.dim()} dimension(s)."
        )
    _fill(args)


def _masked_fill_in_place(args: Any) -> None:
    mask = args[1]
    torch.empty((1,), dtype=mask.dtype).as_strided(mask.size(), [0] * mask.dim()).expand(args[0].size())
    _masked_fill(args)


def _index_put(args: Any) -> None:
    target, indices, values = args[:3]
    found = [index for index in indices if index is not None]
    if values.numel() == 1 and not (len(args) > 3 and args[3]) and all(one.dtype == torch.bool for one in found):
        return  # done as a masked fill
    if values.get_device() != target.get_device() and not (values.numel() == 1 and not values.dim()):
        names = [f"cuda:{one.get_device()}" if one.get_device() >= 0 else "cpu" for one in (target, values)]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {names[0]} and {names[1]}!"
        )
    if all(one.dtype in {torch.int64, torch.int32} for one in found):
        size = _indexed(target, indices)
        try:
            fits = torch.broadcast_shapes(values.shape, size) == size
        except RuntimeError:
            fits = False
        if not fits:
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
                f"shape {list(size)}"
            )
    if values.dtype != target.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, "
            f"got {scalar_type(target.dtype)} for the destination and {scalar_type(values.dtype)} for the source."
        )


def _indexed(target: torch.Tensor, indices: Any) -> torch.Size:
    """Return the shape that indexing with these integers gives."""
    given = [*indices, *[None] * (target.dim() - len(indices))]
    at = [place for place, index in enumerate(given) if index is not None]
    common = torch.broadcast_shapes(*(given[place].shape for place in at))
    rest = [target.size(place) for place in range(target.dim()) if given[place] is None]
    together = all(after - before == 1 for before, after in itertools.pairwise(at))
    first = at[0] if together else 0
    return torch.Size([*rest[:first], *common, *rest[first:]])


def _multinomial(args: Any) -> None:
    weights, count = args[:2]
    if not weights.dtype.is_floating_point:
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for input, got: {scalar_type(weights.dtype)}"
        )
    if not (len(args) > 2 and args[2]) and count > weights.size(-1):
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")


CHECKS: dict[str, Callable[[Any], None]] = {
    "_index_put_impl_": _index_put,
    "_log_softmax": _softmax,
    "_softmax": _softmax,
    "addmm": _sum_and_product,
    "baddbmm": _batched_product(1, 2),
    "bmm": _batched_product(0, 1),
    "convolution": _convolution,
    "fill_": _fill,
    "index_put": _index_put,
    "index_put_": _index_put,
    "masked_fill": _masked_fill,
    "masked_fill_": _masked_fill_in_place,
    "mm": _product,
    "multinomial": _multinomial,
}
"""What is checked of an operator's arguments, by its name."""


def check_kind(op: Any) -> None:
    """Refuse an operator of a quantized layer, which has its weights in a form of its own, and in host memory.

    Raises:
        UnavailableError: it is one.
    """
    space, _, name = op._schema.name.partition("::")
    if space.startswith("quantized") or name.startswith(("quantized_", "fbgemm_")):
        file, line = place()
        raise UnavailableError(
            f"{name} of a quantized layer is not known to a virtual GPU, at {file}:{line}; run this line on the CPU"
        )
