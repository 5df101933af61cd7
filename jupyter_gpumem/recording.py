"""Recordings: PyTorch's memory snapshots with their traces, read from files that nobody has to trust.

A recording is the dict that `torch.cuda.memory._snapshot()` returns, in a pickle, with one more key, `jupyter_gpumem`,
for what a replay needs and PyTorch leaves out. Without it much can still be said; `Recording.notes` says what not.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .allocator.changes import notes_on_changes, settings_over_time
from .allocator.compiler import compile_trace
from .allocator.settings import AllocatorSettings
from .allocator.start import Held, held_at_start, pool_of
from .allocator.trace import Circumstances, Trace, add_start
from .arguments import check_path
from .errors import InvalidValueError, RecordingError
from .records import RecordingSummary
from .saving import save_whole
from .snapshots import CHECKED_AT_ONCE, KEY, OTHERS, check_events, check_snapshot
from .units import format_bytes
from .unpickling import dump_plain, load_plain

if TYPE_CHECKING:
    import os

_PROTOCOL = 4  # PyTorch's own viewer reads no newer one


@dataclass(slots=True, eq=False)
class Recording:
    """One recording: a snapshot, checked to be of PyTorch's format.

    Attributes:
        snapshot: the dict as it was saved; the events of a long trace in it are unchecked, `events` checks them.
        source: where it comes from, for messages.
        settings: the allocator settings in force when it was saved.
    """

    snapshot: dict[str, Any]
    source: str = "recording"
    settings: AllocatorSettings = field(init=False, default_factory=AllocatorSettings)
    _notes: list[str] = field(init=False, default_factory=list)
    _checked: set[int] = field(init=False, default_factory=set)
    _memory_events: dict[int, list[dict[str, Any]]] = field(init=False, default_factory=dict)
    _traces: dict[int, tuple[Trace, list[Held]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_snapshot(self.snapshot)
        extra = self.snapshot.get(KEY, {})
        conf = extra.get("settings", extra.get("alloc_conf"))
        try:
            self.settings = AllocatorSettings.from_snapshot(
                self.snapshot.get("allocator_settings", {}), conf if isinstance(conf, str) else None
            )
        except InvalidValueError as error:
            self._notes.append(f"the recorded settings are not understood and taken as PyTorch's defaults: {error}")
        self._notes += notes_on_changes(extra)

    @property
    def extra(self) -> dict[str, Any]:
        """What was saved beside PyTorch's own: total memory, memory fraction, versions, the final counters."""
        return self.snapshot.get(KEY, {})  # type: ignore[no-any-return]

    @property
    def devices(self) -> tuple[int, ...]:
        """PyTorch's indices of the devices with events, or with segments where there are no events at all."""
        traced = [index for index, events in enumerate(self.snapshot.get("device_traces", ())) if events]
        return tuple(traced) or tuple(sorted({s.get("device", 0) for s in self.snapshot.get("segments", ())}))

    @property
    def busiest(self) -> int:
        """The device with the most events; 0 without any."""
        return max(self.devices, key=self._count, default=0)

    def card(self, device: int) -> dict[str, Any]:
        """Return what was saved about a device beside PyTorch's own: name, total memory, memory fraction, counters."""
        if self.extra.get("device", device) == device:
            return self.extra
        return next((card for card in self.extra.get(OTHERS, ()) if card["device"] == device), {})

    def notes(self, device: int) -> list[str]:
        """Return what could not be understood, or is missing about a device, one sentence each."""
        notes, card = list(self._notes), self.card(device)
        if "total_memory" not in card:
            notes.append("the size of the device was not recorded: memory is taken as unlimited")
        if "memory_fraction" not in card:
            notes.append("the memory cap was not recorded: taken as none")
        return notes

    def events(self, device: int) -> list[dict[str, Any]]:
        """Return PyTorch's trace entries of a device, oldest first; empty without a trace.

        Raises:
            RecordingError: the trace is a long one, and one of its events is not of PyTorch's format.
        """
        traces = self.snapshot.get("device_traces", [])
        events: list[dict[str, Any]] = traces[device] if 0 <= device < len(traces) else []
        if len(events) > CHECKED_AT_ONCE and device not in self._checked:
            try:
                check_events(device, events)
            except RecordingError as error:
                raise RecordingError(f"{self.source} is not a recording: {error}") from None
            self._checked.add(device)
        return events

    def segments(self, device: int) -> list[dict[str, Any]]:
        """Return the segments of a device at the end."""
        return [s for s in self.snapshot.get("segments", ()) if s.get("device", 0) == device]

    def circumstances(self, device: int) -> Circumstances:
        """Return under what a device's trace was recorded."""
        start, changes = settings_over_time(self.extra, self.events(device), self.settings)
        total = self.card(device).get("total_memory")
        return Circumstances(start, self._limit(device), total, self._outside(device), changes)

    def trace(self, device: int) -> Trace:
        """Return a device's trace, ready to be replayed; the same object every time.

        Raises:
            RecordingError: there are no events of that device, or they are malformed.
        """
        return self._prepared(device)[0]

    def held(self, device: int) -> list[Held]:
        """Return what the device's allocator held before the first event.

        Raises:
            RecordingError: there are no events of that device, or they are malformed.
        """
        return self._prepared(device)[1]

    def summary(self, device: int | None = None) -> RecordingSummary:
        """Return what identifies the recording; not its events.

        Args:
            device: whose card is described; by default the one with the most events.
        """
        device = self.busiest if device is None else device
        card = self.card(device)
        return RecordingSummary(
            source=self.source,
            torch=self.extra.get("torch"),
            device_name=card.get("device_name"),
            total_memory=card.get("total_memory"),
            limit=self._limit(device),
            settings=str(self.settings),
            devices={str(index): self._count(index) for index in self.devices},
            notes=tuple(self.notes(device)),
        )

    def __repr__(self) -> str:
        events = sum(map(self._count, self.devices))
        return f"<Recording {self.source}: {events:,} events, {len(self.snapshot.get('segments', ())):,} segments>"

    def _limit(self, device: int) -> int | None:
        """Return the cap on a device's reserved bytes, or `None` without one."""
        card = self.card(device)
        fraction = card.get("memory_fraction", self.settings.per_process_memory_fraction)
        total = card.get("total_memory")
        return None if total is None or fraction >= 1 else int(fraction * total)

    def _count(self, device: int) -> int:
        traces = self.snapshot.get("device_traces", [])
        return len(traces[device]) if device < len(traces) else 0

    def _about_memory(self, device: int) -> list[dict[str, Any]]:
        """Return the events of what was got from the driver, given back to it, or refused: a few of very many."""
        if device not in self._memory_events:
            kinds = _SIGNS.keys() | {"oom"}
            self._memory_events[device] = [event for event in self.events(device) if event["action"] in kinds]
        return self._memory_events[device]

    def _outside(self, device: int) -> int:
        """Return the bytes of the device that others held when a request failed, as far as that was recorded."""
        total = self.card(device).get("total_memory")
        if total is None:
            return 0
        level, failures = 0, []
        for event in self._about_memory(device):
            if event["action"] in _SIGNS:
                level += _SIGNS[event["action"]] * event["size"]
            elif isinstance(event.get("device_free"), int):
                failures.append((event["device_free"], level))
        start = _total(self.segments(device)) - level
        found = [total - free - level - start for free, level in failures]
        return max(0, *found) if found else 0

    def _prepared(self, device: int) -> tuple[Trace, list[Held]]:
        if device not in self._traces:
            events, segments = self.events(device), self.segments(device)
            if not events:
                raise RecordingError(
                    f"{self.source} has no events of device {device}: record with events before it is saved"
                )
            net = sum(
                _SIGNS[event["action"]] * event["size"]
                for event in self._about_memory(device)
                if event["action"] in _SIGNS
            )
            reserved, pools = max(0, _total(segments) - net), _pool_finder(segments)
            try:
                trace = compile_trace(events, self.circumstances(device), reserved=reserved, pools=pools)
            except RecordingError as error:
                raise RecordingError(f"{self.source}: {error}") from error
            add_start(trace, _living(segments, trace))
            if trace.start:
                count, size = len(trace.start), format_bytes(sum(block[1] for block in trace.start))
                made = "one allocation" if count == 1 else f"{count:,} allocations"
                trace.notes.append(
                    f"{made} ({size}) before the first recorded event: how that lay under other settings is unknown"
                )
            self._traces[device] = (trace, held_at_start(segments, trace))
        return self._traces[device]


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Return the recording in a file: a memory snapshot of PyTorch's, pickled, packed with gzip or not.

    Nothing in the file is run: only plain containers, numbers and strings are admitted.

    Raises:
        InvalidValueError: it is no path.
        RecordingError: there is no such file, or it is not a recording; one line that says what it is instead.
    """
    check_path(path)
    name = Path(path).name
    data = load_plain(Path(path))
    if isinstance(data, list) and data and all(isinstance(item, dict) and "blocks" in item for item in data):
        data = {"segments": data}  # what `torch.cuda.memory_snapshot()` returns
    try:
        return Recording(data, name)
    except RecordingError as error:
        raise RecordingError(f"{name} is not a recording: {error}") from None


def write_recording(snapshot: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Save a snapshot so that this package and PyTorch's own viewer can read it; packed if the name ends in `.gz`.

    A file of that name is replaced only once the new one is complete; what is no ordinary file is left alone.

    Raises:
        RecordingError: the snapshot is not of PyTorch's format, or the file cannot be written.
    """
    target = Path(path)
    check_snapshot(snapshot)
    data = dump_plain(snapshot, _PROTOCOL)
    if target.name.endswith(".gz"):
        data = gzip.compress(data, compresslevel=6, mtime=0)
    save_whole(target, data)
    return target


def _total(segments: list[dict[str, Any]]) -> int:
    return sum(segment["total_size"] for segment in segments)


_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def _pool_finder(segments: list[dict[str, Any]]) -> Any:
    """Return a function from an address to the id of the private pool it lies in; `None` where there are none."""
    private = [(s["address"], s["address"] + s["total_size"], pool_of(s)) for s in segments if pool_of(s) != (0, 0)]
    if not private:
        return None

    def find(address: int) -> tuple[int, int] | None:
        return next((pool for low, high, pool in private if low <= address < high), None)

    return find


def _living(segments: list[dict[str, Any]], trace: Trace) -> list[tuple[int, int, int, tuple[int, int] | None]]:
    """Return the blocks that lived through the whole trace: alive at its end, and not made in it."""
    living = []
    for segment in segments:
        address, pool = segment["address"], pool_of(segment)
        for block in segment["blocks"]:
            address = block.get("address", address)
            if block["state"] != "inactive" and address not in trace.alive:
                requested = block.get("requested_size", block["size"])
                living.append((address, requested, segment.get("stream", 0), pool if pool != (0, 0) else None))
            address += block["size"]
    return living
