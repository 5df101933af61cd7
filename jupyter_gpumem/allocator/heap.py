"""The segments and blocks of the allocator model, and how blocks are joined, given back and grown.

Which block a request gets is decided in `model`; here is what every such decision is made of.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from jupyter_gpumem.errors import UnsafeSettingsError
from jupyter_gpumem.units import MiB, format_bytes

from .blocks import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    ALLOCATED,
    DEFAULT_POOL,
    FREE,
    UNMAPPED,
    Block,
    ExpandableSegment,
    PoolGroup,
)
from .counters import Level, Tally
from .driver import LARGEST_SEGMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .blocks import Pool, PoolId, Shelf
    from .driver import Driver

SMALL_BUFFER = 2 * MiB


class Heap:
    """Segments from a driver, cut into blocks.

    Attributes:
        reserved: bytes held from the driver.
        blocks: every block by its address, unmapped ones included.
        segments: bytes of every ordinary segment by its address.
        max_split_size: bytes from which on a block counts as oversize.
    """

    def __init__(self, driver: Driver, total_memory: int | None) -> None:
        self.driver = driver
        self.total_memory = total_memory
        self.reserved = 0
        self.blocks: dict[int, Block] = {}
        self.segments: dict[int, int] = {}
        self.expandable: list[ExpandableSegment] = []
        self.total, self.small, self.large = Tally(), Tally(), Tally()
        self.oversize_segments = Level()
        self.device_allocations = self.device_frees = 0
        self.max_split_size = 1 << 100
        self.large_segment_size = 0
        self.groups: dict[PoolId, PoolGroup] = {}
        self.default = self.group(DEFAULT_POOL)
        self._spare: list[Block] = []

    def group(self, pool_id: PoolId) -> PoolGroup:
        """Return a pool by its id, made when it is first named."""
        group = self.groups.get(pool_id)
        if group is None:
            group = self.groups[pool_id] = PoolGroup(pool_id, self.small, self.large)
        return group

    def free_blocks(self, pool: Pool) -> Iterator[Block]:
        """Yield a pool's free blocks in PyTorch's order, as they were when the iteration began."""
        for shelf in list(pool.in_order()):
            for key in list(shelf.keys):
                yield self.blocks[key & ADDRESS_MASK]

    # Blocks and shelves

    def new_block(self, shelf: Shelf, address: int, size: int, segment: ExpandableSegment | None) -> Block:
        """Return a block without neighbours, on no shelf yet."""
        block = Block()
        block.address, block.size, block.requested, block.state = address, size, 0, FREE
        block.prev = block.next = None
        block.shelf, block.segment = shelf, segment
        self.blocks[address] = block
        return block

    def put(self, block: Block) -> None:
        """Put a block on its shelf as free."""
        block.state = FREE
        block.age_base = block.shelf.pool.searches
        insort(block.shelf.keys, block.key)

    def take(self, block: Block) -> None:
        """Take a free block from its shelf."""
        keys = block.shelf.keys
        del keys[bisect_left(keys, block.key)]

    def absorb_next(self, block: Block) -> None:
        """Let a block swallow the one behind it, which must be on no shelf."""
        gone = block.next
        assert gone is not None  # noqa: S101 - the caller has looked
        block.size += gone.size
        block.next = gone.next
        if gone.next is not None:
            gone.next.prev = block
        del self.blocks[gone.address]

    def cut(self, block: Block, size: int) -> Block:
        """Cut a block after so many bytes; returns what is behind the cut, on no shelf."""
        rest = self.new_block(block.shelf, block.address + size, block.size - size, block.segment)
        rest.requested = block.requested
        rest.prev, rest.next = block, block.next
        if block.next is not None:
            block.next.prev = rest
        block.next = rest
        block.size = size
        return rest

    def settle(self, block: Block) -> None:
        """Make a block free: join it with free neighbours, put it on its shelf, count what became split."""
        shelf = block.shelf
        keys, size, count, gain = shelf.keys, block.size, 0, 0
        before = block.prev
        if before is not None and before.state == FREE:
            joined = before.size
            del keys[bisect_left(keys, joined << ADDRESS_BITS | before.address)]
            del self.blocks[block.address]
            after = before.next = block.next
            if after is not None:
                after.prev = before
            before.requested = block.requested
            self._spare.append(block)
            block = before
            count, gain, size = -1, -joined, size + joined
        after = block.next
        if after is not None and after.state == FREE:
            joined = after.size
            del keys[bisect_left(keys, joined << ADDRESS_BITS | after.address)]
            del self.blocks[after.address]
            beyond = block.next = after.next
            if beyond is not None:
                beyond.prev = block
            self._spare.append(after)
            count, gain, size = count - 1, gain - joined, size + joined
        block.size = size
        block.state = FREE
        pool = shelf.pool
        if pool.searches:
            block.age_base = pool.searches
        insort(keys, size << ADDRESS_BITS | block.address)
        if block.segment is None:
            if block.prev is not None or block.next is not None:
                count, gain = count + 1, gain + size
            if count or gain:
                self.count_split(shelf.tally, count, gain)

    def count_split(self, tally: Tally, count: int, size: int) -> None:
        """Count free blocks of partly used segments that came (or, when negative, went), and their bytes."""
        total = self.total
        tally.split += count
        total.split += count
        tally.split_size += size
        total.split_size += size
        # What `total` gained is never asked for: it is the sum of both halves.
        if count > 0:
            tally.split_gained += count
            if tally.split > tally.split_peak:
                tally.split_peak = tally.split
            if total.split > total.split_peak:
                total.split_peak = total.split
        if size > 0:
            tally.split_size_gained += size
            if tally.split_size > tally.split_size_peak:
                tally.split_size_peak = tally.split_size
            if total.split_size > total.split_size_peak:
                total.split_size_peak = total.split_size

    # Ordinary segments

    def add_segment(self, shelf: Shelf, size: int) -> Block | None:
        """Get a segment from the driver; returns its one block, on no shelf, or `None` when the driver refuses."""
        address = self.driver.allocate(size)
        if address is None:
            return None
        self.segments[address] = size
        self.device_allocations += 1
        self._count_segment(shelf, 1, size)
        return self.new_block(shelf, address, size, None)

    def release(self, block: Block) -> None:
        """Give the segment of a free block back to the driver.

        Raises:
            UnsafeSettingsError: other blocks live in it. PyTorch does not look, and frees memory under live tensors.
        """
        if block.is_split:
            raise UnsafeSettingsError(
                "max_split_size_mb was lowered, or expandable_segments switched on, while a segment was split already: "
                f"PyTorch would free {format_bytes(block.size)} of it under live tensors; change settings before use"
            )
        self.take(block)
        del self.blocks[block.address]
        del self.segments[block.address]
        self.driver.release(block.address, block.size)
        self.device_frees += 1
        self._count_segment(block.shelf, -1, -block.size)

    def _count_segment(self, shelf: Shelf, count: int, size: int) -> None:
        self.total.segments.change(count)
        shelf.tally.segments.change(count)
        self.count_reserved(shelf, size)
        if abs(size) >= self.max_split_size:
            self.oversize_segments.change(count)

    def count_reserved(self, shelf: Shelf, size: int) -> None:
        """Count bytes that were got from the driver, or given back when negative."""
        self.reserved += size
        self.total.reserved.change(size)
        shelf.tally.reserved.change(size)
        shelf.pool.reserved.change(size)
        shelf.pool.group.reserved.change(size)

    def release_pool(self, pool: Pool) -> None:
        """Give back what a pool can: whole segments, and whole pages of expandable ones."""
        growing = []
        for block in self.free_blocks(pool):
            if block.segment is not None:
                growing.append(block)
            elif not block.is_split:
                self.release(block)
        for block in growing:
            self.unmap(block)

    # Expandable segments

    def grow(self, shelf: Shelf, size: int) -> Block | None:
        """Map pages until a free block is large enough; returns it, on no shelf, or `None` when the driver refuses."""
        block = self._find_room(shelf, size)
        if block is not None and block.state == UNMAPPED:
            block = self._map(block, min(block.size, size))
        while block is not None and block.size < size:
            after = block.next
            assert after is not None  # noqa: S101 - `_find_room` has measured it
            block = self._map(after, min(size - block.size, after.size))
        if block is not None:
            self.take(block)
        return block

    def _find_room(self, shelf: Shelf, size: int) -> Block | None:
        """Return the first block of a run, free or unmapped, that is long enough; in a new segment if need be."""
        for address in shelf.unmapped:
            block = self.blocks[address]
            if block.prev is not None and block.prev.state == FREE:
                block = block.prev
            room, part = 0, block
            while room < size and part is not None and part.state in {FREE, UNMAPPED}:
                room += part.size
                part = part.next  # type: ignore[assignment]
            if room >= size:
                return block
        page = SMALL_BUFFER if shelf.pool.small else self.large_segment_size
        # PyTorch reserves the device's size and an eighth; a request beyond that would find no memory anyway.
        wanted = LARGEST_SEGMENT if self.total_memory is None else self.total_memory + self.total_memory // 8
        length = -(-max(wanted, size) // page) * page
        base = self.driver.reserve(length)
        if base is None:
            return None
        segment = ExpandableSegment(base, length, page)
        self.expandable.append(segment)
        block = self.new_block(shelf, base, length, segment)
        block.state = UNMAPPED
        insort(shelf.unmapped, base)
        shelf.grows = True
        return block

    def _map(self, block: Block, size: int) -> Block | None:
        """Map the pages that cover the first bytes of an unmapped block; returns the free block they join."""
        shelf, segment = block.shelf, block.segment
        assert segment is not None  # noqa: S101 - only expandable segments have unmapped blocks
        size = -(-size // segment.page) * segment.page
        if not self.driver.map(block.address, size):
            return None
        del shelf.unmapped[bisect_left(shelf.unmapped, block.address)]
        if size < block.size:
            rest = self.cut(block, size)
            rest.state = UNMAPPED
            insort(shelf.unmapped, rest.address)
        block.state = ALLOCATED  # on no shelf, until it is joined
        if block.next is not None and block.next.state == FREE:
            self.take(block.next)
            self.absorb_next(block)
        if block.prev is not None and block.prev.state == FREE:
            block = block.prev
            self.take(block)
            self.absorb_next(block)
        self.put(block)
        self.device_allocations += 1
        self.count_reserved(shelf, size)
        return block

    def unmap(self, block: Block) -> None:
        """Give back the pages that lie completely inside a free block of an expandable segment."""
        shelf, segment = block.shelf, block.segment
        assert segment is not None  # noqa: S101 - the caller has looked
        start, end = whole_pages(block, segment)
        if end <= start:
            return
        self.driver.unmap(start, end - start)
        self.take(block)
        if end < block.address + block.size:
            self.put(self.cut(block, end - block.address))
        if start > block.address:
            middle = self.cut(block, start - block.address)
            self.put(block)
            block = middle
        block.state = UNMAPPED
        if block.next is not None and block.next.state == UNMAPPED:
            del shelf.unmapped[bisect_left(shelf.unmapped, block.next.address)]
            self.absorb_next(block)
        if block.prev is not None and block.prev.state == UNMAPPED:
            block = block.prev
            self.absorb_next(block)
        else:
            insort(shelf.unmapped, block.address)
        self.device_frees += 1
        self.count_reserved(shelf, start - end)
        if not block.is_split:
            shelf.unmapped.remove(block.address)
            del self.blocks[block.address]
            self.expandable.remove(segment)
            self.driver.unreserve(segment.address, segment.size)

    # A state that is known from elsewhere

    def place_segment(self, shelf: Shelf, address: int, size: int) -> None:
        """Add a segment that the driver has handed out before, as one free block."""
        self.segments[address] = size
        self._count_segment(shelf, 1, size)
        self.put(self.new_block(shelf, address, size, None))

    def place_range(self, shelf: Shelf, segment: ExpandableSegment) -> None:
        """Add an expandable segment that exists already, all of it unmapped."""
        self.expandable.append(segment)
        block = self.new_block(shelf, segment.address, segment.size, segment)
        block.state = UNMAPPED
        insort(shelf.unmapped, block.address)
        shelf.grows = True

    def place_mapped(self, block: Block, address: int, size: int) -> None:
        """Make a part of an unmapped block a free one, without asking the driver."""
        shelf = block.shelf
        if address > block.address:
            block = self.cut(block, address - block.address)
        else:
            shelf.unmapped.remove(address)
        if size < block.size:
            rest = self.cut(block, size)
            rest.state = UNMAPPED
            insort(shelf.unmapped, rest.address)
        self.put(block)
        self.count_reserved(shelf, size)

    def count_live(self, block: Block) -> None:
        """Count a block that is allocated already."""
        for tally in (block.shelf.tally, self.total):
            tally.count += 1
            tally.size += block.size
            tally.asked += block.requested


def whole_pages(block: Block, segment: ExpandableSegment) -> tuple[int, int]:
    """Return where the pages begin and end that lie completely inside a block; not in this order if none does."""
    base, page = segment.address, segment.page
    return base - (base - block.address) // page * page, base + (block.address + block.size - base) // page * page
