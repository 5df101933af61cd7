"""Seeing the user's own reads and resets of the peak counters, so that ours leave no trace in theirs.

PyTorch has one peak counter for each device (pytorch/pytorch#16266). All of its Python functions reach it through a
handful of bindings that they look up in `torch._C` at each call; those bindings are replaced while it matters.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base import Backend, Watcher

MARK = "__gpumem_interception__"


def original(binding: Callable[..., Any]) -> Callable[..., Any]:
    """Return the binding beneath our wrappers, or the given one if it is none of them."""
    while hasattr(binding, MARK):
        binding = binding.__wrapped__  # type: ignore[attr-defined]
    return binding


class Interception:
    """The replaced bindings of one back end.

    Args:
        torch: the module.
        backend: whose bindings: `torch._C._<kind>_...`, and `torch._C._accelerator_...` while it is the accelerator.
        watcher: who is told; runs on the thread of the user's call.
    """

    def __init__(self, torch: Any, backend: Backend, watcher: Watcher) -> None:
        self._torch = torch
        self._backend = backend
        self._watcher = watcher
        self._active = True
        self._replaced: dict[str, Any] = {}

    def install(self) -> Callable[[], None]:
        """Replace the bindings; returns the function that puts the originals back."""
        kind = self._backend.kind
        wrappers: dict[str, Callable[[Any], Any]] = {
            f"_{kind}_memoryStats": self._reading,
            f"_{kind}_resetPeakMemoryStats": functools.partial(self._resetting, self._watcher.peak_reset),
            f"_{kind}_resetAccumulatedMemoryStats": functools.partial(self._resetting, self._watcher.totals_reset),
        }
        if self._is_accelerator():
            wrappers |= {
                "_accelerator_getDeviceStats": self._reading,
                "_accelerator_resetPeakStats": functools.partial(self._resetting, self._watcher.peak_reset),
                "_accelerator_resetAccumulatedStats": functools.partial(self._resetting, self._watcher.totals_reset),
            }
        for name, wrap in wrappers.items():
            original = getattr(self._torch._C, name, None)
            if original is not None:
                wrapper = wrap(original)
                setattr(wrapper, MARK, True)
                setattr(self._torch._C, name, wrapper)
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


class TorchImportWatch:
    """Tells, during `import torch`, the moment at which the bindings exist, so that no reset is missed.

    It sits in `sys.meta_path` while a measurement is open and torch is not imported, finds nothing, changes nothing,
    and calls back once: when `torch.cuda.memory` is looked for, `torch._C` is already complete.
    """

    _MODULE = "torch.cuda.memory"

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        """Notice the import and leave it to the other finders."""
        if name == self._MODULE:
            self.remove()
            self._callback()

    def install(self) -> None:
        """Begin to watch."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching; harmless when it has stopped already."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
