"""PyTorch's own recording of allocator events: one for the whole process, which may be the user's.

Its arguments are set, not stacked, and ending it drops what it holds; so it is only started when it is off, and only
ended when it is ours.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import UnavailableError

from .context import check_context, lost_context
from .controls import SETTERS
from .interception import original, replace
from .pytorch import explain_absence, loaded_torch, torch_installed
from .registry import backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base import Backend

_NAME = "_record_memory_history"


class History:
    """The recorder of all devices of one type.

    Args:
        kind: whose; `torch.<kind>.memory` is asked.
        find: returns the back end of a type that is in use now.
    """

    def __init__(self, kind: str, find: Callable[[str], Backend] = backend) -> None:
        self.kind = kind
        self._find = find
        self._begin: Callable[..., Any] | None = None
        self._undo: list[Callable[[], None]] = []
        self._on_takeover: Callable[[], None] = lambda: None
        self._changes: list[dict[str, Any]] = []
        self._settings_at_start = ""

    def _memory(self) -> Any:
        """Return `torch.cuda.memory`.

        Raises:
            UnavailableError: there is no PyTorch or no GPU to record, or the CUDA context is lost.
        """
        check_context()
        torch = loaded_torch()
        absent = explain_absence()
        if absent is not None:
            raise UnavailableError(f"allocator events cannot be recorded: {absent}")
        if torch is None:
            what = "import torch first" if torch_installed() else "install torch"
            raise UnavailableError(f"allocator events cannot be recorded: torch was not imported; {what}")
        module = getattr(torch, self.kind)
        if not module.device_count():
            raise UnavailableError(f"allocator events cannot be recorded: PyTorch sees no {self.kind} device")
        return module.memory

    def enabled(self) -> bool:
        """Whether anyone records now, as far as it can still be read. Initialises nothing."""
        if lost_context() is not None:
            return False
        torch = loaded_torch()
        module = getattr(torch, self.kind, None)
        if torch is None or module is None or not module.is_initialized():
            return False
        ask = getattr(torch._C, f"_{self.kind}_isHistoryEnabled", None)
        return bool(ask()) if ask is not None else self._begin is not None

    def start(self, max_entries: int, *, stacks: bool, on_takeover: Callable[[], None]) -> None:
        """Begin to record; `on_takeover` is called when somebody else starts or ends a recording meanwhile.

        Initialises CUDA, as PyTorch does for it, but creates no context on any device.

        Raises:
            UnavailableError: there is no PyTorch or no GPU to record.
        """
        memory = self._memory()
        self.forget()  # of a recording that was ended out of our sight
        begin = original(getattr(memory, _NAME))
        # Python stacks at allocations only: those at frees double the cost, and C++ ones take minutes to write.
        begin("all", context="alloc" if stacks else None, stacks="python", max_entries=max_entries)
        self._begin, self._changes, self._settings_at_start = begin, [], self._settings()
        self._on_takeover = on_takeover
        self._watch()

    def _watch(self) -> None:
        """Notice from now on what others do to the recording and to the settings."""

        def noticing_others(found: Callable[..., Any]) -> Callable[..., Any]:
            def record_memory_history(*args: Any, **kwargs: Any) -> Any:
                returned = found(*args, **kwargs)  # first: a call that is refused changes nothing
                self.forget()
                self._on_takeover()
                return returned

            return record_memory_history

        self._undo = [replace(getattr(sys.modules["torch"], self.kind).memory, _NAME, noticing_others)]
        self._undo += [replace(sys.modules["torch"]._C, name, self._noting_changes) for name in SETTERS]

    def _noting_changes(self, found: Callable[[str], Any]) -> Callable[[str], Any]:
        """Keep when the settings change: nothing in PyTorch's trace tells."""

        def set_settings(settings: str) -> Any:
            answer = found(settings)
            self._changes.append({"time_us": time.time_ns() // 1000, "settings": str(settings)})
            return answer

        return set_settings

    def another(self) -> History:
        """Return a recorder of the same devices that knows nothing of what this one does."""
        return History(self.kind, self._find)

    def set_aside(self) -> Callable[[], None]:
        """Stop watching while other devices stand in for the recorded ones; returns what goes on with it."""
        self._unwatch()
        return self._watch

    def stop(self) -> None:
        """End our recording. PyTorch drops its events."""
        begin = self._begin
        self.forget()
        if begin is not None:
            begin(None)

    def forget(self) -> None:
        """Stop watching for others, without touching the recording."""
        self._unwatch()
        self._begin = None

    def _unwatch(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []

    def snapshot(self) -> dict[str, Any]:
        """Return PyTorch's snapshot with all events. 50 ms and more, depending on how many there are.

        Raises:
            UnavailableError: there is no PyTorch or no GPU.
        """
        snapshot: dict[str, Any] = self._memory()._snapshot()
        return snapshot

    def _settings(self) -> str:
        """Return the settings string that PyTorch was given last, by the environment or at run time."""
        get_settings = getattr(sys.modules["torch"]._C, "_accelerator_getAllocatorSettings", None)
        if get_settings is not None:  # torch 2.12
            return str(get_settings())
        return str(self.snapshot().get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF", ""))

    def circumstances(self) -> dict[str, Any]:
        """Return what a replay needs and the snapshot leaves out: versions, settings, and the devices, by memory held.

        Asks only devices that are in use: asking another one would create a context there.
        """
        torch = sys.modules["torch"]
        found: dict[str, Any] = {
            "version": 1,
            "torch": str(torch.__version__),
            "alloc_conf": self._settings(),
        }
        if self._changes:
            found |= {"settings_changes": list(self._changes), "settings_at_start": self._settings_at_start}
        asked = self._find(self.kind)

        def reserved(index: int) -> int:
            return int(asked.stats(index)["reserved_bytes"]["all"]["current"])

        cards = [self._card(asked, index) for index in sorted(asked.ready(), key=reserved, reverse=True)]
        if cards:
            found |= cards[0]
        if cards[1:]:
            found["other_devices"] = cards[1:]
        return found

    def _card(self, asked: Backend, index: int) -> dict[str, Any]:
        module, device, memory = getattr(sys.modules["torch"], self.kind), asked.device(index), asked.memory(index)
        get_fraction = getattr(module, "get_per_process_memory_fraction", None)
        return {
            "device": index,
            "device_name": device.name,
            "total_memory": device.total,
            "device_free": memory.free if memory is not None else None,
            "memory_fraction": 1.0 if get_fraction is None else get_fraction(index),
            "memory_stats": dict(module.memory_stats(index)),
        }
