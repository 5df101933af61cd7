"""How the model's memory lies at one moment: parts that add up to what is reserved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyter_gpumem.records import Record

from .blocks import ADDRESS_BITS, FREE
from .sizes import round_size

if TYPE_CHECKING:
    from .blocks import Block
    from .model import Allocator


@dataclass(frozen=True, slots=True)
class Step(Record):
    """A request that needed more memory from the driver.

    Attributes:
        event: its index in the recorded trace; -1 before the first event.
        request: bytes asked for.
        largest: bytes of the largest free block of the same pool and stream, without what it got itself; 0 for none.
        withheld: whether that one was large enough, but the settings forbid to use it.
    """

    event: int
    request: int
    largest: int
    withheld: bool


@dataclass(frozen=True, slots=True)
class Layout(Record):
    """Reserved memory right after a request was served, or at the start: `parts` are all of it that is not allocated.

    Attributes:
        step: the request, or `None` at the start.
        reserved, allocated: bytes held from the driver, and bytes of them in live blocks.
        pending: bytes of blocks that are freed, but which another stream may still use.
        segments: bytes of each free segment, smallest first.
        gaps, gap_bytes: free blocks in segments that live blocks share.
        pieces, piece_bytes: free blocks in expandable segments.
        rest: bytes left over of the memory that the request got.
    """

    step: Step | None
    reserved: int
    allocated: int
    pending: int
    segments: tuple[int, ...]
    gaps: int
    gap_bytes: int
    pieces: int
    piece_bytes: int
    rest: int

    @property
    def parts(self) -> tuple[int, ...]:
        """Bytes in free segments, gaps, pieces, the rest and pending blocks: what is reserved but not allocated."""
        return (sum(self.segments), self.gap_bytes, self.piece_bytes, self.rest, self.pending)


def layout_of(allocator: Allocator, address: int, event: int) -> Layout:
    """Return how memory lies right after a request was served at an address; 0 stands for the start.

    Args:
        allocator: the model; the request has got memory from the driver.
        address: what the request got.
        event: its index in the recorded trace.
    """
    block = allocator.blocks[address] if address else None
    rest = block.next if block is not None and block.next is not None and block.next.state == FREE else None
    segments: list[int] = []
    gaps: list[int] = []
    pieces: list[int] = []
    for group in allocator.groups.values():
        for pool in (group.small, group.large):
            for free in allocator.free_blocks(pool):
                if free is not rest:
                    kind = pieces if free.segment is not None else gaps if free.is_split else segments
                    kind.append(free.size)
    return Layout(
        step=None if block is None else _step(allocator, block, rest, event),
        reserved=allocator.reserved,
        allocated=allocator.total.size,
        pending=allocator.total.pending_size,
        segments=tuple(sorted(segments)),
        gaps=len(gaps),
        gap_bytes=sum(gaps),
        pieces=len(pieces),
        piece_bytes=sum(pieces),
        rest=0 if rest is None else rest.size,
    )


def _step(allocator: Allocator, block: Block, rest: Block | None, event: int) -> Step:
    keys = [key for key in block.shelf.keys[-2:] if rest is None or key != rest.key]
    largest = keys[-1] >> ADDRESS_BITS if keys else 0
    rounded = round_size(block.requested, allocator.settings.roundup_power2_divisions)
    return Step(event, block.requested, largest, withheld=largest >= rounded)
