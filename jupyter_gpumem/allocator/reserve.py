"""Where the allocator model finds memory when no free block fits, and how it gives memory back."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from . import sizes
from .blocks import ADDRESS_BITS, ADDRESS_MASK, UNMAPPED, Block
from .heap import Heap
from .oom import out_of_memory

if TYPE_CHECKING:
    from .blocks import Pool, PoolId, Shelf
    from .driver import Driver
    from .settings import AllocatorSettings
    from .sizes import Plan


class Reserve(Heap):
    """A heap with settings and a cap: everything PyTorch does before it gives up.

    Attributes:
        settings: the settings in force.
        limit: bytes that may be reserved, or `None` without a cap.
        device: PyTorch's index, for messages.
        search_after_flush: whether a request looks at the free blocks once more after a flush.
        retries, ooms, rejections, syncs: how often the cache was flushed for a request, a request failed, one was
            refused at the cap without trying, and all streams were waited for.
    """

    settings: AllocatorSettings
    search_after_flush: bool = False

    def __init__(
        self, driver: Driver, settings: AllocatorSettings, *, total_memory: int | None, limit: int | None, device: int
    ) -> None:
        super().__init__(driver, total_memory)
        self.device = device
        self.retries = self.ooms = self.rejections = self.syncs = 0
        self._pending: dict[int, Block] = {}
        fraction = settings.per_process_memory_fraction
        if limit is None and fraction < 1 and total_memory is not None:
            limit = int(fraction * total_memory)
        self.limit = limit
        self.apply(settings)

    def apply(self, settings: AllocatorSettings) -> None:
        """Put settings into force; what is in memory stays as it is."""
        self.settings = settings
        split = settings.max_split_size
        self.max_split_size = split if split is not None else sizes.NEVER
        self.large_segment_size = settings.large_segment_size
        self._expand = settings.expandable_segments
        self._collects = settings.garbage_collection_threshold > 0 and self.limit is not None

    def set_limit(self, limit: int | None) -> None:
        """Cap the reserved bytes from now on; `None` takes the cap away."""
        self.limit = limit
        self.apply(self.settings)

    def set_pool(self, pool: PoolId, *, in_use: bool = True, no_split: bool = False, use_on_oom: bool = False) -> None:
        """Say how a private pool behaves; one that is not in use any more gives its memory back when the cache does."""
        group = self.group(pool)
        group.in_use, group.no_split, group.use_on_oom = in_use, no_split, use_on_oom

    def complete(self, address: int) -> bool:
        """Let a pending block become free: the other streams have finished. False when it is not pending (any more)."""
        block = self._pending.pop(address, None)
        if block is None:
            return False
        for tally in (block.shelf.tally, self.total):
            tally.settle(block.size, block.requested)
        self.settle(block)
        return True

    def complete_all(self) -> None:
        """Let every pending block become free."""
        for address in list(self._pending):
            self.complete(address)

    def empty_cache(self) -> None:
        """Wait for the other streams, then give every segment without live blocks back to the driver."""
        self.syncs += 1
        self.complete_all()
        self.release_pool(self.default.large)
        self.release_pool(self.default.small)
        for group in self.groups.values():
            if not group.in_use:
                self.release_pool(group.small)
                self.release_pool(group.large)

    # Finding memory

    def _pass_growing(self, keys: list[int], index: int) -> int:
        """Return where the best fit is, on a shelf that also has blocks of expandable segments."""
        blocks, end = self.blocks, len(keys)
        if index == end:
            return index
        block = blocks[keys[index] & ADDRESS_MASK]
        if not self._expand:
            # Switched off since: such blocks are left alone.
            while block.segment is not None:
                index += 1
                if index == end:
                    break
                block = blocks[keys[index] & ADDRESS_MASK]
            return index
        # The fit is judged by what a block could grow to.
        while block.segment is not None and index + 1 < end:
            following = blocks[keys[index + 1] & ADDRESS_MASK]
            if _can_grow_to(following) >= _can_grow_to(block):
                break
            block = following
            index += 1
        return index

    def _get_more(self, shelf: Shelf, plan: Plan) -> Block:
        """Return a block, on no shelf, when no free one fits: everything PyTorch does before it gives up."""
        rounded = plan[0]
        segment = sizes.segment_size(rounded, self.large_segment_size)
        if self.settings.throw_on_cudamalloc_oom and self._over_limit(segment):
            self.rejections += 1
            raise out_of_memory(self, segment)
        if self._collects:
            self._collect_garbage()
        block = self._new_memory(shelf, rounded, segment) or self._borrow(shelf, plan)
        if block is None and self._release_oversize(shelf, rounded):
            block = self._new_memory(shelf, rounded, segment)
        if block is None:
            self.empty_cache()
            if self.search_after_flush:
                block = self._search(shelf, plan)
        if block is None:
            self.retries += 1
            block = self._new_memory(shelf, rounded, segment)
        if block is None:
            self.ooms += 1
            raise out_of_memory(self, segment)
        return block

    def _over_limit(self, segment: int) -> bool:
        return self.limit is not None and self.reserved + segment > self.limit

    def _new_memory(self, shelf: Shelf, rounded: int, segment: int) -> Block | None:
        if self._over_limit(segment):
            return None
        if self._expand and not shelf.pool.group.custom:
            return self.grow(shelf, rounded)
        return self.add_segment(shelf, segment)

    def _borrow(self, shelf: Shelf, plan: Plan) -> Block | None:
        """Take a free block of a private pool that was offered as a last resort."""
        if shelf.pool.group is not self.default:
            return None
        for group in self.groups.values():
            if group.use_on_oom:
                block = self._search((group.small if shelf.pool.small else group.large).shelf(shelf.stream), plan)
                if block is not None:
                    return block
        return None

    def _search(self, shelf: Shelf, plan: Plan) -> Block | None:
        """Take the best fit from a shelf."""
        keys = shelf.keys
        index = bisect_left(keys, plan[1])
        if shelf.grows:
            index = self._pass_growing(keys, index)
        return self.blocks[keys.pop(index) & ADDRESS_MASK] if index < len(keys) and keys[index] < plan[2] else None

    def _release_oversize(self, shelf: Shelf, rounded: int) -> bool:
        """Give back the smallest oversize block that is large enough, or several; false when that is not enough."""
        if self.settings.max_split_size is None:
            return False
        wanted = max(rounded, self.max_split_size)
        index = bisect_left(shelf.keys, wanted << ADDRESS_BITS)
        if index < len(shelf.keys):
            block = self.blocks[shelf.keys[index] & ADDRESS_MASK]
            if block.segment is None:
                self.release(block)
                return True
        released = 0
        for key in shelf.keys[:index][::-1]:
            block = self.blocks[key & ADDRESS_MASK]
            if released >= wanted or block.size < self.max_split_size:
                break
            if block.segment is None:
                released += block.size
                self.release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Give back free segments that have gone unused the longest, down to the threshold."""
        assert self.limit is not None  # noqa: S101 - without a cap nothing is collected
        target = self.reserved - int(self.settings.garbage_collection_threshold * self.limit)
        pool = self.default.large
        idle = [block for block in self.free_blocks(pool) if not block.is_split] if target > 0 else []
        total_age, count, freed_any = sum(_age(block, pool) for block in idle), len(idle), True
        while target > 0 and freed_any and count:
            threshold, freed_any = total_age / count, False
            for block in list(idle):
                age = _age(block, pool)
                if block.segment is None and age >= threshold:
                    idle.remove(block)
                    total_age, count, freed_any = total_age - age, count - 1, True
                    target -= block.size
                    self.release(block)


def _age(block: Block, pool: Pool) -> int:
    return pool.searches - block.age_base


def _can_grow_to(block: Block) -> int:
    after = block.next
    return block.size + after.size if after is not None and after.state == UNMAPPED else block.size
