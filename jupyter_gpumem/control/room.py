"""How large a request finds room now, without PyTorch giving anything back for it: pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_gpumem.allocator.sizes import (
    MIN_LARGE_ALLOC,
    ROUND_LARGE,
    SMALL_BUFFER,
    SMALL_SIZE,
    round_size,
    segment_size,
)
from jupyter_gpumem.fragments import pool_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyter_gpumem.allocator.settings import AllocatorSettings


def has_room(
    size: int, segments: Iterable[dict[str, Any]], stream: int, settings: AllocatorSettings, room: int
) -> bool:
    """Whether a request of `size` bytes is served by the cache, or by what the driver has left.

    Args:
        size: bytes.
        segments: the segments of the device.
        stream: handle of the stream of the request.
        settings: the allocator settings in force.
        room: bytes that may still be reserved.
    """
    rounded = round_size(size, settings.roundup_power2_divisions)
    if rounded <= largest_cached(segments, stream, settings, small=rounded <= SMALL_SIZE):
        return True
    needed = segment_size(rounded, settings.large_segment_size)
    page = settings.large_segment_size
    if settings.expandable_segments and rounded > SMALL_SIZE:
        needed = max(needed, -(-rounded // page) * page)  # memory is mapped in whole pages
    return needed <= room


def largest_request(segments: Iterable[dict[str, Any]], stream: int, settings: AllocatorSettings, room: int) -> int:
    """Return the largest size that `has_room`; 0 if there is none."""
    segments = list(segments)
    cached = largest_cached(segments, stream, settings, small=False)
    granule = settings.large_segment_size if settings.expandable_segments else ROUND_LARGE
    new = room // granule * granule
    if new >= MIN_LARGE_ALLOC:
        divisions = settings.roundup_power2_divisions[min(max(new.bit_length() - 21, 0), 15)]
        if divisions > 1:
            step = max((1 << (new.bit_length() - 1)) // divisions, 1)
            new = new // step * step
    elif room >= SMALL_BUFFER:
        new = SMALL_SIZE
    else:
        new = largest_cached(segments, stream, settings, small=True)
    return max(cached, new)


def largest_cached(segments: Iterable[dict[str, Any]], stream: int, settings: AllocatorSettings, *, small: bool) -> int:
    """Return the largest free block that a request of one size class finds on a stream of the default pool."""
    kind = "small" if small else "large"
    return max(
        (
            block["size"]
            for segment in segments
            if segment["segment_type"] == kind
            and segment["stream"] == stream
            and pool_id_of(segment) == (0, 0)
            # Once they are switched off, what is free in expandable segments is not used again.
            and (settings.expandable_segments or not segment.get("is_expandable", False))
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ),
        default=0,
    )
