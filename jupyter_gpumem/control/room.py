"""How large a request finds room now, without PyTorch giving anything back for it, and what it is good for.

Pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_gpumem.allocator.sizes import (
    MIN_LARGE_ALLOC,
    ROUND_LARGE,
    SMALL_BUFFER,
    SMALL_SIZE,
    round_down,
    round_size,
    segment_size,
    too_large,
)
from jupyter_gpumem.fragments import is_empty, pool_id_of
from jupyter_gpumem.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyter_gpumem.allocator.settings import AllocatorSettings


class Room(NamedTuple):
    """What can still be taken from the driver.

    Attributes:
        free: bytes the driver has left, or `None` where nobody can tell: inside a prediction memory has no end.
        total: bytes of the card.
        allowed: bytes that the cap leaves, or `None` without one.
        reserved: bytes that this process has reserved.
    """

    free: int | None
    total: int
    allowed: int | None = None
    reserved: int = 0

    @property
    def least(self) -> int:
        """Bytes that both leave; where nobody can tell what is free, what is not reserved of the card."""
        free = max(0, self.total - self.reserved) if self.free is None else self.free
        return free if self.allowed is None else min(free, self.allowed)


class _Run(NamedTuple):
    """Where an expandable segment can grow: free bytes, then pages without memory, and so on up to a live block.

    Attributes:
        parts: sizes in bytes; the first is what is free already, and every second one of the others is.
        space: all of them.
    """

    parts: tuple[int, ...]
    space: int

    def needs(self, size: int, page: int) -> int:
        """Return the bytes of the pages that make the free bytes at the beginning as large as a request."""
        mapped, have = 0, self.parts[0]
        for number, part in enumerate(self.parts[1:]):
            if have >= size:
                break
            taken = part if number % 2 else min(part, _whole(size - have, page))
            have += taken
            mapped += 0 if number % 2 else taken
        return mapped

    def holds(self, room: int, page: int) -> int:
        """Return the largest size, so that the pages it needs are within so many bytes."""
        left, have = room // page * page, self.parts[0]
        for number, part in enumerate(self.parts[1:]):
            have += part if number % 2 else min(part, left)
            if number % 2 == 0 and part > left:
                break
            left -= 0 if number % 2 else part
        return have


def has_room(
    size: int, segments: Iterable[dict[str, Any]], stream: int, settings: AllocatorSettings, room: Room
) -> bool:
    """Whether a request of `size` bytes is served by the cache, or by what the driver has left.

    Args:
        size: bytes.
        segments: the segments of the device.
        stream: handle of the stream of the request.
        settings: the allocator settings in force.
        room: what may still be reserved.
    """
    segments = list(segments)
    rounded = round_size(size, settings.roundup_power2_divisions)
    small = rounded <= SMALL_SIZE
    limit = too_large(rounded, settings)
    if any(
        rounded <= block and (limit is None or block < limit)
        for block in _cached(segments, stream, settings, small=small)
    ):
        return True
    needed = segment_size(rounded, settings.large_segment_size)
    if room.allowed is not None and needed > room.allowed:
        return False
    if room.free is None:
        return True
    if settings.expandable_segments:
        page = SMALL_BUFFER if small else settings.large_segment_size
        runs = _runs(segments, stream, page, room.total, small=small)
        needed = next((run.needs(rounded, page) for run in runs if run.space >= rounded), rounded)
    return needed <= room.free


def largest_request(segments: Iterable[dict[str, Any]], stream: int, settings: AllocatorSettings, room: Room) -> int:
    """Return the largest size that `has_room`; 0 if there is none."""
    segments = list(segments)
    tries = [SMALL_SIZE, *(min(SMALL_SIZE, block) for block in _cached(segments, stream, settings, small=True))]
    tries += [block for block in _cached(segments, stream, settings, small=False) if block > SMALL_SIZE]
    if settings.expandable_segments:
        most = room.total if room.allowed is None else room.allowed // ROUND_LARGE * ROUND_LARGE
        page = settings.large_segment_size
        runs = _runs(segments, stream, page, room.total, small=False)
        tries += [min(most, run.holds(room.total if room.free is None else room.free, page)) for run in runs]
    elif room.least >= MIN_LARGE_ALLOC:
        tries.append(room.least // ROUND_LARGE * ROUND_LARGE)
    sizes = sorted({round_down(size, settings.roundup_power2_divisions) for size in tries}, reverse=True)
    return next((size for size in sizes if size and has_room(size, segments, stream, settings, room)), 0)


def is_kept_whole(size: int, settings: AllocatorSettings) -> bool:
    """Whether a free block of that size is never split, so that only requests about as large get it."""
    return settings.max_split_size is not None and size >= settings.max_split_size


def usefulness(size: int, settings: AllocatorSettings) -> list[str]:
    """Return why memory that is put into the cache is of little use to later requests, one sentence each."""
    found = []
    if settings.max_split_size is not None and is_kept_whole(size, settings):
        found.append(
            f"nearly useless: with max_split_size_mb:{settings.max_split_size // MiB} a block of that size is kept "
            "whole, and only requests about as large find it"
        )
    if size <= SMALL_SIZE:
        found.append("only requests up to 1 MiB find it: they have a pool of their own, which takes 2 MiB at a time")
    if settings.expandable_segments:
        found.append("expandable segments grow in place as needed: what this saves is the time of growing")
    return found


def _cached(
    segments: Iterable[dict[str, Any]], stream: int, settings: AllocatorSettings, *, small: bool
) -> Iterator[int]:
    """Yield the free blocks that a request of one size class may get on a stream of the default pool."""
    for segment in _own(segments, stream, small=small):
        # Once they are switched off, what is free in expandable segments is not used again.
        if settings.expandable_segments or not segment.get("is_expandable", False):
            yield from (block["size"] for block in segment["blocks"] if block["state"] == "inactive")


def _own(segments: Iterable[dict[str, Any]], stream: int, *, small: bool) -> Iterator[dict[str, Any]]:
    kind = "small" if small else "large"
    for segment in segments:
        if segment["segment_type"] == kind and segment["stream"] == stream and pool_id_of(segment) == (0, 0):
            yield segment


def _runs(segments: Iterable[dict[str, Any]], stream: int, page: int, total: int, *, small: bool) -> list[_Run]:
    """Return where expandable segments can grow, in the order in which PyTorch looks: by address, a new one last.

    A snapshot tells what is mapped and not where a segment begins: it is taken to begin with its first mapped page.
    It covers the size of the card and an eighth.
    """
    mapped = [segment for segment in _own(segments, stream, small=small) if segment.get("is_expandable", False)]
    mapped.sort(key=lambda segment: segment["address"])
    length = _whole(total + total // 8, page)
    ends: list[int] = []
    for segment in mapped:
        ends.append(ends[-1] if ends and segment["address"] < ends[-1] else segment["address"] + length)
    runs = [_Run((0, length), length)]
    parts: list[int] = []
    following: dict[str, Any] | None = None
    for segment, end in zip(reversed(mapped), reversed(ends), strict=True):
        stop = end
        if following is None or following["address"] >= end:
            parts = []
        else:
            stop = following["address"]
            parts = parts if is_empty(following) else [_free_at(following, 0)]
        gap = stop - segment["address"] - segment["total_size"]
        parts = [_free_at(segment, -1), gap, *parts]
        if gap:
            runs.append(_Run(tuple(parts), sum(parts)))
        following = segment
    return runs[::-1]


def _free_at(segment: dict[str, Any], end: int) -> int:
    """Return the size of the first or last block, if it is free."""
    block = segment["blocks"][end]
    return block["size"] if block["state"] == "inactive" else 0


def _whole(size: int, page: int) -> int:
    return -(-size // page) * page
