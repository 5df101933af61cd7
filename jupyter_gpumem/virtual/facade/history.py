"""The allocator's recording: what `_record_memory_history` starts and a snapshot tells, in PyTorch's format."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.allocator import sizes
from jupyter_gpumem.allocator.blocks import DEFAULT_POOL
from jupyter_gpumem.virtual.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyter_gpumem.allocator.blocks import PoolId

    from .counters import MemoryCounters
    from .state import State

Frames = list[dict[str, Any]]

_LEVELS = {None: 0, "state": 1, "alloc": 2, "all": 3}
_MOST_FRAMES = 128
_OURS = str(Path(__file__).parents[2]) + os.sep
_LEGACY_DEFAULT = 1


class History:
    """PyTorch's recorder, for virtual cards.

    What the allocator is asked for comes from the memory's observers, what it asks of the driver from the driver
    itself, whose calls are watched while a recording runs. Frames are Python's; there are none of C++.
    """

    def __init__(self, state: State, counters: MemoryCounters) -> None:
        self._state = state
        self._counters = counters
        self._begin()

    def _begin(self) -> None:
        self._watching = Patches()
        self._level = 0
        self._keeps_events = False
        self._skipped: frozenset[str] = frozenset()
        self._events: list[deque[dict[str, Any]]] = [deque(maxlen=0) for _ in self._state.cards]
        self._frames: dict[tuple[int, int], Frames] = {}
        self._live: dict[tuple[int, int], tuple[int, int, PoolId]] = {}
        self._streams: dict[tuple[int, int], tuple[int, PoolId]] = {}
        self._unplaced: list[tuple[int, int, dict[str, Any]]] = []
        self._metadata = ""
        self._oom_observers: list[Callable[[int, int, int, int], Any]] = []

    def install(self, patches: Patches) -> None:
        """Put everything in place."""
        for name, binding in self._bindings().items():
            patches.set(torch._C, name, binding)
        self._state.memory.observers.append(self._observe)

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Have no recording meanwhile but the code's own, and afterwards the one that there was."""
        kept = dict(vars(self))
        self._begin()
        self._metadata, self._oom_observers = kept["_metadata"], list(kept["_oom_observers"])
        try:
            yield
        finally:
            self._stop()
            vars(self).update(kept)

    def uninstall(self) -> None:
        """Stop listening."""
        self._stop()
        self._state.memory.observers.remove(self._observe)

    def _bindings(self) -> dict[str, Callable[..., Any]]:
        return {
            "_cuda_record_memory_history": self._record,
            "_cuda_record_memory_history_legacy": self._record_legacy,
            "_cuda_isHistoryEnabled": lambda: self._recording,
            "_cuda_memorySnapshot": self.snapshot,
            "_cuda_attach_out_of_memory_observer": self._oom_observers.append,
            "_cuda_setMemoryMetadata": self._set_metadata,
            "_cuda_getMemoryMetadata": lambda: self._metadata,
            "_cuda_allocationTraceback": self._traceback,
        }

    @property
    def _recording(self) -> bool:
        return len(self._watching) > 0

    def _set_metadata(self, text: str) -> None:
        self._metadata = text

    def _traceback(self, address: int) -> Frames | None:
        found = (frames for (_, start), frames in self._frames.items() if start == address)
        return next(found, None)

    # Starting and stopping

    def _record(
        self,
        enabled: str | None,
        context: str | None,
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        *rest: Any,
    ) -> None:
        if enabled not in {None, "state", "all"} or context not in _LEVELS or stacks not in {"python", "all"}:
            raise RuntimeError(f"expected state/all/None, got {enabled!r}, {context!r}, {stacks!r}")
        torch.cuda.init()
        with self._state.memory.lock:
            if enabled is None:
                self._stop()
                return
            keep = 1 if enabled == "state" else max_entries
            self._level, self._keeps_events = _LEVELS[context], enabled == "all"
            self._skipped = frozenset(next((one for one in rest if isinstance(one, (list, tuple))), ()))
            self._events = [
                deque(() if clear_history else events, maxlen=min(keep, sys.maxsize)) for events in self._events
            ]
            if not self._recording:
                self._watch_drivers()

    def _record_legacy(self, enabled: bool, record_context: bool = True, *rest: Any) -> None:
        entries = rest[0] if rest else _LEGACY_DEFAULT
        with_context = bool(rest[1]) if len(rest) > 1 else False
        context = "alloc" if with_context else "state" if record_context else None
        self._record("all" if enabled else None, context, "python", entries)

    def _stop(self) -> None:
        """End the recording and drop what it holds, as PyTorch does."""
        self._watching.undo()
        for kept in (self._frames, self._live, self._streams, self._unplaced):
            kept.clear()
        self._events = [deque(maxlen=0) for _ in self._state.cards]

    def _watch_drivers(self) -> None:
        for index, allocator in enumerate(self._state.memory.allocators):
            for segment in allocator.snapshot():
                self._streams[index, segment["address"]] = (segment["stream"], segment["segment_pool_id"])
                for block in segment["blocks"]:
                    if block["state"] == "active_allocated":
                        about = (block["requested_size"], segment["stream"], segment["segment_pool_id"])
                        self._live[index, block["address"]] = about
            driver = allocator.driver
            self._watching.set(driver, "allocate", self._watched_allocate(index, driver.allocate))
            self._watching.set(driver, "release", self._watched_giving_back(index, "segment_free", driver.release))
            self._watching.set(driver, "map", self._watched_map(index, driver.map))
            self._watching.set(driver, "unmap", self._watched_giving_back(index, "segment_unmap", driver.unmap))

    # What happens

    def _observe(self, event: str, device: int, address: int, size: int) -> None:
        if not torch.cuda._initialized:
            torch.cuda.init()  # as the first tensor does
        if event == "oom":
            self._out_of_memory(device, size)
        elif self._recording:
            (self._allocated if event == "alloc" else self._freed)(device, address, size)

    def _allocated(self, device: int, address: int, size: int) -> None:
        block = self._state.allocator(device).blocks[address]
        about = self._live[device, address] = (size, block.shelf.stream, block.shelf.pool.group.id)
        frames = _python_frames() if self._level else None
        if frames:
            self._frames[device, address] = frames
        told = frames if self._level > _LEVELS["state"] else None
        self._place(about[1], about[2], told)
        self._add(device, "alloc", address, *about, told)

    def _freed(self, device: int, address: int, size: int) -> None:
        about = self._live.pop((device, address), (size, 0, DEFAULT_POOL))
        self._frames.pop((device, address), None)
        frames = _python_frames() if self._level > _LEVELS["alloc"] else None
        self._add(device, "free_requested", address, *about, frames)
        self._add(device, "free_completed", address, *about, frames)

    def _out_of_memory(self, device: int, size: int) -> None:
        allocator = self._state.allocator(device)
        rounded = sizes.round_size(size, allocator.settings.roundup_power2_divisions)
        if self._recording:
            stream = self._state.memory.current_stream(device)
            frames = _python_frames() if self._level > _LEVELS["state"] else None
            self._place(stream, DEFAULT_POOL, frames)
            self._add(device, "oom", allocator.driver.free or 0, rounded, stream, DEFAULT_POOL, frames)
        total = self._state.cards[device].total
        tried = sizes.segment_size(rounded, allocator.large_segment_size)
        for observer in self._oom_observers:
            observer(device, tried, total if allocator.limit is None else allocator.limit, allocator.driver.free or 0)

    def _watched_allocate(self, device: int, allocate: Callable[[int], int | None]) -> Callable[[int], int | None]:
        def watched(size: int) -> int | None:
            address = allocate(size)
            if address is not None:
                self._begin_segment(device, "segment_alloc", address, size)
            return address

        return watched

    def _watched_map(self, device: int, map_memory: Callable[[int, int], bool]) -> Callable[[int, int], bool]:
        def watched(address: int, size: int) -> bool:
            mapped = map_memory(address, size)
            if mapped:
                self._begin_segment(device, "segment_map", address, size)
            return mapped

        return watched

    def _watched_giving_back(
        self, device: int, action: str, give_back: Callable[[int, int], None]
    ) -> Callable[[int, int], None]:
        def watched(address: int, size: int) -> None:
            give_back(address, size)
            # A part of an expandable segment may begin anywhere in what was mapped.
            start = max((at for on, at in self._streams if on == device and at <= address), default=address)
            stream, pool = self._streams.get((device, start), (0, DEFAULT_POOL))
            self._add(device, action, address, size, stream, pool, None)

        return watched

    def _begin_segment(self, device: int, action: str, address: int, size: int) -> None:
        """Note new memory; for which stream and pool it is, the allocation tells for which it was taken."""
        self._unplaced.append((device, address, self._add(device, action, address, size, 0, DEFAULT_POOL, None)))

    def _place(self, stream: int, pool: PoolId, frames: Frames | None) -> None:
        for device, address, event in self._unplaced:
            self._streams[device, address] = (stream, pool)
            event["stream"], event["pool_id"] = stream, pool
            if frames is not None:
                event["frames"] = frames
        self._unplaced.clear()

    def _add(
        self, device: int, action: str, address: int, size: int, stream: int, pool: PoolId, frames: Frames | None
    ) -> dict[str, Any]:
        event = {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time.time_ns() // 1000,
            "compile_context": "N/A",
            "user_metadata": self._metadata,
            "pool_id": pool,
        }
        if frames is not None:
            event["frames"] = frames
        if self._keeps_events and action not in self._skipped:
            self._events[device].append(event)
        return event

    # What is told

    def snapshot(self, wanted: tuple[int, ...] | None = None) -> dict[str, Any]:
        """Return segments, events and settings.

        Args:
            wanted: `(pool, pool, with events)`: of one private pool only, unless that is `(0, 0)`. Older torch hands in
                the pool alone, or nothing.
        """
        pool = tuple(wanted[:2]) if wanted else DEFAULT_POOL
        with_events = wanted is None or len(wanted) < 3 or bool(wanted[2])
        with self._state.memory.lock:
            segments = [
                segment
                for index in sorted(self._state.memory.ready)
                for segment in self._state.allocator(index).snapshot()
                if pool == DEFAULT_POOL or segment["segment_pool_id"] == pool
            ]
            for segment in segments:
                for block in segment["blocks"]:
                    block["frames"] = self._frames.get((segment["device"], block["address"]), [])
            events = [list(events) if with_events else [] for events in self._events]
            if self._recording and with_events:
                for index in self._state.memory.ready:
                    active = self._state.allocator(index).total
                    size = active.size + active.pending_size
                    self._add(index, "snapshot", 0, size, 0, DEFAULT_POOL, None)
        return {
            "segments": segments,
            "device_traces": events,
            "allocator_settings": self._counters.settings_of_snapshot(),
            "external_annotations": [],
        }


def _python_frames() -> Frames:
    """Return where the program is, innermost first, without our own code."""
    found: Frames = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return found
