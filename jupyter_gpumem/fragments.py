"""How unallocated memory lies in the allocator's segments: pure functions from a snapshot to numbers.

Segments come in PyTorch's snapshot format (`torch.cuda.memory_snapshot()`): dicts with `total_size`, `blocks`, ...
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from .notebook import cell_of
from .records import Fragmentation, Pin, PoolAudit
from .units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SMALL_PAGE = 2 * MiB
LARGE_PAGE = 20 * MiB
"""What an expandable segment maps and unmaps at a time; `large_segment_size_mb` changes the second."""

_LARGEST_SMALL = MiB
_PASSED_THROUGH = (os.path.join(os.path.dirname(os.path.abspath(__file__)), ""), contextlib.__file__)
"""Files that allocate on behalf of whoever calls them: this package's (`reserve` does), and those of decorators."""
_DEFAULT_POOL = (0, 0)


class _Pile:
    """What the segments of one pool, size class and stream hold: these never serve each other's requests."""

    def __init__(self, pool_id: tuple[int, int], kind: str, stream: int) -> None:
        self.pool_id, self.kind, self.stream = pool_id, kind, stream
        self.reserved = self.returnable = self.blocks = 0
        self.segments: list[dict[str, Any]] = []
        self.free: list[int] = []
        self.grows = False

    def add(self, segment: dict[str, Any], large_page: int) -> None:
        """Count one more segment."""
        free = _free(segment)
        self.segments.append(segment)
        self.reserved += segment["total_size"]
        self.blocks += len(segment["blocks"])
        self.free += free
        self.returnable += _returnable(segment, free, large_page)
        self.grows = self.grows or (bool(free) and segment.get("is_expandable", False))

    @property
    def allocated(self) -> int:
        """The bytes of its allocated blocks; counted when asked for, since the live panel does not."""
        blocks = (block for segment in self.segments for block in segment["blocks"])
        return sum(block["size"] for block in blocks if block["state"] == "active_allocated")

    @property
    def private(self) -> bool:
        """Whether only the pool's owner can use it, or give it back."""
        return self.pool_id != _DEFAULT_POOL

    @property
    def largest_request(self) -> int:
        """Return the largest request, after rounding, that is served from what is free."""
        largest = max(self.free, default=0)
        # Requests up to 1 MiB look among the small segments only, and larger ones never do.
        if self.kind == "small":
            return min(largest, _LARGEST_SMALL)
        return largest if largest > _LARGEST_SMALL else 0

    def external(self, device_free: int) -> float | None:
        """Return 1 - largest free block / free bytes."""
        return _external([self], device_free)


def _piles(segments: Iterable[dict[str, Any]], large_page: int) -> list[_Pile]:
    piles: dict[tuple[Any, ...], _Pile] = {}
    for segment in segments:
        key = pool_id_of(segment), segment["segment_type"], segment["stream"]
        pile = piles.get(key)
        if pile is None:
            pile = piles[key] = _Pile(*key)
        pile.add(segment, large_page)
    return list(piles.values())


def fragmentation(
    segments: Iterable[dict[str, Any]],
    *,
    large_page: int = LARGE_PAGE,
    device_free: int | None = None,
    expandable: bool = True,
) -> Fragmentation:
    """Return how the unallocated memory of one device lies.

    Args:
        segments: the device's segments.
        large_page: page size in bytes of expandable segments of the large pool.
        device_free: bytes the driver has left; what an expandable segment could still grow by, when known.
        expandable: whether expandable segments serve requests; once they are switched off, nothing of theirs is used.
    """
    segments = list(segments)
    piles = _piles(segments, large_page)
    common = [pile for pile in piles if not pile.private]
    serving = common
    if not expandable:
        serving = _piles([s for s in segments if not s.get("is_expandable", False)], large_page)
    returnable = sum(pile.returnable for pile in common)
    return Fragmentation(
        returnable=returnable,
        stranded=sum(sum(pile.free) for pile in common) - returnable,
        private=sum(sum(pile.free) for pile in piles if pile.private),
        largest_free=max((pile.largest_request for pile in serving if not pile.private), default=0),
        external=_external(common, device_free or 0),
        segments=sum(len(pile.segments) for pile in piles),
        blocks=sum(pile.blocks for pile in piles),
    )


def pools(
    segments: Iterable[dict[str, Any]], *, large_page: int = LARGE_PAGE, device_free: int | None = None
) -> tuple[PoolAudit, ...]:
    """Return the same by pool, size class and stream, those that reserve most first."""
    return tuple(
        PoolAudit(
            pool_id=pile.pool_id,
            kind=pile.kind,
            stream=pile.stream,
            reserved=pile.reserved,
            allocated=pile.allocated,
            free=sum(pile.free),
            largest_free=max(pile.free, default=0),
            returnable=0 if pile.private else pile.returnable,
            stranded=0 if pile.private else sum(pile.free) - pile.returnable,
            external=pile.external(device_free or 0),
            segments=len(pile.segments),
        )
        for pile in sorted(_piles(segments, large_page), key=lambda pile: -pile.reserved)
    )


