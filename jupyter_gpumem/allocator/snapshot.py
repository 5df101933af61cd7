"""The model's segments in the format of `torch.cuda.memory_snapshot()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .blocks import ALLOCATED, FREE, PENDING, UNMAPPED, Block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .heap import Heap

_STATES = {FREE: "inactive", ALLOCATED: "active_allocated", PENDING: "active_pending_free"}


def segments(heap: Heap, device: int) -> list[dict[str, Any]]:
    """Return every segment by address; an expandable one gives an entry for each stretch that is mapped."""
    heads = [*heap.segments, *(segment.address for segment in heap.expandable)]
    found = [_segment(run, device) for head in heads for run in _runs(heap.blocks[head])]
    return sorted(found, key=lambda segment: segment["address"])


def _runs(block: Block | None) -> Iterator[list[Block]]:
    run: list[Block] = []
    while block is not None:
        if block.state != UNMAPPED:
            run.append(block)
        elif run:
            yield run
            run = []
        block = block.next
    if run:
        yield run


def _segment(run: list[Block], device: int) -> dict[str, Any]:
    shelf = run[0].shelf
    active = [block for block in run if block.state != FREE]
    return {
        "device": device,
        "address": run[0].address,
        "total_size": sum(block.size for block in run),
        "allocated_size": sum(block.size for block in active if block.state == ALLOCATED),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": shelf.stream,
        "segment_type": "small" if shelf.pool.small else "large",
        "segment_pool_id": shelf.pool.group.id,
        "is_expandable": run[0].segment is not None,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": _STATES[block.state],
                "frames": [],
            }
            for block in run
        ],
    }
