"""The model of PyTorch's CUDA caching allocator: the same blocks for the same requests, to the last tie-break.

    allocator = Allocator(AllocatorSettings.parse("max_split_size_mb:128"), total_memory=24 * GiB)
    address = allocator.malloc(100 * MiB)
    allocator.free(address)
    allocator.stats()["reserved_bytes"]["all"]["peak"]

It knows nothing of time: work on other streams that still uses a freed block ends when `complete` says so.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import InvalidValueError

from . import sizes
from .blocks import ADDRESS_BITS, ADDRESS_MASK, ALLOCATED, DEFAULT_POOL, FREE, PENDING, Block
from .counters import Level, named_level, nested
from .driver import TopDownDriver
from .oom import ModelOutOfMemoryError
from .reserve import Reserve
from .settings import AllocatorSettings
from .snapshot import segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .blocks import PoolId
    from .driver import Driver
    from .sizes import Plan

_PLANS_KEPT = 1 << 16


class Allocator(Reserve):
    """One device's caching allocator.

    Args:
        settings: PyTorch's settings; by default its defaults.
        total_memory: bytes of the device; `None` when there is no end to it.
        limit: bytes that may be reserved, or `None` for what the settings' memory fraction leaves.
        driver: what segments come from; by default `TopDownDriver(total_memory)`.
        device: PyTorch's index, for messages and snapshots.
        search_after_flush: whether a request looks at the freed blocks once more after everything was flushed, as
            PyTorch 2.13 and earlier do not.
        finish_events: whether all other streams are taken to have finished at the next request; otherwise only
            `complete` tells that one has.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        total_memory: int | None = None,
        limit: int | None = None,
        driver: Driver | None = None,
        device: int = 0,
        search_after_flush: bool = False,
        finish_events: bool = False,
    ) -> None:
        super().__init__(
            driver if driver is not None else TopDownDriver(total_memory),
            settings or AllocatorSettings(),
            total_memory=total_memory,
            limit=limit,
            device=device,
        )
        self.search_after_flush = search_after_flush
        self.finish_events = finish_events
        self.oversize_allocations = Level()
        self._plans: dict[int, Plan] = {}
        self._first_max_split = self.settings.max_split_size

    def set_settings(self, settings: AllocatorSettings | str) -> None:
        """Change the settings of the running allocator; a string has the effect of PyTorch's run-time call.

        Raises:
            InvalidValueError: the string is not understood.
        """
        super().apply(self.settings.then(settings) if isinstance(settings, str) else settings)
        self._plans.clear()

    def _plan(self, size: int) -> Plan:
        if len(self._plans) >= _PLANS_KEPT:
            self._plans.clear()
        plan = self._plans[size] = sizes.plan(size, self.settings, self.default)
        return plan

    # What PyTorch calls

    def malloc(  # noqa: C901 - the hot path: calls would cost as much as what they do
        self, size: int, stream: int = 0, pool: PoolId | None = None
    ) -> int:
        """Return the address of a new allocation; 0 for no bytes.

        Args:
            size: bytes.
            stream: handle of the stream it is made on.
            pool: id of a private pool, or `None` for the default one.

        Raises:
            ModelOutOfMemoryError: nothing helped; the text is what PyTorch would say.
            InvalidValueError: the size is negative.
        """
        plan = self._plans.get(size)
        if plan is None:
            if size <= 0:
                if size:
                    raise InvalidValueError(f"a size of {size} bytes cannot be allocated; sizes are 0 or more")
                return 0
            plan = self._plan(size)
        rounded, floor, ceiling, keep, half, tally = plan
        if pool is not None and pool != DEFAULT_POOL:
            group = self.group(pool)
            half = group.small if half.small else group.large
            if group.no_split:
                keep = sizes.NEVER
            elif group.custom:
                keep = sizes.remainder(rounded, self.settings.max_split_size)
        if self._pending and self.finish_events:
            self.complete_all()
        try:
            shelf = half.shelves[stream]
        except KeyError:
            shelf = half.shelf(stream)
        keys = shelf.keys
        if self._collects:
            half.searches += 1
        index = bisect_left(keys, floor)
        if shelf.grows:
            index = self._pass_growing(keys, index)
        if index < len(keys) and (key := keys[index]) < ceiling:
            block = self.blocks[key & ADDRESS_MASK]
            del keys[index]
        else:
            block = self._get_more(shelf, plan)
            shelf = block.shelf
        held = block.size
        total = self.total
        rest = held - rounded
        if rest >= keep:
            spare = self._spare
            tail = spare.pop() if spare else Block()
            address = block.address + rounded
            after = block.next
            tail.address, tail.size, tail.requested, tail.state = address, rest, block.requested, FREE
            tail.prev, tail.next, tail.shelf, tail.segment = block, after, shelf, block.segment
            tail.age_base = half.searches
            if after is not None:
                after.prev = tail
            block.next = tail
            block.size = held = rounded
            self.blocks[address] = tail
            insort(shelf.keys, rest << ADDRESS_BITS | address)
            if block.segment is None:
                if after is None and block.prev is None:
                    self.count_split(tally, 1, rest)
                else:
                    tally.split_size -= rounded
                    total.split_size -= rounded
        elif block.segment is None and (block.next is not None or block.prev is not None):
            self.count_split(tally, -1, -held)
        block.requested = size
        block.state = ALLOCATED
        tally.count_gained += 1
        tally.size_gained += held
        tally.asked_gained += size
        tally.count += 1
        tally.size += held
        tally.asked += size
        if tally.count > tally.count_peak:
            tally.count_peak = tally.count
        if tally.size > tally.size_peak:
            tally.size_peak = tally.size
        if tally.asked > tally.asked_peak:
            tally.asked_peak = tally.asked
        total.count += 1
        total.size += held
        total.asked += size
        if total.count > total.count_peak:
            total.count_peak = total.count
        if total.size > total.size_peak:
            total.size_peak = total.size
        if total.asked > total.asked_peak:
            total.asked_peak = total.asked
        if self._pending:
            tally.note_active()
            total.note_active()
        if held >= self.max_split_size:
            self.oversize_allocations.change(1)
        return block.address

    def free(self, address: int) -> None:
        """Free an allocation; one that another stream uses stays pending until `complete`. Address 0 is ignored.

        Raises:
            InvalidValueError: nothing is allocated there.
        """
        block = self.blocks.get(address)
        if block is None or block.state != ALLOCATED:
            if address:
                raise InvalidValueError(f"nothing is allocated at {address:#x}; it may have been freed before")
            return
        if block.streams:
            self.defer(address)
            return
        tally, total, size, asked = block.shelf.tally, self.total, block.size, block.requested
        tally.count -= 1
        tally.size -= size
        tally.asked -= asked
        total.count -= 1
        total.size -= size
        total.asked -= asked
        if size >= self.max_split_size:
            self.oversize_allocations.change(-1)
        self.settle(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Note that another stream uses an allocation: when it is freed it stays pending until `complete`.

        Raises:
            InvalidValueError: nothing is allocated there.
        """
        block = self._allocated(address)
        if stream != block.shelf.stream:
            block.streams = (block.streams or set()) | {stream}

    def defer(self, address: int) -> None:
        """Free an allocation, but let it stay pending until `complete`, whether or not a stream was recorded.

        Raises:
            InvalidValueError: nothing is allocated there.
        """
        block = self._allocated(address)
        for tally in (block.shelf.tally, self.total):
            tally.defer(block.size, block.requested)
        if block.size >= self.max_split_size:
            self.oversize_allocations.change(-1)
        block.state = PENDING
        block.streams = None
        self._pending[address] = block

    # What is there

    def stats(self) -> dict[str, Any]:
        """Return the counters in the format of `torch._C._cuda_memoryStats`."""
        split = self._first_max_split
        return nested(self.total, self.small, self.large) | {
            "oversize_allocations": named_level(self.oversize_allocations),
            "oversize_segments": named_level(self.oversize_segments),
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_oom_rejections": self.rejections,
            "num_sync_all_streams": self.syncs,
            "num_device_alloc": self.device_allocations,
            "num_device_free": self.device_frees,
            "max_split_size": -1 if split is None else split,
            "reserved_bytes_by_private_pools": {
                group.id: {
                    "all": named_level(group.reserved),
                    "small_pool": named_level(group.small.reserved),
                    "large_pool": named_level(group.large.reserved),
                }
                for group in self.groups.values()
                if group is not self.default
            },
        }

    def reset_peaks(self) -> None:
        """Let every peak be what is there now."""
        for tally in (self.total, self.small, self.large):
            tally.reset_peaks()
        for level in self._levels():
            level.reset_peak()

    def reset_totals(self) -> None:
        """Forget what was ever gained and lost, and how often memory was short."""
        for tally in (self.total, self.small, self.large):
            tally.reset_totals()
        for level in self._levels():
            level.reset_totals()
        self.retries = self.ooms = self.rejections = self.syncs = self.device_allocations = self.device_frees = 0

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the segments with their blocks in the format of `torch.cuda.memory_snapshot()`."""
        return segments(self, self.device)

    def _levels(self) -> Iterator[Level]:
        yield from (self.oversize_allocations, self.oversize_segments)
        for group in self.groups.values():
            yield from (group.reserved, group.small.reserved, group.large.reserved)

    def _allocated(self, address: int) -> Block:
        block = self.blocks.get(address)
        if block is None or block.state != ALLOCATED:
            raise InvalidValueError(f"nothing is allocated at {address:#x}; it may have been freed before")
        return block


__all__ = ["Allocator", "ModelOutOfMemoryError"]