def pins(segments: Iterable[dict[str, Any]], *, large_page: int = LARGE_PAGE) -> tuple[Pin, ...]:
    """Return the segments of the default pool that strand free bytes, those with most first."""
    found = []
    for segment in segments:
        if pool_id_of(segment) != _DEFAULT_POOL:
            continue
        free = _free(segment)
        stranded = sum(free) - _returnable(segment, free, large_page)
        if stranded:
            live = [block for block in segment["blocks"] if block["state"] != "inactive"]
            largest = max(live, key=lambda block: block["size"], default=None)
            site = None if largest is None else site_of(largest)
            found.append(Pin(segment["address"], stranded, sum(block["size"] for block in live), len(live), site))
    return tuple(sorted(found, key=lambda pin: -pin.stranded))


def site_of(block: dict[str, Any]) -> str | None:
    """Return where in the user's code a block was allocated, as `site_text` says it; `None` if nobody recorded it."""
    frame = frame_of(block)
    return None if frame is None else site_text(*frame)


def frame_of(block: dict[str, Any]) -> tuple[str, int, str] | None:
    """Return the file, line and function that allocated a block, or `None` if nobody recorded it.

    That is the innermost Python frame outside of torch and of this package; frames of native code have no line.
    """
    for frame in block.get("frames") or ():
        filename = frame["filename"]
        native = not frame["line"] or filename in {"", "??"}
        if not native and "/torch/" not in filename.replace("\\", "/") and not filename.startswith(_PASSED_THROUGH):
            return filename, frame["line"], frame["name"]
    return None


def site_text(filename: str, line: int | str, function: str) -> str:
    """Return a place in the user's code as a person would say it: `train.py:12 in step`, `In[5], line 12 in step`."""
    cell = cell_of(filename)
    if cell is None:
        return f"{filename}:{line} in {function}"
    return f"{cell}, line {line}" if function == "<module>" else f"{cell}, line {line} in {function}"


def segment_at(segments: Iterable[dict[str, Any]], address: int) -> dict[str, Any] | None:
    """Return the segment that an address lies in, or `None`."""
    for segment in segments:
        if segment["address"] <= address < segment["address"] + segment["total_size"]:
            return segment
    return None


def lying_in(segments: Iterable[dict[str, Any]], address: int, size: int) -> tuple[int, int]:
    """Return how many of the bytes from an address on are free in segments, and how many are not."""
    free = live = 0
    for segment in segments:
        if address + size <= segment["address"] or segment["address"] + segment["total_size"] <= address:
            continue
        for start, block in _placed(segment):
            both = min(start + block["size"], address + size) - max(start, address)
            if block["state"] == "inactive":
                free += max(0, both)
            else:
                live += max(0, both)
    return free, live


def pool_id_of(segment: dict[str, Any]) -> tuple[int, int]:
    """Return the id of a segment's pool: `(0, 0)` for the default one."""
    return tuple(segment.get("segment_pool_id", _DEFAULT_POOL))


def returnable_in(segment: dict[str, Any], large_page: int = LARGE_PAGE) -> int:
    """Return the bytes of a segment that emptying the cache gives back, if its pool has no owner who forbids it."""
    return _returnable(segment, _free(segment), large_page)


def _free(segment: dict[str, Any]) -> list[int]:
    """Return the sizes of the blocks that nothing uses and nothing waits for."""
    return [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]


def _returnable(segment: dict[str, Any], free: list[int], large_page: int) -> int:
    if not segment.get("is_expandable", False):
        return segment["total_size"] if len(free) == len(segment["blocks"]) else 0
    page = SMALL_PAGE if segment["segment_type"] == "small" else large_page
    if max(free, default=0) < page:
        return 0  # what holds no whole page needs no look at where it lies
    return sum(
        _whole_pages(address - segment["address"], block["size"], page)
        for address, block in _placed(segment)
        if block["state"] == "inactive"
    )


def is_empty(segment: dict[str, Any]) -> bool:
    """Whether nothing in a segment lives or waits for another stream."""
    return all(block["state"] == "inactive" for block in segment["blocks"])


def _placed(segment: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the blocks with their addresses, which old snapshots leave out."""
    address = segment["address"]
    for block in segment["blocks"]:
        yield block.get("address", address), block
        address += block["size"]


def _whole_pages(offset: int, size: int, page: int) -> int:
    """Return the bytes of the pages that lie completely inside a block: only those can be unmapped."""
    first, last = -(-offset // page), (offset + size) // page
    return max(0, last - first) * page


def _external(piles: Iterable[_Pile], device_free: int) -> float | None:
    """Return 1 - largest / all free bytes, each summed over piles; expandable segments as what they can grow to."""
    largest = total = 0
    for pile in piles:
        if pile.free:
            grows = device_free if pile.grows else 0
            largest += max(pile.free) + grows
            total += sum(pile.free) + grows
    return 1 - largest / total if total else None
