"""Which allocator setting would help *this* workload: its recording, replayed under others.

result = whatif(read_recording("run.pickle.gz"), ["expandable_segments:True", "max_split_size_mb:128"])
result.best, result.why
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from .allocator.check import Check, check
from .allocator.replay import Conditions, Replay
from .allocator.settings import AllocatorSettings, warnings
from .allocator.worker import Replays
from .errors import InvalidValueError
from .reasons import explain
from .recording import Recording, read_recording
from .records import Record
from .units import MiB, parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable


Limit: TypeAlias = int | str
"""The cap on reserved bytes of a replay: `recorded`, `off`, or a size."""

_LARGE_SEGMENT_SINCE = (2, 11)

_SMALLEST = 2 * MiB
"""What the allocator takes from the driver at least; a smaller card is a forgotten unit."""

_LITTLE = 0.01
"""A share of the reserved peak that is not worth another setting."""

_SENSIBLE = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:8",
    "large_segment_size_mb:64",
)
_SENSIBLE_WITH_CAP = ("garbage_collection_threshold:0.8", "garbage_collection_threshold:0.6")


@dataclass(frozen=True, slots=True)
class WhatIfRow(Record):
    """What a workload would come to under one choice of settings.

    Attributes:
        settings: the string to put into `PYTORCH_CUDA_ALLOC_CONF`; empty for PyTorch's defaults.
        recorded: whether these are the recorded settings, with which the others are compared.
        best: whether this is the choice to recommend.
        peak_allocated, peak_reserved: the highest value of each counter in bytes.
        unallocated_ratio: 1 - allocated / reserved at the reserved peak.
        stranded: bytes that could not have been given back at that moment, though nothing lived in them.
        retries: requests for which the whole cache was flushed.
        device_allocations, device_frees: calls of the driver; a free waits for the device.
        ooms, first_oom: requests that failed, and the recorded event at which the first one did.
        saved_ooms: requests that failed when they were recorded and find memory here.
        gain: bytes by which the reserved peak is below the recorded settings'; negative when it is above.
        gain_percent: the same in percent.
        warnings: why the combination is unsafe or pointless, if it is.
    """

    settings: str
    recorded: bool
    best: bool
    peak_allocated: int
    peak_reserved: int
    unallocated_ratio: float | None
    stranded: int
    retries: int
    device_allocations: int
    device_frees: int
    ooms: int
    first_oom: int | None
    saved_ooms: int
    gain: int
    gain_percent: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WhatIf(Record):
    """A workload under several allocator settings: the recorded ones first, then those asked for, in their order.

    Where none were asked for, those that were tried follow, the best first.

    Attributes:
        recording: what identifies the recording.
        device: PyTorch's index of the device.
        memory, limit: bytes of the device and of the cap in the replays; `None` without end, and without a cap.
        check: how a replay under the recorded settings compares with what was recorded.
        results: one row for each choice.
        why: what the model saw, in one or two sentences.
        confidence: `high`, or `lowered` when the check is not exact or something had to be assumed.
        notes: what had to be assumed, one sentence each.
    """

    recording: dict[str, Any]
    device: int
    memory: int | None
    limit: int | None
    check: Check
    results: tuple[WhatIfRow, ...]
    why: str
    confidence: str
    notes: tuple[str, ...]

    @property
    def best(self) -> str | None:
        """The settings string to use, or `None` when nothing tried is better than what was recorded."""
        return next((row.settings for row in self.results if row.best), None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain containers: the recording, the check, and the results with the recorded settings first."""
        compared = ("segment_events", "mismatches", "max_difference")
        about = {
            "device": self.device,
            "memory": self.memory,
            "limit": self.limit,
            "confidence": self.confidence,
            "notes": list(self.notes),
            "why": self.why,
        }
        return {
            "recording": {**self.recording, **about},
            "check": {name: getattr(self.check, name) for name in compared},
            "results": [row.to_dict() for row in self.results],
        }


