"""The state of the allocator before the first event: found by undoing the trace from the state at its end."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from . import sizes
from .blocks import ALLOCATED, DEFAULT_POOL, FREE, UNMAPPED, Block, ExpandableSegment
from .driver import LARGEST_SEGMENT
from .trace import ALLOC, MAP, UNMAP
from .trace import FREE as GIVEN_BACK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .blocks import PoolId, Shelf
    from .heap import Heap
    from .model import Allocator
    from .trace import Trace


END = 1 << 62
"""Above any address of a device: a check has memory there that the recorded allocator did not get."""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that the allocator held at the start: a segment, or a mapped stretch of an expandable one."""

    address: int
    size: int
    stream: int
    small: bool
    pool: PoolId
    expandable: bool


def held_at_start(segments: Iterable[dict[str, Any]], trace: Trace) -> list[Held]:
    """Return what was held before the trace, from the snapshot's segments and what the trace did with the driver."""
    plain: dict[int, Held] = {}
    mapped: list[Held] = []
    for segment in segments:
        held = Held(
            segment["address"],
            segment["total_size"],
            segment.get("stream", 0),
            segment.get("segment_type") == "small",
            pool_of(segment),
            bool(segment.get("is_expandable", False)),
        )
        if held.expandable:
            mapped.append(held)
        else:
            plain[held.address] = held
    for (_, kind, address, size), stream in zip(reversed(trace.segments), reversed(trace.streams), strict=True):
        if kind == ALLOC:
            plain.pop(address, None)
        elif kind == GIVEN_BACK:
            plain[address] = Held(address, size, stream, size == sizes.SMALL_BUFFER, DEFAULT_POOL, expandable=False)
        elif kind == MAP:
            mapped = [part for held in mapped for part in _without(held, address, address + size)]
        elif kind == UNMAP:
            small = next((h.small for h in mapped if h.stream == stream), size < sizes.MIN_LARGE_ALLOC)
            mapped.append(Held(address, size, stream, small, DEFAULT_POOL, expandable=True))
    return sorted([*plain.values(), *_joined(mapped)], key=lambda held: held.address)


def _joined(mapped: list[Held]) -> list[Held]:
    """Join stretches that touch each other."""
    joined: list[Held] = []
    for held in sorted(mapped, key=lambda held: held.address):
        last = joined[-1] if joined else None
        if last is not None and last.address + last.size == held.address and last.stream == held.stream:
            joined[-1] = Held(last.address, last.size + held.size, last.stream, last.small, last.pool, expandable=True)
        else:
            joined.append(held)
    return joined


def pool_of(segment: dict[str, Any]) -> PoolId:
    """Return the id of a segment's pool, which old snapshots leave out."""
    pool = segment.get("segment_pool_id", DEFAULT_POOL)
    return int(pool[0]), int(pool[1])


def _without(held: Held, start: int, end: int) -> list[Held]:
    """Return what is left of a stretch without those addresses."""
    low, high = held.address, held.address + held.size
    if end <= low or start >= high:
        return [held]
    return [
        Held(left, right - left, held.stream, held.small, held.pool, expandable=True)
        for left, right in ((low, start), (end, high))
        if left < right
    ]


def adopt(allocator: Allocator, held: Sequence[Held], trace: Trace) -> bool:
    """Put a fresh allocator into the state at the start of a trace; false (and no change) if that is unclear."""
    alive = sorted(trace.start)
    if any(here[0] + here[1] > there[0] for here, there in pairwise(alive)):
        return False
    spans = [(h.address, h.address + h.size) for h in held]
    if any(here[1] > there[0] for here, there in pairwise(spans)) or any(high > END for _, high in spans):
        return False
    if not all(any(low <= a[0] and a[0] + a[1] <= high for low, high in spans) for a in alive):
        return False
    bases = _bases(allocator, held, trace)
    if bases is None:
        return False
    for stretch in held:
        group = allocator.group(stretch.pool)
        shelf = (group.small if stretch.small else group.large).shelf(stretch.stream)
        inside = [a for a in alive if stretch.address <= a[0] < stretch.address + stretch.size]
        if stretch.expandable:
            _place_mapped(allocator, shelf, stretch, bases)
        else:
            allocator.place_segment(shelf, stretch.address, stretch.size)
        _place_live(allocator, allocator.blocks[stretch.address], inside)
    allocator.reset_peaks()
    return True


def _place_live(allocator: Allocator, block: Block, alive: list[tuple[int, int, int, PoolId | None]]) -> None:
    """Cut one free block into the live ones and what lies between them."""
    settings = allocator.settings
    end = block.address + block.size
    for number, (address, requested, _, _) in enumerate(alive):
        if address > block.address:
            allocator.take(block)
            rest = allocator.cut(block, address - block.address)
            allocator.put(block)
            block = rest
        else:
            allocator.take(block)
        beyond = alive[number + 1][0] if number + 1 < len(alive) else end
        plan = sizes.plan(requested, settings, allocator.default)
        size = plan[0]
        if beyond - address - size < plan[3]:
            size = beyond - address  # the rest was too little to be cut off
        rest_block = allocator.cut(block, size) if size < block.size else None
        block.state, block.requested = ALLOCATED, requested
        allocator.count_live(block)
        if rest_block is not None:
            allocator.put(rest_block)
            block = rest_block
    head: Block | None = allocator.blocks[alive[0][0]] if alive else None
    while head is not None and head.prev is not None:
        head = head.prev
    while head is not None:
        if head.state == FREE and head.segment is None:
            allocator.count_split(head.shelf.tally, 1, head.size)
        head = head.next


def _bases(allocator: Allocator, held: Sequence[Held], trace: Trace) -> list[int] | None:
    """Return where the expandable segments begin: each covers more than the device from its lowest address on."""
    length = _length(allocator)
    addresses = sorted(
        {h.address for h in held if h.expandable} | {address for _, kind, address, _ in trace.segments if kind == MAP}
    )
    bases: list[int] = []
    for address in addresses:
        if not bases or address >= bases[-1] + length:
            bases.append(address)
    owners: dict[int, tuple[int, bool, PoolId]] = {}
    for stretch in held:
        if stretch.expandable:
            base = max(b for b in bases if b <= stretch.address)
            owner = (stretch.stream, stretch.small, stretch.pool)
            if owners.setdefault(base, owner) != owner or stretch.address + stretch.size > base + length:
                return None
    plain = [stretch for stretch in held if not stretch.expandable]
    ranges = [(base, base + length + allocator.large_segment_size) for base in owners]
    if any(high > END for _, high in ranges):
        return None
    if any(p.address < high and low < p.address + p.size for p in plain for low, high in ranges):
        return None
    return bases


def _length(allocator: Heap) -> int:
    total = allocator.total_memory
    return LARGEST_SEGMENT if total is None else total + total // 8


def _place_mapped(allocator: Allocator, shelf: Shelf, stretch: Held, bases: list[int]) -> None:
    base = max(b for b in bases if b <= stretch.address)
    if base not in allocator.blocks:
        page = sizes.SMALL_BUFFER if shelf.pool.small else allocator.large_segment_size
        length = -(-_length(allocator) // page) * page
        allocator.place_range(shelf, ExpandableSegment(base, length, page))
    block = allocator.blocks[base]
    while block.address + block.size <= stretch.address:
        assert block.next is not None  # noqa: S101 - the stretch lies inside of the range
        block = block.next
    assert block.state == UNMAPPED  # noqa: S101 - stretches do not overlap
    allocator.place_mapped(block, stretch.address, stretch.size)
