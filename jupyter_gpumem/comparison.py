"""Which allocator setting would help *this* workload: its recording, replayed under others.

result = whatif(read_recording("run.pickle.gz"), ["expandable_segments:True", "max_split_size_mb:128"])
result.best, result.why
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from .allocator.check import check
from .allocator.replay import Conditions, Replay, replay, reserved_at_start
from .allocator.settings import AllocatorSettings, warnings
from .allocator.worker import Replays
from .arguments import check_function, shown, whole
from .choices import Search, cost, recommended
from .errors import InvalidValueError
from .reasons import explain, note_on_the_start, notes_on_chance, notes_on_delays, notes_on_numbers
from .recording import Recording, read_recording
from .records import WhatIf, WhatIfRow
from .units import MiB, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .allocator.trace import Circumstances, Trace
    from .records import Check

_LONG = 200_000
"""So many events take a notable time to replay."""

Limit: TypeAlias = int | str
"""The cap on reserved bytes of a replay: `recorded`, `off`, or a size."""

_EXAMPLE = "'expandable_segments:True'"

_SMALLEST = 2 * MiB
"""What the allocator takes from the driver at least; a smaller card is a forgotten unit."""


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
        InvalidValueError: a setting, a size or the number of processes is not understood.
    """
    if progress is not None:
        check_function("progress", progress, "how many replays are done, and how many are planned")
    chosen = _chosen(settings)
    processes = whole(jobs)
    if processes is None or processes < 1:
        raise InvalidValueError(f"{shown(jobs)} processes are not possible; jobs is a number of at least 1")
    if isinstance(recording, (str, os.PathLike)):
        recording = read_recording(recording)
    elif not isinstance(recording, Recording):
        raise InvalidValueError(f"{shown(recording)} is not a recording; give one, or the name of its file")
    device = _device(recording, device)
    circumstances = recording.circumstances(device)
    conditions = _conditions(recording, device, memory, limit)
    trace, held = recording.trace(device), recording.held(device)
    recorded = circumstances.settings
    search = Search(recorded, recording.extra.get("torch"), capped=conditions.limit is not None)
    first = search.sensible() if chosen is None else chosen
    # Under other circumstances what was recorded is no longer the reference: the model's own answer is. The others
    # have none of the delays that were an exception, and an empty cache at the start, and so must it.
    filled = trace.reserved != reserved_at_start(trace, recorded, conditions)
    own = memory is not None or conditions.limit != circumstances.limit or bool(trace.prompt) or filled
    checks: list[tuple[Check, Replay]] = []
    references: list[Replay] = []

    def check_first() -> None:
        checked, as_recorded = check(trace, circumstances, held)[:2]
        checks.append((checked, as_recorded))
        same = checked.exact and not own
        references.append(as_recorded if same else replay(trace, recorded, conditions, looks=True))

    with Replays(trace, conditions, processes) as replays:
        run = _Run(replays, progress)
        # The check takes as long as a replay, so other processes are not kept waiting for it.
        results = run(first, meanwhile=check_first)
        (checked, as_recorded), reference = checks[0], references[0]
        rows = [(recorded, reference), *zip(first, results, strict=True)]
        if chosen is None:
            second = search.near(min(rows, key=lambda row: cost(*row))[0])
            rows += zip(second, run(second), strict=True)
            rows[1:] = sorted(rows[1:], key=lambda row: cost(*row))
        best = recommended(rows)
        asked = range(len(rows)) if trace.total <= _LONG else [] if best is None else [best]
        others = _otherwise(trace, rows, [n for n in asked if n or reference is not as_recorded], run)
    whole_card = memory is not None and not conditions.outside
    own_run = as_recorded if checked.exact else None
    assumed = [*recording.notes(device), *trace.notes, *notes_on_delays(trace, own_run)]
    if filled:
        assumed.append(note_on_the_start(trace, own_run))
    return WhatIf(
        recording=recording.summary(device),
        device=device,
        memory=conditions.total_memory,
        limit=conditions.limit,
        changes=_over_time(circumstances) if circumstances.changes else (),
        check=checked,
        results=tuple(
            _row(
                choice,
                result,
                reference,
                others.get(number),
                recorded=number == 0,
                as_recorded=number == 0 and reference is as_recorded,
                best=number == best,
                capped=search.capped,
            )
            for number, (choice, result) in enumerate(rows)
        ),
        why=explain(rows[0], rows[best] if best is not None else None),
        confidence="high" if checked.exact and not assumed else "lowered",
        notes=(
            *assumed,
            *notes_on_numbers(trace, rows, conditions.limit, whole_card=whole_card),
            *notes_on_chance(trace, ((rows[n][1].peak_reserved, peak) for n, peak in others.items())),
        ),
    )


