"""What a virtual card does not have: CUDA graphs, private pools, NVML, a compiler, times. Each says so."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch._dynamo import eval_frame
from torch.autograd import profiler as autograd_profiler

from jupyter_gpumem.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_gpumem.virtual.patches import Patches

    from .state import State

_SENSORS = ("memory_usage", "utilization", "temperature", "power_draw", "clock_rate")


def install(state: State, patches: Patches) -> None:
    """Put everything in place."""
    _refuse(patches)
    patches.set(torch.cuda.nvtx, "_nvtx", _NoRanges())
    if hasattr(torch.cuda, "device_memory_used"):
        patches.set(torch.cuda, "device_memory_used", lambda device=None: state.used(_index(device)))

    def processes(device: Any = None) -> str:
        index = _index(device)
        used = state.used(index)
        line = f"process {os.getpid():>10d} uses {used / MiB:>12.3f} MB GPU memory"
        return f"GPU:{index}\n{line if used else 'no processes are running'}"

    for module in (torch.cuda.memory, torch.cuda):
        patches.set(module, "list_gpu_processes", processes)

    _leave_uncompiled(state, patches)
    plain_profile = autograd_profiler.profile.__init__

    @functools.wraps(plain_profile)
    def profile_host(self: Any, *args: Any, **options: Any) -> None:
        if options.get("use_device") == "cuda" or options.get("use_cuda"):
            state.note("the time of kernels on the card", "none")
            options |= {"use_device": None, "use_cuda": False}
        plain_profile(self, *args, **options)

    patches.set(autograd_profiler.profile, "__init__", profile_host)


def _leave_uncompiled(state: State, patches: Patches) -> None:
    """Let code run as it is, whether it is to be compiled now or was before: Dynamo's guards and graphs ask the device.

    What `torch.compile` returned earlier, and what else enters Dynamo, asks it there what is to be done with a frame.
    """

    def note() -> None:
        state.note("torch.compile()", "the code as it is, which takes another amount of memory than compiled code")

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_, **options)
        note()
        return model

    def compile_no_frame(callback: Any) -> None:
        if callback not in (None, False):
            note()

    patches.set(torch, "compile", functools.wraps(torch.compile)(compile_))
    patches.set(eval_frame, "_callback_from_stance", compile_no_frame)
    # With another stance, nobody misses the compiled frames of `fullgraph=True`.
    patches.set(eval_frame, "_stance", eval_frame.DynamoStance("force_eager"))


def _refuse(patches: Patches) -> None:
    """Refuse what cannot be had, in a sentence."""
    graphs = _refusing("CUDA graphs cannot be captured on a virtual GPU: nothing runs on it; run this part eagerly")
    pools = _refusing("private memory pools are not modelled by the virtual GPU; leave the pool out")
    allocators = _refusing("another allocator cannot be used on a virtual GPU; leave it out")
    patches.set(torch.cuda.CUDAGraph, "__new__", staticmethod(graphs))
    patches.set(torch.cuda.graphs, "_graph_pool_handle", graphs)
    patches.set(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False)
    patches.set(torch.cuda.MemPool, "__new__", staticmethod(pools))
    for name in ("change_current_allocator", "CUDAPluggableAllocator"):
        for module in (torch.cuda.memory, torch.cuda):
            if hasattr(module, name):
                patches.set(module, name, allocators)
    for name in _SENSORS:
        if hasattr(torch.cuda, name):
            patches.set(torch.cuda, name, _refusing(f"torch.cuda.{name} has no answer: a virtual GPU has no sensors"))
    patches.set(torch.cuda, "_get_pynvml_handler", _refusing("NVML knows nothing of a virtual GPU"))


def _refusing(text: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(text)

    return refuse


def _index(device: Any) -> int:
    index: int = torch.cuda._utils._get_device_index(device, optional=True)
    return index


class _NoRanges:
    """NVTX without a profiler: ranges are counted, as they are then, and go nowhere."""

    def __init__(self) -> None:
        self._depth = self._started = 0

    def rangePushA(self, message: str) -> int:  # noqa: N802 - NVTX's names
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:  # noqa: N802
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str) -> int:  # noqa: N802
        self._started += 1
        return self._started

    def rangeEnd(self, number: int) -> None:  # noqa: N802
        """Do nothing."""

    def markA(self, message: str) -> None:  # noqa: N802
        """Do nothing."""
