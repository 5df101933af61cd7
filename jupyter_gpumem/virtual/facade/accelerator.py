"""`torch.accelerator`: the virtual cards are the accelerator of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from jupyter_gpumem.virtual.patches import Patches

    from .counters import MemoryCounters
    from .state import State


def install(state: State, counters: MemoryCounters, patches: Patches) -> None:
    """Put everything in place."""
    exchange = torch._C._cuda_exchangeDevice

    def set_stream(stream: Any) -> None:
        torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)

    def capability(index: int) -> dict[str, Any]:
        types = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16)
        floats = (torch.float16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128)
        return {"supported_dtypes": {*types, *floats}}

    bindings = {
        "_get_accelerator": lambda check=None: torch.device("cuda"),  # noqa: ARG005
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: state.selection.device,
        "_accelerator_setDeviceIndex": exchange,
        "_accelerator_exchangeDevice": exchange,
        "_accelerator_maybeExchangeDevice": exchange,
        "_accelerator_getDeviceCapability": capability,
        "_accelerator_getStream": torch.cuda.current_stream,
        "_accelerator_setStream": set_stream,
        "_accelerator_synchronizeDevice": state.memory.complete,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_accelerator_emptyCache": counters.empty_cache,
        "_accelerator_emptyHostCache": lambda: None,
        "_accelerator_getDeviceStats": counters.stats,
        "_accelerator_resetPeakStats": counters.reset_peaks,
        "_accelerator_resetAccumulatedStats": counters.reset_totals,
        "_accelerator_getMemoryInfo": state.memory_info,
    }
    for name, binding in bindings.items():
        patches.set(torch._C, name, binding)
    module: Any = torch.accelerator
    if hasattr(module, "get_device_capability"):
        patches.set(module, "get_device_capability", module.get_device_capability.__wrapped__)  # it would stay cached
