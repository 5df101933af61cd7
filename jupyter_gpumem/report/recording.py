"""A recording as a sheet: what it holds, and where the largest live memory comes from."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.fragments import site_text
from jupyter_gpumem.notebook import cell_of
from jupyter_gpumem.units import format_bytes

from .sheet import Sheet

if TYPE_CHECKING:
    from jupyter_gpumem.recording import Recording

_MOST_SITES = 8
_LONGEST_FILE, _LONGEST_NAME = 60, 30
_NOT_THE_USERS = ("/site-packages/", "/dist-packages/", "<frozen ", "??")


def recording_sheets(recording: Recording) -> list[Sheet]:
    """Return a sheet for each device: its numbers, then the places that hold most at the end, if they were recorded."""
    sheets = []
    for device in recording.devices:
        about = recording.summary(device)
        segments = recording.segments(device)
        blocks = [block for segment in segments for block in segment["blocks"]]
        live = [block for block in blocks if block["state"] != "inactive"]
        events = recording.events(device)
        numbers = (
            ("events", f"{len(events):,}"),
            ("segments", f"{len(segments):,}"),
            ("reserved at the end", format_bytes(sum(s["total_size"] for s in segments))),
            ("allocated at the end", format_bytes(sum(block["size"] for block in live))),
            ("live blocks", f"{len(live):,}"),
            ("out-of-memory errors", f"{sum(event['action'] == 'oom' for event in events):,}"),
        )
        heading = (
            f"{about.source}, device {device}",
            *([about.device_name] if about.device_name else []),
            *([f"torch {about.torch}"] if about.torch else []),
            f"settings: {about.settings or 'PyTorch defaults'}",
        )
        notes = tuple(f"{note[0].upper()}{note[1:]}." for note in about.notes)
        sheets.append(Sheet(heading, (), numbers, notes))
        sites = _sites(live)
        if sites:
            sheets.append(Sheet(("most of what lives at the end was allocated at",), ("bytes",), sites))
    return sheets


def _sites(blocks: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Return the lines of the user's code that hold most, largest first; empty without recorded stacks."""
    held: Counter[str] = Counter()
    for block in blocks:
        frames = block.get("frames")
        frames = [f for f in frames if isinstance(f, dict)] if isinstance(frames, list) else []
        if frames:
            held[_site(frames)] += block["size"]
    return tuple((site, format_bytes(size)) for site, size in held.most_common(_MOST_SITES))


def _site(frames: list[dict[str, Any]]) -> str:
    """Return the innermost frame of the user's own code, or the innermost at all."""
    own = (f for f in frames if not any(part in str(f.get("filename", "")) for part in _NOT_THE_USERS))
    frame = next(own, frames[0])
    file, line, name = (str(frame.get(key, other)) for key, other in (("filename", "?"), ("line", "?"), ("name", "")))
    if cell_of(file) is not None:
        return site_text(file, line[:9], name[:_LONGEST_NAME])
    # The end of a path says more than its beginning.
    file = file if len(file) <= _LONGEST_FILE else f"...{file[3 - _LONGEST_FILE :]}"
    return f"{file}:{line[:9]} {name[:_LONGEST_NAME]}".rstrip()
