"""What a workload comes to under other allocator settings, and how far that can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .base import Record


@dataclass(frozen=True, slots=True)
class RecordingSummary(Record):
    """What identifies a recording: where it comes from, and the device that is asked about.

    Attributes:
        source: the name of its file, or what it was made by.
        torch: the version of PyTorch; `None` if it was not saved.
        device_name, total_memory, limit: the card, its bytes, and the cap on reserved bytes that was in force.
        settings: the allocator settings, as PyTorch writes them.
        devices: the number of events of each device, by its index as JSON has it.
        notes: what could not be understood or is missing, one sentence each.
    """

    source: str
    torch: str | None
    device_name: str | None
    total_memory: int | None
    limit: int | None
    settings: str
    devices: dict[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check(Record):
    """How a replay under the recorded settings compares with what was recorded.

    Attributes:
        segment_events: recorded calls of the driver; each must be the model's too, in order and to the byte.
        mismatches: those that were not, blocks at other addresses, and failures elsewhere; 0 is exact.
        max_difference: the largest difference of reserved bytes after any recorded call of the driver.
        blocks: allocations whose addresses were compared.
        misplaced: those that lay elsewhere in the model.
        ooms, retries: counted by the model; failures at another event count as mismatches.
    """

    segment_events: int
    mismatches: int
    max_difference: int
    blocks: int
    misplaced: int
    ooms: int
    retries: int

    @property
    def exact(self) -> bool:
        """Whether nothing differed."""
        return not self.mismatches


@dataclass(frozen=True, slots=True)
class WhatIfRow(Record):
    """What a workload would come to under one choice of settings.

    Attributes:
        settings: the string to put into `PYTORCH_CUDA_ALLOC_CONF`; empty for PyTorch's defaults.
        recorded: whether these are the recorded settings, with which the others are compared.
        as_recorded: whether the numbers are those of the recorded run itself, which its replay repeats exactly. False
            for every other row, and for the recorded settings on another card, under another cap, after a check that
            was not passed, where exceptional delays of other streams were left out, or where the cache was filled when
            the recording began.
        best: whether this is the choice to recommend.
        peak_allocated, peak_reserved: the highest value of each counter in bytes. Allocated bytes are those of blocks:
            which of them are up to 1 MiB larger than their requests depends on addresses, which differ from run to run.
        peak_reserved_otherwise: the reserved peak if what no recording tells about other runs turns out otherwise: the
            driver hands out addresses in another order, which decides ties between free blocks, and other streams are
            as late as they were. The same as `peak_reserved` where neither matters; `None` where that was not tried:
            for what is as recorded, and in long recordings for all but the best choice.
        unallocated_ratio: 1 - allocated / reserved at the reserved peak.
        stranded: bytes that could not have been given back at that moment, though nothing lived in them.
        retries: requests for which the whole cache was flushed.
        device_allocations, device_frees: calls of the driver; a free waits for the device.
        ooms, first_oom: requests that failed, and the recorded event at which the first one did; -1 where already what
            was alive before the first event does not fit.
        saved_ooms: requests that failed when they were recorded and find memory here.
        gain: bytes by which the reserved peak is below the recorded settings'; negative when it is above.
        gain_percent: the same in percent.
        gain_missing: why both are `None`: the peak of a run that ran out of memory is no saving.
        warnings: why the combination is unsafe or pointless, if it is.
    """

    settings: str
    recorded: bool
    as_recorded: bool
    best: bool
    peak_allocated: int
    peak_reserved: int
    peak_reserved_otherwise: int | None
    unallocated_ratio: float | None
    stranded: int
    retries: int
    device_allocations: int
    device_frees: int
    ooms: int
    first_oom: int | None
    saved_ooms: int
    gain: int | None
    gain_percent: float | None
    gain_missing: str | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WhatIf(Record):
    """A workload under several allocator settings: the recorded ones first, then those asked for, in their order.

    Where none were asked for, those that were tried follow, the best first.

    Attributes:
        recording: what identifies the recording.
        device: PyTorch's index of the device.
        memory, limit: bytes of the device and of the cap that the replays assume; `None` without end, and without a
            cap. What was recorded is in `recording`. In `to_dict()` they are `assumed_memory` and `assumed_limit`.
        changes: `(event, settings)` of each change of settings during the recording, the first with event 0; empty
            without any.
        check: how a replay under the recorded settings compares with what was recorded.
        results: one row for each choice.
        why: what the model saw, in one or two sentences.
        confidence: `high`, or `lowered` when the check is not exact or something had to be assumed.
        notes: what had to be assumed, one sentence each.
    """

    recording: RecordingSummary
    device: int
    memory: int | None
    limit: int | None
    changes: tuple[tuple[int, str], ...]
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
            "assumed_memory": self.memory,
            "assumed_limit": self.limit,
            "settings_over_time": [{"event": event, "settings": text} for event, text in self.changes],
            "confidence": self.confidence,
            "notes": list(self.notes),
            "why": self.why,
        }
        return {
            "recording": self.recording.to_dict() | about,
            "check": {name: getattr(self.check, name) for name in compared},
            "results": [row.to_dict() for row in self.results],
        }