def whatif(
    recording: Recording | str | os.PathLike[str],
    settings: Iterable[str | AllocatorSettings] | str | AllocatorSettings | None = None,
    memory: int | str | None = None,
    limit: Limit = "recorded",
    jobs: int = 1,
    *,
    device: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """Replay a recording under other allocator settings, or on another card.

    Args:
        recording: a recording, or the name of its file.
        settings: the choices to try, as PyTorch's settings strings; by default a sensible set, and then what is near
            the best of it.
        memory: bytes of the card to assume, as a number or as `24GiB`; by default the recorded card.
        limit: the cap on reserved memory: `recorded`, `off`, or a size.
        jobs: how many processes work at once.
        device: PyTorch's index of the device; by default the one with the most events.
        progress: called with how many replays are done, and how many are planned.

    Raises:
        RecordingError: the recording cannot be read, or has no events.
        InvalidValueError: a setting or a size is not understood.
    """
    if not isinstance(recording, Recording):
        recording = read_recording(recording)
    if isinstance(settings, (str, AllocatorSettings)):
        settings = [settings]
    chosen = None if settings is None else [_settings(choice) for choice in settings]
    device = _device(recording, device)
    circumstances = recording.circumstances(device)
    conditions = _conditions(recording, device, memory, limit)
    trace, held = recording.trace(device), recording.held(device)
    recorded, search = recording.settings, _Search(recording, capped=conditions.limit is not None)
    first = search.sensible() if chosen is None else chosen
    # Under other circumstances what was recorded is no longer the reference: the model's own answer is.
    own = memory is not None or conditions.limit != circumstances.limit
    checks: list[tuple[Check, Replay]] = []
    with Replays(trace, conditions, jobs) as replays:
        run = _Run(replays, progress)
        # The check takes as long as a replay, so other processes are not kept waiting for it.
        results = run(
            [recorded, *first] if own else first,
            meanwhile=lambda: checks.append(check(trace, circumstances, held)[:2]),
        )
        checked, reference = checks[0]
        if own:
            reference = results.pop(0)
        rows = [(recorded, reference), *zip(first, results, strict=True)]
        if chosen is None:
            second = search.near(min(rows, key=lambda row: _cost(*row))[0])
            rows += zip(second, run(second), strict=True)
            rows[1:] = sorted(rows[1:], key=lambda row: _cost(*row))
    best = _best(rows)
    notes = [*recording.notes, *trace.notes]
    if not checked.exact:
        notes.append(f"{checked.mismatches:,} recorded events differ in a replay under the recorded settings")
    return WhatIf(
        recording=recording.to_dict(),
        device=device,
        memory=conditions.total_memory,
        limit=conditions.limit,
        check=checked,
        results=tuple(
            _row(choice, result, reference, recorded=number == 0, best=number == best, capped=search.capped)
            for number, (choice, result) in enumerate(rows)
        ),
        why=explain(trace, conditions, rows[0], rows[best] if best is not None else None),
        confidence="high" if checked.exact and not trace.notes and not recording.notes else "lowered",
        notes=tuple(notes),
    )


class _Run:
    """Runs replays, and says how far they are."""

    def __init__(self, replays: Replays, progress: Callable[[int, int], None] | None) -> None:
        self.replays, self.progress = replays, progress
        self.finished = self.planned = 0

    def __call__(self, choices: list[AllocatorSettings], meanwhile: Callable[[], object] | None = None) -> list[Replay]:
        self.planned += len(choices)
        results = self.replays.run(choices, meanwhile=meanwhile, done=self._done)
        self.finished += len(results)
        return results

    def _done(self, count: int) -> None:
        if self.progress is not None:
            self.progress(self.finished + count, self.planned)


def _settings(choice: str | AllocatorSettings) -> AllocatorSettings:
    return AllocatorSettings.parse(choice) if isinstance(choice, str) else choice


def _device(recording: Recording, device: int | None) -> int:
    if device is None:
        return max(recording.devices, key=lambda index: len(recording.events(index)), default=0)
    if device not in recording.devices:
        known = ", ".join(map(str, recording.devices)) or "none"
        raise InvalidValueError(f"{recording.source} has no device {device}; it has {known}")
    return device


def _size(value: int | str, what: str) -> int:
    size = parse_bytes(value) if isinstance(value, str) else value
    if size < _SMALLEST:
        raise InvalidValueError(f"{what} of {value!r} is not possible; write a size such as 24GiB")
    return size


def _conditions(recording: Recording, device: int, memory: int | str | None, limit: Limit) -> Conditions:
    circumstances = recording.circumstances(device)
    cap = circumstances.limit
    if limit == "off":
        cap = None
    elif limit != "recorded":
        cap = _size(limit, "a limit")
    total = circumstances.total_memory if memory is None else _size(memory, "a card")
    return Conditions(total, circumstances.outside, cap)


def _row(
    choice: AllocatorSettings, result: Replay, reference: Replay, *, recorded: bool, best: bool, capped: bool
) -> WhatIfRow:
    shared = {f.name for f in fields(WhatIfRow)} & {f.name for f in fields(Replay)}
    gain = reference.peak_reserved - result.peak_reserved
    return WhatIfRow(
        settings=str(choice),
        recorded=recorded,
        best=best,
        gain=gain,
        gain_percent=100 * gain / reference.peak_reserved if reference.peak_reserved else 0.0,
        warnings=warnings(choice, capped=capped),
        **{name: getattr(result, name) for name in shared},
    )


def _failure(result: Replay) -> tuple[bool, int]:
    """Return what makes one failure worse than another: that there is one, and how early.

    How many there are says little: nobody knows what the program would have done after the first.
    """
    return (result.ooms > 0, -(result.first_oom or 0))


def _cost(choice: AllocatorSettings, result: Replay) -> tuple[tuple[bool, int], int, int, int]:
    """Return what makes one choice worse than another: failure, then memory, then waiting for the driver."""
    return (_failure(result), result.peak_reserved, result.device_frees + result.retries, len(str(choice)))


def _best(rows: list[tuple[AllocatorSettings, Replay]]) -> int | None:
    """Return which row to recommend; `None` when the recorded settings are as good as any.

    Among those that come within a little of the lowest peak, the simplest.
    """
    usable = [n for n, (choice, _) in enumerate(rows) if n and not _unsafe(choice)]
    lowest = min(usable, key=lambda n: _cost(*rows[n]), default=None)
    if lowest is None:
        return None
    reference, least = _cost(*rows[0]), _cost(*rows[lowest])
    little = int(_LITTLE * rows[0][1].peak_reserved)
    if least[0][0]:  # nothing gets through: then nothing is recommended
        return None
    if least[0] > reference[0] or (least[0] == reference[0] and least[1] > reference[1] - max(1, little)):
        return None
    close = [n for n in usable if _cost(*rows[n])[0] == least[0] and rows[n][1].peak_reserved <= least[1] + little]
    return min(close, key=lambda n: (str(rows[n][0]).count(":"), *_cost(*rows[n])))


def _unsafe(choice: AllocatorSettings) -> bool:
    """Whether a choice is never to be recommended: it can do harm, or what it does is not in the model."""
    return any(text.startswith(("unsafe", "not modelled")) for text in warnings(choice, capped=True))


class _Search:
    """Which choices to try when the user names none; none is tried twice, and none that is unsafe.

    Args:
        recording: what they are tried on.
        capped: whether a memory cap is in force.
    """

    def __init__(self, recording: Recording, *, capped: bool) -> None:
        self.capped = capped
        self._known = {recording.settings}
        # What the user set besides stays as it is: it is not what is being tried.
        self._base = AllocatorSettings(others=recording.settings.others)
        self._large = _version(recording.extra.get("torch")) >= _LARGE_SEGMENT_SINCE

    def sensible(self) -> list[AllocatorSettings]:
        """Return what is worth trying anywhere."""
        return self._new(map(self._base.then, (*_SENSIBLE, *(_SENSIBLE_WITH_CAP if self.capped else ()))))

    def near(self, best: AllocatorSettings) -> list[AllocatorSettings]:
        """Return the choices that differ from the best one so far in a single value."""
        near = []
        if best.max_split_size is not None:
            sizes = (best.max_split_size // 2, best.max_split_size * 2)
            near += [replace(best, max_split_size=size) for size in sizes if size >= best.large_segment_size]
        divisions = best.roundup_power2_divisions[0]
        for steps in (divisions // 2, divisions * 2) if divisions > 1 else (8, 16):
            near.append(replace(best, roundup_power2_divisions=(steps if steps > 1 else 0,) * 16))
        near += [replace(best, large_segment_size=best.large_segment_size * factor) for factor in (2, 4)]
        if self.capped:
            thresholds = (0.7, 0.9) if best.garbage_collection_threshold else (0.8,)
            near += [replace(best, garbage_collection_threshold=threshold) for threshold in thresholds]
        return self._new(near)

    def _new(self, choices: Iterable[AllocatorSettings]) -> list[AllocatorSettings]:
        found = [choice for choice in dict.fromkeys(choices) if choice not in self._known and not _unsafe(choice)]
        if not self._large:
            found = [choice for choice in found if choice.large_segment_size == self._base.large_segment_size]
        self._known.update(found)
        return found


def _version(text: Any) -> tuple[int, ...]:
    """Return a version as numbers to compare; an unknown one counts as the newest."""
    if not isinstance(text, str):
        return (1 << 30,)
    parts = text.split("+")[0].split(".")[:2]
    return tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in parts)
