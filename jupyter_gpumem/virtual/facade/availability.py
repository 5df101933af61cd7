"""Whether there is CUDA, which cards, and which one a thread uses.

Nearly all of it is answered underneath, by the bindings that `torch.cuda`'s own functions call: on a CPU build they do
not exist and are added, on a CUDA build they are replaced. What those functions do with the answers stays PyTorch's.
"""

from __future__ import annotations

import enum
import importlib
import os
from typing import TYPE_CHECKING, Any

import torch

from .properties import DeviceProperties

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_gpumem.virtual.patches import Patches

    from .state import State

_NEWEST = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
_OLDEST = (7, 0)
_RECURRENT = ("RNN_RELU", "RNN_TANH", "LSTM", "GRU")
"""cuDNN's numbers of them."""
_CUDNN = 91900
"""The version whose convolutions and recurrent layers were measured."""
_NOT_ON_DEVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)


def _acceptable(tensor: torch.Tensor) -> bool:
    """Return whether cuDNN would take a tensor, as `torch.backends.cudnn.is_acceptable` does."""
    types = {torch.half, torch.bfloat16, torch.float, torch.double}
    return bool(torch._C._get_cudnn_enabled() and tensor.is_cuda and tensor.dtype in types)


def invalid_device() -> RuntimeError:
    """Return what PyTorch raises for a card that is not there."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    error: RuntimeError = kind(f"CUDA error: invalid device ordinal{_NOT_ON_DEVICE}")
    return error


class Runtime:
    """What stands for CUDA's run-time library: the calls that PyTorch's own Python makes."""

    class cudaError(enum.IntEnum):  # noqa: N801 - CUDA's name
        """CUDA's error codes."""

        success = 0

    def __init__(self, state: State) -> None:
        self.cudaMemGetInfo = state.memory_info

    def cudaGetErrorString(self, error: cudaError) -> str:  # noqa: N802
        """Return the name of an error."""
        return error.name

    def cudaProfilerStart(self) -> cudaError:  # noqa: N802
        """Do nothing: no profiler watches a virtual card."""
        return self.cudaError.success

    def cudaProfilerStop(self) -> cudaError:  # noqa: N802
        """Do nothing."""
        return self.cudaError.success


class Availability:
    """The cards, and which of them the running thread uses."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._properties = [DeviceProperties(card, index) for index, card in enumerate(state.cards)]
        self._sync_debug_mode = 0

    def install(self, patches: Patches) -> None:
        """Put everything in place."""
        cuda = torch.cuda
        for name, binding in self._bindings().items():
            patches.set(torch._C, name, binding)
        patches.set(torch._C, "_has_cuda", value=True)
        if torch.version.cuda is None:
            # Libraries take `None` for "no CUDA build" and refuse (transformers' bf16 and tf32 checks do), although
            # `is_available()` holds. The release that PyTorch is published for, where it has code for these cards.
            patches.set(torch.version, "cuda", "12.6" if self._has_old() else "13.0")
        # `nn.LSTM` and its like put their weights in one piece of memory where cuDNN can have them.
        patches.set(torch.backends.cudnn, "is_acceptable", _acceptable)
        patches.set(torch.backends.cudnn, "is_available", lambda: True)
        patches.set(torch.backends.cudnn, "version", lambda: _CUDNN)
        patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
        # By its whole name: `torch.backends.cudnn` of PyTorch 2.10 has an attribute of the same name instead.
        recurrent = importlib.import_module("torch.backends.cudnn.rnn")
        patches.set(recurrent, "get_cudnn_mode", _RECURRENT.index)
        patches.set(cuda, "_exchange_device", self._exchange)
        patches.set(cuda, "_maybe_exchange_device", self._exchange_back)
        patches.set(cuda, "_get_device_properties", self.properties)
        patches.set(cuda, "_is_in_bad_fork", self._in_bad_fork)
        patches.set(cuda, "_device_count_nvml", lambda: -1)  # NVML knows nothing of virtual cards
        patches.set(cuda, "_check_bf16_tensor_supported", lambda device: True)  # noqa: ARG005 - it would stay cached
        patches.set(cuda, "_cudart", Runtime(self._state))
        patches.set(cuda, "_queued_calls", list(cuda._queued_calls))
        patches.set(cuda, "_initialized", value=False, kept_by_owner=True)
        patches.set(cuda, "_cached_device_count", None, kept_by_owner=True)

    def _bindings(self) -> dict[str, Callable[..., Any]]:
        return {
            "_cuda_init": lambda: None,
            "_cuda_getDeviceCount": lambda: len(self._state.cards),
            "_cuda_getDevice": lambda: self._state.selection.device,
            "_cuda_setDevice": self._exchange,
            "_cuda_exchangeDevice": self._exchange,
            "_cuda_maybeExchangeDevice": self._exchange_back,
            "_cuda_hasPrimaryContext": lambda index: index in self._state.memory.ready,
            "_cuda_isInBadFork": self._in_bad_fork,
            "_cuda_getArchFlags": self._arch_flags,
            "_cuda_getCompiledVersion": lambda: 12060 if self._has_old() else 13000,
            "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
            "_cuda_synchronize": self._synchronize,
            "_cuda_sleep": lambda cycles: None,  # noqa: ARG005
            "_cuda_ipc_collect": lambda: None,
            "_cuda_set_sync_debug_mode": self._set_sync_debug_mode,
            "_cuda_get_sync_debug_mode": lambda: self._sync_debug_mode,
            "_cuda_getCurrentBlasHandle": lambda: 0,
            "_cuda_getCurrentSolverHandle": lambda: 0,
        }

    def properties(self, index: int) -> DeviceProperties:
        """Return the properties of a card."""
        return self._properties[index]

    def _exchange(self, index: int) -> int:
        """Make a card the current one and return which it was; a negative index changes nothing."""
        before = self._state.selection.device
        if index < 0:
            return -1
        if index >= len(self._state.cards):
            raise invalid_device()
        self._state.selection.device = index
        return before

    def _exchange_back(self, index: int) -> int:
        """Do the same: PyTorch's compiler looks these functions up by identity, and there must be two."""
        return self._exchange(index)

    def _synchronize(self) -> None:
        self._state.memory.complete(self._state.selection.device)

    def _set_sync_debug_mode(self, mode: int) -> None:
        self._sync_debug_mode = mode

    def _in_bad_fork(self) -> bool:
        # As with a real card: a child process cannot use what its parent has initialised.
        return os.getpid() != self._state.pid and bool(torch.cuda._initialized)

    def _has_old(self) -> bool:
        return any(card.capability == _OLDEST for card in self._state.cards)

    def _arch_flags(self) -> str:
        """Return for which cards PyTorch would have code: those that its releases support, Volta's with CUDA 12.6."""
        capabilities = (_OLDEST, *_NEWEST) if self._has_old() else _NEWEST
        return " ".join(f"sm_{major}{minor}" for major, minor in capabilities)
