"""How unallocated memory lies in the allocator's segments: pure functions from a snapshot to numbers.

Segments come in PyTorch's snapshot format (`torch.cuda.memory_snapshot()`): dicts with `total_size`, `blocks`, ...
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .records import Fragmentation
from .units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SMALL_PAGE = 2 * MiB
LARGE_PAGE = 20 * MiB
"""What an expandable segment maps and unmaps at a time; `large_segment_size_mb` changes the second."""

_DEFAULT_POOL = (0, 0)


def fragmentation(
    segments: Iterable[dict[str, Any]], *, large_page: int = LARGE_PAGE, device_free: int | None = None
) -> Fragmentation:
    """Return how the unallocated memory of one device lies.

    Args:
        segments: the device's segments.
        large_page: page size in bytes of expandable segments of the large pool.
        device_free: bytes the driver has left; what an expandable segment could still grow by, when known.
    """
    returnable = private = largest = count = blocks = 0
    free: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    growable: set[tuple[Any, ...]] = set()
    for segment in segments:
        count += 1
        pool_id = tuple(segment.get("segment_pool_id", _DEFAULT_POOL))
        key = (pool_id, segment["segment_type"], segment["stream"])
        expandable = segment.get("is_expandable", False)
        for address, block in _placed(segment):
            blocks += 1
            if block["state"] != "inactive":
                continue
            if pool_id != _DEFAULT_POOL:
                private += block["size"]
                continue
            free[key].append(block["size"])
            largest = max(largest, block["size"])
            if expandable:
                growable.add(key)
                page = SMALL_PAGE if segment["segment_type"] == "small" else large_page
                returnable += _whole_pages(address - segment["address"], block["size"], page)
        if not expandable and pool_id == _DEFAULT_POOL and _is_empty(segment):
            returnable += segment["total_size"]
    reserved_free = sum(map(sum, free.values()))
    return Fragmentation(
        returnable=returnable,
        stranded=reserved_free - returnable,
        private=private,
        largest_free=largest,
        external=_external(free, growable, device_free or 0),
        segments=count,
        blocks=blocks,
    )


def _placed(segment: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the blocks with their addresses, which old snapshots leave out."""
    address = segment["address"]
    for block in segment["blocks"]:
        yield block.get("address", address), block
        address += block["size"]


def _is_empty(segment: dict[str, Any]) -> bool:
    return all(block["state"] == "inactive" for block in segment["blocks"])


def _whole_pages(offset: int, size: int, page: int) -> int:
    """Return the bytes of the pages that lie completely inside a block: only those can be unmapped."""
    first, last = -(-offset // page), (offset + size) // page
    return max(0, last - first) * page


def _external(free: dict[tuple[Any, ...], list[int]], growable: set[tuple[Any, ...]], device_free: int) -> float | None:
    """Return 1 - largest / all free bytes, each summed over pools and streams, which never serve each other."""
    largest = total = 0
    for key, sizes in free.items():
        grows = device_free if key in growable else 0
        largest += max(sizes) + grows
        total += sum(sizes) + grows
    return 1 - largest / total if total else None
