"""The device that PyTorch's `PrivateUse1` key is given, set up from Python once for the life of the process.

What is registered here cannot be taken back: the device's name, its guard, its hooks, its allocator, its kernels,
a check in two methods of `UntypedStorage`, and its module `torch.cuda_virtual`, which PyTorch asks from then on. They
do nothing by themselves: while no virtual GPU is on, the module says that there is no such device.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.errors import UnavailableError

from . import claim, guard
from .storages import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable

_WHILE_OFF = "privateuseone"
"""What PyTorch calls the device of a tensor that is left while no virtual GPU is on."""
_registered: list[Any] = []


def register(count: Callable[[], int]) -> None:
    """Register the device, if it is not registered yet.

    Args:
        count: how many virtual cards there are; 0 while they are off.

    Raises:
        UnavailableError: PyTorch is too old, another package has taken the key, or a real GPU would be lost.
    """
    if not hasattr(torch._C, "_acc"):
        raise UnavailableError(
            f"a virtual GPU needs torch 2.9 or later, this is {torch.__version__}; update torch or use a real device"
        )
    name = torch._C._get_privateuse1_backend_name()
    if name not in ({_WHILE_OFF, BACKEND} if _registered else {_WHILE_OFF}):
        raise UnavailableError(
            f"a virtual GPU needs PyTorch's PrivateUse1 device, and {name!r} has it; use a process without that package"
        )
    if _registered:
        return
    claim.check()
    guard.register()
    guard.give_allocator()
    _guard_storages()
    torch.utils.rename_privateuse1_backend(BACKEND)
    hooks = _hooks(count)
    torch._C._acc.register_python_privateuseone_hook(hooks)
    torch._register_device_module(BACKEND, _module(count))
    _registered.append(hooks)


def _guard_storages() -> None:
    """Refuse for good the two methods of storages that use memory or an allocator of their own, which ours do not have.

    They end the process, also for a storage that is left after the device is off.
    """
    for name, instead in (("byteswap", "copy the storage to host memory first"), ("new", "make a new tensor")):
        setattr(torch.UntypedStorage, name, _guarded(getattr(torch.UntypedStorage, name), name, instead))


def _guarded(plain: Callable[..., Any], name: str, instead: str) -> Callable[..., Any]:
    @functools.wraps(plain)
    def method(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if torch._C.StorageBase.device.__get__(self).type in {BACKEND, _WHILE_OFF}:
            raise UnavailableError(f"a storage of a virtual GPU has no {name}(); {instead}")
        return plain(self, *args, **kwargs)

    return method


def _module(count: Callable[[], int]) -> types.ModuleType:
    module = types.ModuleType(f"torch.{BACKEND}", "The virtual GPU, as PyTorch asks about it.")
    vars(module).update(
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
        current_device=lambda: int(torch.cuda.current_device()),
        device_count=count,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        is_available=lambda: count() > 0,
        is_initialized=lambda: count() > 0,
        manual_seed=lambda _seed: None,
        manual_seed_all=lambda _seed: None,
    )
    return module


def _hooks(count: Callable[[], int]) -> Any:
    class Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[misc]
        def is_available(self) -> bool:
            return count() > 0

        def has_primary_context(self, _index: int) -> bool:
            return count() > 0

        def is_built(self) -> bool:
            return True

    return Hooks()
