"""A stand-in for a torch with CUDA devices, as far as recording goes: one recorder for all, whose arguments are set."""

from __future__ import annotations

import types
from collections import deque
from typing import Any

from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.devices.history import History
from jupyter_gpumem.devices.pytorch import CachingAllocator
from jupyter_gpumem.recorder import Recorder
from jupyter_gpumem.records import RecorderStatus
from jupyter_gpumem.units import GiB, MiB

BASE = 0x7F0000000000
PLACE = {"filename": "/home/me/train.py", "line": 12, "name": "step"}

OURS = (("all",), {"context": "alloc", "stacks": "python", "max_entries": 1_000_000})
THEIRS = {"enabled": "all", "context": "state", "stacks": "all", "max_entries": 77}
END = ((None,), {})
OFF = RecorderStatus(running=False, ours=False, events=None, max_entries=None, stacks=None)


class Version(str):
    """A version that is a text and more, as `torch.__version__` is."""

    __slots__ = ()


class RecordingTorch:
    """What the recorder needs of torch.

    Args:
        devices: how many there are.
        contexts: which of them are in use.
        initialised: whether CUDA is; starting to record initialises it.

    Attributes:
        calls: the arguments of each call of `_record_memory_history`, as `(args, kwargs)`.
        settings_set: the settings strings that were set.
        asked: the devices about which anything was asked that would create a context there.
    """

    def __init__(self, devices: int = 1, *, contexts: tuple[int, ...] = (0,), initialised: bool = True) -> None:
        self.scripted = FakeBackend("cuda", 8 * GiB, devices)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.asked: list[int] = []
        self.settings_set: list[str] = []
        self.contexts = contexts
        self.initialised = initialised
        self.enabled = self.stacks = self.taken = False
        self.events: deque[dict[str, Any]] = deque()
        self.__version__ = Version("2.99.0+cu130")
        self.version = types.SimpleNamespace(cuda="13.0", hip=None)
        self.backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: False))
        self.memory = types.SimpleNamespace(
            _record_memory_history=self._record_memory_history, _snapshot=self._snapshot
        )
        self.original = self.memory._record_memory_history
        self.cuda = types.SimpleNamespace(
            memory=self.memory,
            is_initialized=lambda: self.initialised,
            device_count=lambda: devices,
            get_device_properties=self._properties,
            mem_get_info=lambda index: self._ask(index, (6 * GiB, 8 * GiB)),
            memory_stats=lambda index: self._ask(index, {"num_ooms": 0, "reserved_bytes.all.peak": 2 * MiB}),
            get_per_process_memory_fraction=lambda index: self._ask(index, 0.5),
        )
        self._C = types.SimpleNamespace(
            _cuda_isHistoryEnabled=lambda: self.enabled,
            _cuda_hasPrimaryContext=lambda index: index in self.contexts,
            _cuda_memoryStats=lambda index: self._ask(index, self.scripted.stats(index)),
            _accelerator_getAllocatorSettings=lambda: "max_split_size_mb:64",
            _accelerator_setAllocatorSettings=self.settings_set.append,
        )

    def get_device_module(self, kind: str) -> Any:
        """Return `torch.cuda`."""
        return getattr(self, kind)

    def work(self, times: int = 1) -> None:
        """Allocate and free a small block; the first time, a segment is taken for it."""
        for _ in range(times):
            if not self.taken:
                self.taken = True
                self._note("segment_alloc", 2 * MiB)
            self._note("alloc", 512, **({"frames": [PLACE]} if self.stacks else {}))
            self._note("free_requested", 512)
            self._note("free_completed", 512)

    def _note(self, action: str, size: int, **more: Any) -> None:
        if self.enabled:
            self.events.append({"action": action, "addr": BASE, "size": size, "stream": 0, **more})

    def _ask(self, index: int, answer: Any) -> Any:
        self.asked.append(index)
        return answer

    def _properties(self, index: int) -> Any:
        return self._ask(index, types.SimpleNamespace(name=f"card {index}", total_memory=8 * GiB, uuid="1234"))

    def _record_memory_history(
        self, enabled: str | None = "all", context: str | None = "all", stacks: str = "all", max_entries: int = 2**63
    ) -> str:
        if enabled not in {None, "state", "all"}:
            raise RuntimeError(f"expected None, 'state' or 'all', got {enabled!r}")
        given = {"context": context, "stacks": stacks, "max_entries": max_entries}
        self.calls.append(((enabled,), {} if enabled is None else given))
        self.initialised, self.enabled, self.stacks = True, enabled is not None, context is not None
        self.events = deque(self.events if self.enabled else (), maxlen=min(max_entries, 2**31))
        return "what PyTorch returns"

    def _snapshot(self) -> dict[str, Any]:
        block = {"address": BASE, "size": 2 * MiB, "requested_size": 0, "state": "inactive"}
        segment = {"device": 0, "address": BASE, "total_size": 2 * MiB, "stream": 0, "segment_type": "small"}
        return {
            "segments": [segment | {"blocks": [block]}] if self.taken else [],
            "device_traces": [list(self.events)],
            "allocator_settings": {"max_split_size": 64 * MiB},
            "external_annotations": [],
        }


def own_recorder() -> Recorder:
    """Return a recorder of the process's torch that no other test has used."""
    backend = CachingAllocator("cuda")
    return Recorder(History("cuda", lambda kind: backend))


def actions(recording):
    """Return what a recording's events are."""
    return [event["action"] for event in recording.events(0)]
