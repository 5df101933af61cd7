"""Settings that a program changed while it was recorded; nothing in PyTorch's trace tells of it.

Such a change is part of the program, as its requests are: under other settings at the start it happens at the same
place, and does to those what PyTorch's call does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import InvalidValueError, RecordingError

from .settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHANGES = "settings_changes"
"""The key for `[{"time_us": 1795968325499554, "settings": "expandable_segments:True"}, ...]`, oldest first: what was
handed to PyTorch's run-time call, and when, on the clock of the events."""

AT_START = "settings_at_start"
"""The key for the settings string in force before the first change; without it, PyTorch's defaults."""


def check_changes(extra: Mapping[str, Any]) -> None:
    """Refuse what is not of the format.

    Raises:
        RecordingError: it is not.
    """
    changes = extra.get(CHANGES, [])
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        raise RecordingError(f"its changes of settings are {changes!r:.60}, not a list of dicts")
    for change in changes:
        time, settings = change.get("time_us"), change.get("settings")
        if isinstance(time, bool) or not isinstance(time, int) or not isinstance(settings, str):
            raise RecordingError(f"a change of its settings is {change!r:.80}, not a time and a string")
    if not isinstance(extra.get(AT_START, ""), str):
        raise RecordingError(f"its settings at the start are {extra[AT_START]!r:.60}, not a string")


def notes_on_changes(extra: Mapping[str, Any]) -> list[str]:
    """Return what the changes leave unsure, one sentence each."""
    if not extra.get(CHANGES):
        return []
    try:
        _follow(extra)
    except InvalidValueError as error:
        return [f"the recorded changes of settings are not understood and left out: {error}"]
    notes = [
        "the program changed its settings while it was recorded: started with others, it does so at the same place"
    ]
    if AT_START not in extra:
        notes.append("the settings before the first change were not recorded: taken as PyTorch's defaults")
    return notes


def settings_over_time(
    extra: Mapping[str, Any], events: Sequence[Mapping[str, Any]], final: AllocatorSettings
) -> tuple[AllocatorSettings, tuple[tuple[int, str], ...]]:
    """Return the settings before the first event, and each later change: the first event after it, and its string.

    Args:
        extra: what was saved beside the snapshot.
        events: the events of one device; those without a time are taken as earlier than any change.
        final: what is taken to have held throughout when there are no changes, or none that can be understood.
    """
    if not extra.get(CHANGES):
        return final, ()
    try:
        held = _follow(extra)
    except InvalidValueError:
        return final, ()
    start, index, changes = held[0][2], 0, []
    for time, text, settings in held[1:]:
        while index < len(events) and events[index].get("time_us", 0) < time:
            index += 1
        if index:
            changes.append((index, text))
        else:
            start = settings
    return start, tuple(changes)


def _follow(extra: Mapping[str, Any]) -> list[tuple[int, str, AllocatorSettings]]:
    """Return each string, when it was handed over, and what held from then on."""
    start = extra.get(AT_START, "")
    held = [(0, start, AllocatorSettings.parse(start))]
    for change in sorted(extra[CHANGES], key=lambda change: change["time_us"]):
        held.append((change["time_us"], change["settings"], held[-1][2].then(change["settings"])))
    return held
