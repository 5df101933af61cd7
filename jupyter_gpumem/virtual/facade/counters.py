"""The allocator's counters, cap, cache and settings, as `torch.cuda.memory` and `torch.accelerator.memory` ask."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.allocator.settings import INTERVALS
from jupyter_gpumem.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyter_gpumem.virtual.patches import Patches

    from .state import State

_HOST_LEVELS = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
_HOST_TIMES = ("host_alloc_time", "host_free_time")


class MemoryCounters:
    """One allocator for each card, read and changed by PyTorch's own functions."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._fractions: dict[int, float] = {}
        self._settings_text = str(state.allocator(0).settings)
        self._raw: dict[int, list[int]] = {}
        self._moved: list[dict[int, int]] = []

    def install(self, patches: Patches) -> None:
        """Put everything in place."""
        for name, binding in self.bindings().items():
            patches.set(torch._C, name, binding)

    def bindings(self) -> dict[str, Callable[..., Any]]:
        """Return the bindings of `torch._C`, by name."""
        return {
            "_cuda_memoryStats": self.stats,
            "_cuda_resetPeakMemoryStats": self.reset_peaks,
            "_cuda_resetAccumulatedMemoryStats": self.reset_totals,
            "_cuda_emptyCache": self.empty_cache,
            "_cuda_setMemoryFraction": self._set_fraction,
            "_cuda_getMemoryFraction": self._fraction,
            "_cuda_cudaCachingAllocator_raw_alloc": self._allocate,
            "_cuda_cudaCachingAllocator_raw_delete": self._delete,
            "_cuda_cudaCachingAllocator_enable": lambda value: None,  # noqa: ARG005 - there is no other allocator here
            "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
            "_cuda_cudaCachingAllocator_set_allocator_settings": self.set_settings,  # torch 2.9 and earlier
            "_accelerator_setAllocatorSettings": self.set_settings,
            "_accelerator_getAllocatorSettings": lambda: self._settings_text,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_hostMemoryStats": _host_stats,
            "_cuda_resetPeakHostMemoryStats": lambda: None,
            "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
        }

    @contextlib.contextmanager
    def trial(self, moved: list[dict[int, int]]) -> Iterator[None]:
        """Forget afterwards what is set and taken meanwhile.

        Args:
            moved: for each card, the addresses in the trial's memory of what was there before.
        """
        kept = self._fractions, self._settings_text, self._raw, self._moved
        self._fractions = dict(self._fractions)
        self._raw, self._moved = {address: list(cards) for address, cards in self._raw.items()}, moved
        try:
            yield
        finally:
            self._fractions, self._settings_text, self._raw, self._moved = kept

    def stats(self, index: int) -> dict[str, Any]:
        """Return the nested statistics of a card."""
        with self._state.memory.lock:
            return self._state.allocator(index).stats()

    def reset_peaks(self, index: int) -> None:
        """Let every peak of a card be what is there now."""
        with self._state.memory.lock:
            self._state.allocator(index).reset_peaks()

    def reset_totals(self, index: int) -> None:
        """Forget what a card's allocator ever handed out."""
        with self._state.memory.lock:
            self._state.allocator(index).reset_totals()

    def empty_cache(self) -> None:
        """Give the unused memory of every card back."""
        with self._state.memory.lock:
            for index in sorted(self._state.memory.ready):
                self._state.allocator(index).empty_cache()

    def set_settings(self, text: str) -> None:
        """Change the settings of all allocators, as PyTorch's run-time call does.

        Raises:
            ValueError: they are not understood; nothing has changed then. (PyTorch would have applied what comes before
                the mistake.)
        """
        self._settings_text = text  # PyTorch, too, tells the last string it was given, good or bad
        allocators = self._state.memory.allocators
        try:
            wanted = [allocator.settings.then(text) for allocator in allocators]
        except InvalidValueError as error:
            raise ValueError(str(error)) from None
        with self._state.memory.lock:
            for allocator, settings in zip(allocators, wanted, strict=True):
                allocator.set_settings(settings)

    def settings_of_snapshot(self) -> dict[str, Any]:
        """Return the settings under the names that PyTorch's snapshots use for them."""
        settings = self._state.allocator(0).settings
        others = dict(settings.others)
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self._settings_text,
            "max_split_size": -1 if settings.max_split_size is None else settings.max_split_size,
            "garbage_collection_threshold": settings.garbage_collection_threshold,
            "expandable_segments": settings.expandable_segments,
            "pinned_num_register_threads": int(others.get("pinned_num_register_threads", "1")),
            "release_lock_on_cudamalloc": others.get("release_lock_on_cudamalloc") == "True",
            "pinned_use_cuda_host_register": others.get("pinned_use_cuda_host_register") == "True",
            "roundup_power2_divisions": {
                str(1 << power): settings.roundup_power2_divisions[power] for power in range(INTERVALS)
            },
        }

    def _set_fraction(self, fraction: float, index: int) -> None:
        self._fractions[index] = fraction
        total = self._state.cards[index].total
        with self._state.memory.lock:
            self._state.allocator(index).set_limit(int(fraction * total) if fraction < 1 else None)

    def _fraction(self, index: int) -> float:
        allocator = self._state.allocator(index)
        if allocator.limit is None:  # whatever the settings say: PyTorch heeds them once, when it begins
            return 1.0
        return self._fractions.get(index, allocator.settings.per_process_memory_fraction)

    def _allocate(self, size: int, stream: int) -> int:
        device = self._state.selection.device
        address: int = self._state.memory.allocate(device, size, stream)
        self._raw.setdefault(address, []).append(device)
        return address

    def _delete(self, address: int) -> None:
        devices = self._raw.get(address)
        if not devices:
            raise RuntimeError(f"invalid device pointer: {address:#x}")
        device = devices.pop()
        moved = self._moved[device] if self._moved else {}
        self._state.memory.free(device, moved.get(address, address))


def _host_stats() -> dict[str, Any]:
    """Return the counters of pinned host memory: none is pinned for a card that is not there."""
    level = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    time = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
    return (
        {key: dict(level) for key in _HOST_LEVELS}
        | {key: dict(time) for key in _HOST_TIMES}
        | {"num_host_alloc": 0, "num_host_free": 0}
    )
