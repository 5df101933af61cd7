"""Seeing the user's own reads and resets of the peak counters, so that ours leave no trace in theirs.

PyTorch has one peak counter for each device (pytorch/pytorch#16266). All of its Python functions reach it through a
handful of bindings that they look up in `torch._C` at each call; those bindings are replaced while it matters.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .base import Backend, Watcher

MARK = "__gpumem_interception__"


def original(binding: Callable[..., Any]) -> Callable[..., Any]:
    """Return the binding beneath our wrappers, or the given one if it is none of them."""
    while hasattr(binding, MARK):
        binding = binding.__wrapped__  # type: ignore[attr-defined]
    return binding


def replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Callable[[], None]:
    """Put `make(original)` in the place of a function, where there is one; returns the function that undoes it."""
    found = getattr(owner, name, None)
    if found is None:
        return lambda: None
    wrapper: Any = functools.wraps(found)(make(found))
    setattr(wrapper, MARK, True)
    setattr(owner, name, wrapper)

    def undo() -> None:
        if getattr(owner, name, None) is wrapper:
            setattr(owner, name, found)

    return undo


class Interception:
    """The replaced bindings of one back end. Installed and removed around measurements, so both take microseconds.

    Args:
        torch: the module.
        backend: whose bindings: `torch._C._<kind>_...`, and `torch._C._accelerator_...` while it is the accelerator.
        watcher: who is told; runs on the thread of the user's call.
    """

    def __init__(self, torch: Any, backend: Backend, watcher: Watcher) -> None:
        self._torch = torch
        self._backend = backend
        self._watcher = watcher
        self._active = False
        self._wrappers: dict[str, Any] = {}
        self._replaced: dict[str, Any] = {}

    def serves(self, torch: Any, watcher: Watcher) -> bool:
        """Whether this is the interception of that module for that watcher."""
        return self._torch is torch and self._watcher is watcher

    def install(self) -> Callable[[], None]:
        """Replace the bindings; returns the function that puts the originals back."""
        self._active = True
        bindings = self._torch._C
        for name, wrap in self._wanted():
            found = getattr(bindings, name, None)
            if found is None:
                continue
            wrapper = self._wrappers.get(name)
            if wrapper is None or wrapper.__wrapped__ is not found:
                wrapper = self._wrappers[name] = wrap(found)
                setattr(wrapper, MARK, True)
            setattr(bindings, name, wrapper)
            self._replaced[name] = wrapper
        return self.remove

    def remove(self) -> None:
        """Put the originals back. If someone has wrapped our wrapper meanwhile, it stays and only passes calls on."""
        self._active = False
        for name, wrapper in self._replaced.items():
            bound: Any = getattr(self._torch._C, name, None)
            if bound is wrapper:
                setattr(self._torch._C, name, wrapper.__wrapped__)
        self._replaced.clear()

    def _wanted(self) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        """Yield the names to replace and what makes the replacement of each."""
        names = [(f"_{self._backend.kind}_", "memoryStats", "resetPeakMemoryStats", "resetAccumulatedMemoryStats")]
        if self._is_accelerator():
            names.append(("_accelerator_", "getDeviceStats", "resetPeakStats", "resetAccumulatedStats"))
        for prefix, reading, peak_reset, totals_reset in names:
            yield prefix + reading, self._reading
            yield prefix + peak_reset, self._resetting_peaks
            yield prefix + totals_reset, self._resetting_totals

    def _is_accelerator(self) -> bool:
        # The binding, not `torch.accelerator`: that module does not exist yet while torch is being imported.
        find = getattr(self._torch._C, "_get_accelerator", None)
        return find is not None and find().type == self._backend.kind

    def _reading(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        @functools.wraps(original)
        def stats(index: int) -> Any:
            found = original(index)
            if self._active:
                self._watcher.reading(self._backend, index, found)
            return found

        return stats

    def _resetting_peaks(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        return self._resetting(self._watcher.peak_reset, original)

    def _resetting_totals(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        return self._resetting(self._watcher.totals_reset, original)

    def _resetting(
        self, context: Callable[[Backend, int], Any], original: Callable[[int], Any]
    ) -> Callable[[int], Any]:
        @functools.wraps(original)
        def reset(index: int) -> Any:
            if not self._active:
                return original(index)
            with context(self._backend, index):
                return original(index)

        return reset
