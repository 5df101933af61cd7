"""The device that PyTorch's `PrivateUse1` key is given, set up from Python once for the life of the process.

What is registered in C++ here cannot be taken back: the device's name, its guard and its hooks. They do nothing by
themselves: while no virtual GPU is on, the device says that it is not available.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.errors import UnavailableError

from . import guard
from .storages import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable

_registered: list[Any] = []


def register(available: Callable[[], bool]) -> None:
    """Register the device, if it is not registered yet.

    Args:
        available: whether a virtual GPU is on.

    Raises:
        UnavailableError: PyTorch is too old, or another package has taken the key.
    """
    if _registered:
        return
    if not hasattr(torch._C, "_acc"):
        raise UnavailableError(
            f"a virtual GPU needs torch 2.9 or later, this is {torch.__version__}; update torch or use a real device"
        )
    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone":
        raise UnavailableError(
            f"a virtual GPU needs PyTorch's PrivateUse1 device, and {name!r} has it; use a process without that package"
        )
    guard.register()
    torch.utils.rename_privateuse1_backend(BACKEND)
    hooks = _hooks(available)
    torch._C._acc.register_python_privateuseone_hook(hooks)
    _registered.append(hooks)


def device_module(current: Callable[[], int], count: Callable[[], int]) -> types.ModuleType:
    """Return the module `torch.vgpu`, which PyTorch asks about the device.

    Args:
        current: the current card.
        count: how many cards there are.
    """
    module = types.ModuleType(f"torch.{BACKEND}")
    vars(module).update(
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
        current_device=current,
        device_count=count,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        is_available=lambda: count() > 0,
        is_initialized=lambda: True,
        manual_seed=lambda _seed: None,
        manual_seed_all=lambda _seed: None,
    )
    return module


def show_module(module: types.ModuleType | None) -> None:
    """Let PyTorch find the device's module, or find none."""
    if module is not None:
        sys.modules[f"torch.{BACKEND}"] = module
        setattr(torch, BACKEND, module)
    elif sys.modules.pop(f"torch.{BACKEND}", None) is not None:
        delattr(torch, BACKEND)


def _hooks(available: Callable[[], bool]) -> Any:
    class Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[misc]
        def is_available(self) -> bool:
            return available()

        def has_primary_context(self, _index: int) -> bool:
            return available()

        def is_built(self) -> bool:
            return True

    return Hooks()
