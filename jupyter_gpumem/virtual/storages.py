"""Tensors of the virtual device: real ones, whose storages have an address and a size, but no memory behind them.

A storage takes its bytes from the allocator model when it is made and gives them back when PyTorch lets go of it, at
the very points where a CUDA storage would. Its Python object lives exactly as long as the storage itself, so a weak
reference tells the moment.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .memory import VirtualMemory

BACKEND = "cuda_virtual"
"""What PyTorch calls the device inside; users read `cuda`."""

NATIVE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""The key whose kernels for views and storages touch no data, so that they serve this device as well."""

_set = torch.ops.aten.set_.source_Storage_storage_offset
_as_strided = torch.ops.aten.as_strided.default
_view_as = torch.ops.aten.view.dtype
_new_storage = torch._C._construct_storage_from_data_pointer


class _Lifetime(weakref.ref):  # type: ignore[type-arg]
    """What is to be freed when a storage is gone."""

    __slots__ = ("address", "device")

    address: int
    device: int


def devices(count: int) -> tuple[torch.device, ...]:
    """Return the devices as PyTorch knows them inside."""
    return tuple(torch.device(BACKEND, index) for index in range(count))


def new_storage(memory: VirtualMemory, index: int, nbytes: int) -> torch.UntypedStorage:
    """Return a storage of a card.

    Raises:
        torch.OutOfMemoryError: the card is full.
    """
    __tracebackhide__ = True
    device = torch.device(BACKEND, index)
    made: list[torch.UntypedStorage] = []

    def hand_over(address: int) -> None:
        storage = _new_storage(address, device, nbytes)
        lifetime = _Lifetime(storage, memory.released.append)
        lifetime.address, lifetime.device = address, index
        memory.alive[index, address] = lifetime
        made.append(storage)

    memory.allocate(index, nbytes, hand_over=hand_over)
    return made[0] if made else _new_storage(0, device, nbytes)


def new_tensor(
    memory: VirtualMemory, index: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor of a card with a storage of its own.

    Raises:
        torch.OutOfMemoryError: the card is full.
    """
    __tracebackhide__ = True
    storage = new_storage(memory, index, extent(size, stride) * dtype.itemsize)
    if index:
        tensor = _as_strided.redispatch(NATIVE, _empty(index, dtype), (0,), (1,), 0)
    else:
        tensor = torch._C._acc.create_empty_tensor([0], dtype)
    _set.redispatch(NATIVE, tensor, storage, 0, size, stride)
    return tensor


@functools.cache
def _empty(index: int, dtype: torch.dtype) -> torch.Tensor:
    """Return an empty tensor of a card other than the first, the only one PyTorch's own function makes tensors on."""
    shape, stride = (ctypes.c_int64 * 1)(0), (ctypes.c_int64 * 1)(1)
    managed = _Managed(None, _EXTENSION_DEVICE, index, 1, _FLOAT, 32, 1, shape, stride, 0, None, None)
    _exchanged.append(managed)
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    tensor = torch._C._from_dlpack(new_capsule(ctypes.addressof(managed), b"dltensor", None))
    return _view_as.redispatch(NATIVE, tensor, dtype)


class _Managed(ctypes.Structure):
    """DLPack's managed tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_EXTENSION_DEVICE, _FLOAT = 12, 2  # kDLExtDev, kDLFloat
_exchanged: list[_Managed] = []


def resize(memory: VirtualMemory, tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """Give a tensor another shape in place, with a larger storage if it needs one."""
    __tracebackhide__ = True
    nbytes = (extent(size, stride) + tensor.storage_offset()) * tensor.dtype.itemsize
    storage = tensor.untyped_storage()
    if nbytes > storage.nbytes():
        storage = new_storage(memory, tensor.get_device(), nbytes)
    _set.redispatch(NATIVE, tensor, storage, tensor.storage_offset(), size, stride)


def extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements a storage needs for a tensor at its start."""
    last = 0
    for length, step in zip(size, stride, strict=True):
        if not length:
            return 0
        last += (length - 1) * step
    return last + 1


def contiguous(size: Sequence[int], memory_format: Any = None) -> list[int]:
    """Return the strides of a dense tensor."""
    order = list(range(len(size) - 1, -1, -1))
    if memory_format in {torch.channels_last, torch.channels_last_3d}:
        order = [1, *(axis for axis in order if axis > 1), 0]
    strides = [0] * len(size)
    step = 1
    for axis in order:
        strides[axis] = step
        step *= max(1, size[axis])
    return strides
