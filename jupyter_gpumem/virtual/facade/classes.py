"""Classes of `torch` that make things for any device: beside real ones they must make those of virtual cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_gpumem.virtual.patches import Patches

_LEGACY = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


def substitute(patches: Patches, name: str, make: Callable[..., Any], also: Callable[[], type | tuple[()]]) -> None:
    """Replace a class of `torch` by one that makes virtual objects too.

    Everything of the real class is an instance of it, and so is everything of the others; what it lacks is the real
    class's, such as methods that are looked up on it.

    Args:
        patches: where the replacement is made.
        name: the class.
        make: called with the user's arguments; returns a virtual object, or `None` where a real one is meant.
        also: returns a class whose objects count as well.
    """
    real: Any = getattr(torch, name)

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (real, also()))

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, (real, also()))

        def __getattr__(cls, attribute: str) -> Any:
            return getattr(real, attribute)

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        # A module that was imported meanwhile may still have this class when there is no virtual card any more.
        made = make(*args, **kwargs) if getattr(torch, name) is cls else None
        return real(*args, **kwargs) if made is None else made

    about = {"__module__": real.__module__, "__doc__": real.__doc__, "__new__": staticmethod(new)}
    patches.set(torch, name, Kind(name, (), about))


def is_virtual(device: Any) -> bool:
    """Whether a device that a user has named is a virtual card."""
    return isinstance(device, int) or torch.device(device).type == "cuda"


def install(patches: Patches) -> None:
    """Let the old types, such as `torch.cuda.FloatTensor`, make tensors, and know them."""
    for name, dtype in _LEGACY.items():
        patches.set(torch.cuda, name, _legacy(name, dtype))


def _legacy(name: str, dtype: torch.dtype) -> type:
    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == dtype

    def new(cls: type, *args: Any, **kwargs: Any) -> torch.Tensor:
        return getattr(torch, name)(*args, **kwargs).cuda()

    return Kind(name, (), {"__module__": "torch.cuda", "__new__": staticmethod(new), "dtype": dtype, "is_cuda": True})
