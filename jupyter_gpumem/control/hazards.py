"""What is dangerous or pointless about changing allocator settings while the process runs: pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_gpumem.allocator.keys import KEYS
from jupyter_gpumem.fragments import is_empty, pool_id_of
from jupyter_gpumem.units import MiB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from jupyter_gpumem.allocator.settings import AllocatorSettings


def refusals(
    before: AllocatorSettings,
    after: AllocatorSettings,
    segments: Iterable[dict[str, Any]],
    *,
    ready: bool,
    back: bool = False,
) -> list[str]:
    """Return why a change should not be made, one sentence without a full stop each.

    Args:
        before: the settings in force.
        after: those that are wanted.
        segments: the segments of all devices.
        ready: whether a device is in use already.
        back: whether this takes something back: what had no effect can be taken back without one.
    """
    pointless = [*_about_the_backend(before, after), *_about_the_fraction(before, after, ready=ready)]
    return [
        *([] if back else pointless),
        *_about_split_segments(before, after, segments),
        *_about_the_pair(before, after),
    ]


def _about_the_backend(before: AllocatorSettings, after: AllocatorSettings) -> Iterator[str]:
    old, new = (dict(settings.others).get("backend", "native") for settings in (before, after))
    if old != new:
        yield f"backend:{new} cannot be chosen now: PyTorch chose {old} when it was loaded; set it before import torch"


def _about_the_fraction(before: AllocatorSettings, after: AllocatorSettings, *, ready: bool) -> Iterator[str]:
    if ready and before.per_process_memory_fraction != after.per_process_memory_fraction:
        yield (
            "per_process_memory_fraction does nothing on a device that is in use: PyTorch reads it once; "
            f"write %gpumem_limit {100 * after.per_process_memory_fraction:g}%"
        )


def _about_split_segments(
    before: AllocatorSettings, after: AllocatorSettings, segments: Iterable[dict[str, Any]]
) -> Iterator[str]:
    """Refuse to lower the size above which blocks stay whole, while a segment of that size is not.

    To make room, PyTorch gives such blocks back to the driver without looking whether the rest of the segment lives:
    with a constant limit there is nothing to look for (`release_available_cached_blocks`).
    """
    limit = after.max_split_size
    if limit is None or (before.max_split_size is not None and limit >= before.max_split_size):
        return
    split = split_segments(segments, limit)
    if split:
        live = sum(block["size"] for segment in split for block in segment["blocks"] if block["state"] != "inactive")
        what = "1 segment of that size or more is" if len(split) == 1 else f"{len(split)} such segments are"
        yield (
            f"max_split_size_mb:{limit // MiB} is unsafe now: {what} split already, with {format_bytes(live)} alive, "
            "and PyTorch could give the driver memory under live tensors; delete these and empty the cache first, "
            "or set it before import torch"
        )


def split_segments(segments: Iterable[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """Return the segments of at least `size` bytes, of their own from the driver, that consist of several blocks."""
    return [
        segment
        for segment in segments
        if segment["total_size"] >= size and len(segment["blocks"]) > 1 and not segment.get("is_expandable", False)
    ]


def _about_the_pair(before: AllocatorSettings, after: AllocatorSettings) -> Iterator[str]:
    def both(settings: AllocatorSettings) -> bool:
        return settings.expandable_segments and settings.max_split_size is not None

    if both(after) and not both(before):
        yield (
            "max_split_size_mb together with expandable_segments lets reserved memory grow without bound "
            "(pytorch/pytorch#193400), and is unsafe once a segment is split; take the other one back with KEY:default"
        )


def lasting(before: AllocatorSettings, after: AllocatorSettings) -> dict[str, str]:
    """Return the keys, with their values, that only the first settings name and that cannot go back to a default."""
    named = after.named()
    return {key: value for key, value in before.named().items() if key not in named and KEYS[key].lasting}


def with_values(settings: AllocatorSettings, values: Mapping[str, str]) -> AllocatorSettings:
    """Return settings with these values of keys, as they are written, instead of their own."""
    return settings.merged(",".join(f"{key}:{value}" for key, value in values.items()))


def notes_on_what_will_stay(values: Mapping[str, str]) -> list[str]:
    """Say what was just set for as long as the process runs."""
    return [
        f"{key} cannot go back to {KEYS[key].default} while this process runs: --undo and --reset leave it."
        for key in values
    ]


def notes_on_what_stays(values: Mapping[str, str]) -> list[str]:
    """Say what could not be taken back."""
    return [
        f"{key} stays at {value}: it cannot go back to {KEYS[key].default} in a running process; restart it without "
        "the key."
        for key, value in values.items()
    ]


def not_as_wanted(wanted: AllocatorSettings, after: AllocatorSettings) -> str:
    """Say that PyTorch took a string and means something else."""
    if wanted.expandable_segments and not after.expandable_segments:
        return (
            "expandable_segments:True has no effect: this platform has no virtual memory management, "
            "so PyTorch reads it as False; nothing was changed"
        )
    return f"PyTorch was given {str(wanted)!r} and has {str(after)!r} in force; nothing was changed"


def notes_on_caps(settings: AllocatorSettings, caps: Iterable[tuple[int, int | None]]) -> list[str]:
    """Return that the fraction is not the cap in force, as a sentence, where it is not.

    Args:
        settings: the settings.
        caps: of each device in use, its bytes and those that may be reserved, `None` without a cap.
    """
    fraction = settings.per_process_memory_fraction
    if all(cap == (int(fraction * total) if fraction < 1 else None) for total, cap in caps):
        return []
    return ["per_process_memory_fraction is what a device begins with; %gpumem_limit shows the cap in force."]


def notes_on_change(
    before: AllocatorSettings, after: AllocatorSettings, segments: Iterable[dict[str, Any]], *, shared: bool
) -> list[str]:
    """Return what a change does not reach, or breaks elsewhere, one sentence each.

    Args:
        before: the settings that were in force.
        after: those that are now.
        segments: the segments of all devices.
        shared: whether other processes may use tensors of this one.
    """
    segments = list(segments)
    notes = []
    pools = {pool_id_of(segment) for segment in segments} - {(0, 0)}
    if pools:
        size = sum(segment["total_size"] for segment in segments if pool_id_of(segment) in pools)
        notes.append(
            f"{len(pools)} private pool{'s' if len(pools) > 1 else ''} (CUDA graphs, MemPool) of {format_bytes(size)} "
            "keep what they have; a graph that was captured replays into it unchanged."
        )
    if after.expandable_segments and not before.expandable_segments:
        kept = sum(s["total_size"] for s in segments if not s.get("is_expandable", False) and not is_empty(s))
        if kept:
            notes.append(
                f"{format_bytes(kept)} of segments with live tensors stay as they are; only new memory is expandable."
            )
        if shared:
            notes.append(
                "Other processes may share tensors of this one: those allocated from now on cannot be sent by CUDA IPC "
                "on every platform; if that fails, set expandable_segments:False around their allocation."
            )
    if before.expandable_segments and not after.expandable_segments:
        kept = sum(s["total_size"] for s in segments if s.get("is_expandable", False) and not is_empty(s))
        if kept:
            notes.append(
                f"{format_bytes(kept)} of expandable segments hold live tensors: what becomes free there is not used "
                "again, and goes back to the driver when the cache is emptied."
            )
    return notes
