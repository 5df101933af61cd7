"""The device that PyTorch's `PrivateUse1` key is given, set up from Python once for the life of the process.

What is registered here cannot be taken back: the device's name, its guard, its hooks, its allocator, its kernels, and
its module `torch.cuda_virtual`, which PyTorch asks from then on. They do nothing by themselves: while no virtual GPU is
on, the module says that there is no such device.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.errors import UnavailableError

from . import claim, guard
from .patches import Patches
from .storages import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_WHILE_OFF = "privateuseone"
"""What PyTorch calls the device of a tensor that is left while no virtual GPU is on."""
_registered: list[Any] = []
_guards = Patches()
_left: list[Callable[[], object]] = []
"""Weak references to storages of virtual GPUs that are off."""


def register(count: Callable[[], int]) -> None:
    """Register the device, if it is not registered yet.

    Args:
        count: how many virtual cards there are; 0 while they are off.

    Raises:
        UnavailableError: another package has taken the key, or a real GPU would be lost.
    """
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
    torch.utils.rename_privateuse1_backend(BACKEND)
    hooks = _hooks(count)
    torch._C._acc.register_python_privateuseone_hook(hooks)
    torch._register_device_module(BACKEND, _module(count))
    _registered.append(hooks)


def guard_storages() -> None:
    """Refuse the two methods of storages that use memory or an allocator of their own, which ours do not have.

    They end the process, also for a storage that is left after the device is off.
    """
    if len(_guards):
        return
    storage = torch.UntypedStorage
    for name, instead in (("byteswap", "copy the storage to host memory first"), ("new", "make a new tensor")):
        _guards.set(storage, name, _guarded(getattr(storage, name), name, instead))


def unguard_storages(alive: Iterable[Callable[[], object]]) -> list[str]:
    """Give both back, unless storages are left; returns a sentence for each that somebody else replaced meanwhile.

    Args:
        alive: weak references to the storages of the virtual GPU that goes off.
    """
    _left[:] = [one for one in (*_left, *alive) if one() is not None]
    return [] if _left else _guards.undo()


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