def _otherwise(
    trace: Trace, rows: list[tuple[AllocatorSettings, Replay]], asked: list[int], run: _Run
) -> dict[int, int]:
    """Return the reserved peak of rows if what no recording tells about other runs turns out otherwise.

    Segments that grow lie in one range of addresses each, so the driver's order does not matter where all are such.
    """
    mixed = bool(trace.prompt or trace.changes or trace.custom)
    unsure = [n for n in asked if mixed or not rows[n][0].expandable_segments]
    others = zip(unsure, run([rows[n][0] for n in unsure], otherwise=True), strict=True)
    return {n: rows[n][1].peak_reserved for n in asked} | {n: other.peak_reserved for n, other in others}


def _over_time(circumstances: Circumstances) -> tuple[tuple[int, str], ...]:
    held = accumulate(
        (text for _, text in circumstances.changes), AllocatorSettings.then, initial=circumstances.settings
    )
    return tuple(zip((0, *(at for at, _ in circumstances.changes)), map(str, held), strict=True))


class _Run:
    """Runs replays, and says how far they are."""

    def __init__(self, replays: Replays, progress: Callable[[int, int], None] | None) -> None:
        self.replays, self.progress = replays, progress
        self.finished = self.planned = 0

    def __call__(
        self,
        choices: list[AllocatorSettings],
        *,
        otherwise: bool = False,
        meanwhile: Callable[[], object] | None = None,
    ) -> list[Replay]:
        self.planned += len(choices)
        results = self.replays.run(choices, otherwise=otherwise, meanwhile=meanwhile, done=self._done)
        self.finished += len(results)
        return results

    def _done(self, count: int) -> None:
        if self.progress is not None:
            self.progress(self.finished + count, self.planned)


def _chosen(settings: Any) -> list[AllocatorSettings] | None:
    if settings is None:
        return None
    if isinstance(settings, (str, AllocatorSettings)):
        settings = [settings]
    if isinstance(settings, (bytes, Mapping)) or not isinstance(settings, Iterable):
        raise InvalidValueError(f"settings of {shown(settings)} are not understood; give a list of {_EXAMPLE}")
    return [_settings(choice) for choice in settings]


def _settings(choice: Any) -> AllocatorSettings:
    if not isinstance(choice, (str, AllocatorSettings)):
        raise InvalidValueError(f"settings of {shown(choice)} are not understood; write a text such as {_EXAMPLE}")
    settings = AllocatorSettings.parse(choice) if isinstance(choice, str) else choice
    backend = dict(settings.others).get("backend", "native")
    if backend != "native":
        raise InvalidValueError(f"backend:{backend} cannot be replayed: only PyTorch's native allocator is modelled")
    return settings


def _device(recording: Recording, device: int | None) -> int:
    if device is None:
        return recording.busiest
    if device not in recording.devices:
        known = ", ".join(map(str, recording.devices)) or "none"
        raise InvalidValueError(f"{recording.source} has no device {shown(device)}; it has {known}")
    return device


def _size(value: int | str, what: str) -> int:
    size = parse_bytes(value) if isinstance(value, str) else whole(value)
    if size is None or size < _SMALLEST:
        raise InvalidValueError(f"{what} of {shown(value)} is not possible; write a size such as 24GiB")
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
    choice: AllocatorSettings,
    result: Replay,
    reference: Replay,
    otherwise: int | None,
    *,
    recorded: bool,
    as_recorded: bool,
    best: bool,
    capped: bool,
) -> WhatIfRow:
    shared = {f.name for f in fields(WhatIfRow)} & {f.name for f in fields(Replay)}
    gain = None if result.ooms else reference.peak_reserved - result.peak_reserved
    return WhatIfRow(
        settings=str(choice),
        recorded=recorded,
        as_recorded=as_recorded,
        best=best,
        peak_reserved_otherwise=otherwise,
        gain=gain,
        gain_percent=None if gain is None else 100 * gain / reference.peak_reserved if reference.peak_reserved else 0.0,
        gain_missing=None if gain is not None else "it runs out of memory: its peak is that of a run that failed",
        warnings=warnings(choice, capped=capped),
        **{name: getattr(result, name) for name in shared},
    )
