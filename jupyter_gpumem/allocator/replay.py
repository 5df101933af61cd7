"""Running a trace through the allocator model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyter_gpumem.records import Record

from .driver import TopDownDriver
from .heap import whole_pages
from .layout import Layout, Step, layout_of
from .model import Allocator
from .oom import ModelOutOfMemoryError
from .process import CALLS, ProcessDriver
from .trace import CHANGE, COMPLETE, DEFER, EMPTY, FAIL

if TYPE_CHECKING:
    from .blocks import Block
    from .settings import AllocatorSettings
    from .trace import Trace


_SMALL_STEP = 7
"""A rise of the reserved peak by less than 1/128 is no notable step."""


@dataclass(frozen=True, slots=True)
class Replay(Record):
    """What one run of a trace through the model came to.

    Attributes:
        peak_allocated, peak_reserved: the highest value of each counter in bytes.
        unallocated_ratio: 1 - allocated / reserved at the moment of the reserved peak; `None` without memory.
        stranded: bytes that `empty_cache()` would not have given back at that moment, though nothing lived in them.
        retries: requests that only succeeded, or failed, after the whole cache was flushed.
        device_allocations, device_frees: calls of the driver; a free waits for the device.
        ooms: requests that failed.
        first_oom: index in the recorded trace of the first event whose request failed; -1 at the start state.
        saved_ooms: requests that failed when they were recorded and found memory here.
        events: how many recorded events were replayed.
        segments: segments held at the end.
        layout: how memory lay at the moment of the reserved peak, if that was asked for.
        step: the last request that raised the reserved peak by a notable step, if that was asked for.
    """

    peak_allocated: int
    peak_reserved: int
    unallocated_ratio: float | None
    stranded: int
    retries: int
    device_allocations: int
    device_frees: int
    ooms: int
    first_oom: int | None
    saved_ooms: int
    events: int
    segments: int
    layout: Layout | None = None
    step: Step | None = None


class Player:
    """One run of a trace through one allocator.

    Args:
        trace: the operations.
        allocator: the model, fresh.
        delays: whether other streams finish exactly when they did; otherwise exceptional delays are left out.
        looks: whether to remember how memory lay at the peak.
    """

    def __init__(self, trace: Trace, allocator: Allocator, *, delays: bool = False, looks: bool = False) -> None:
        self.trace, self.allocator = trace, allocator
        self.addresses: list[int] = []
        self._looks = looks
        self._prompt: frozenset[int] = frozenset() if delays else trace.prompt
        self._waiting: dict[int, int] = {}
        self.failed: list[int] = []
        self.saved = self._tried = 0
        self._peak = self._allocated = self._stranded = self._stepped = 0
        self._layout: Layout | None = None
        self._step: Step | None = None
        for pool in trace.custom:
            allocator.group(pool).custom = True
        # A program that frees something has begun to compute.
        self._interlude = next((at for at, op in enumerate(trace.ops) if op < 0), len(trace.ops))

    def start(self) -> None:
        """Allocate what was alive at the start, in the order of its addresses."""
        placed = dict.fromkeys(range(len(self.trace.start)), 0)
        for number in sorted(placed, key=lambda n: self.trace.start[n][0]):
            _, size, stream, pool = self.trace.start[number]
            try:
                placed[number] = self.allocator.malloc(size, stream, pool)
            except ModelOutOfMemoryError:
                self.failed.append(-1)
            else:
                if self.allocator.total.reserved.peak > self._peak:
                    self._note_peak(placed[number], -1)
        self.addresses = list(placed.values())

    def adopted(self) -> None:
        """Take what was alive at the start as allocated where it lay: the allocator is in that state already."""
        self.addresses = [block[0] for block in self.trace.start]
        if self.allocator.reserved:
            self._note_peak(0, -1)

    def run(self) -> None:
        """Play every operation."""
        position = 0
        for at, kind, number in self.trace.special:
            self._stretch(position, at)
            self.special(kind, number)
            position = at + 1
        self._stretch(position, len(self.trace.ops))

    def _stretch(self, position: int, end: int) -> None:
        """Play plain operations, with what the driver does for itself in between."""
        driver = self.allocator.driver
        if isinstance(driver, ProcessDriver):
            while self._interlude < end:
                stop = max(position, self._interlude)
                self.play(position, stop)
                position = stop
                if driver.begun:
                    driver.keep()
                else:
                    driver.begin()
                self._interlude = (stop // CALLS + 1) * CALLS
        self.play(position, end)

    def play(self, position: int, end: int) -> None:
        """Play the operations from a position up to another; none of them may be special."""
        allocator, requests, addresses = self.allocator, self.trace.requests, self.addresses
        malloc, free, append, events = allocator.malloc, allocator.free, addresses.append, self.trace.events
        reserved = allocator.total.reserved
        peak = self._peak
        ops = iter(self.trace.ops[position:end])
        while True:
            try:
                for op in ops:
                    if op >= 0:
                        append(malloc(*requests[op]))
                        if reserved.peak > peak:
                            self._note_peak(addresses[-1], events[len(addresses) - 1])
                            peak = reserved.peak
                    else:
                        free(addresses[~op])
            except ModelOutOfMemoryError:  # noqa: PERF203 - entered once, not once an operation
                # Nobody knows what the program would have done: the request is left out, and its free with it.
                self.failed.append(self.trace.events[len(addresses)])
                append(0)
            else:
                break

    def special(self, kind: int, number: int) -> None:
        """Play what is neither a plain allocation nor a plain free."""
        if kind == DEFER:
            address = self.addresses[number]
            if number in self._prompt:
                self.allocator.free(address)
            elif address:
                self.allocator.defer(address)
                self._waiting[address] = number
        elif kind == COMPLETE:
            # A flush may have come first, and something else may wait at that address by now.
            if self._waiting.get(self.addresses[number]) == number:
                self.allocator.complete(self.addresses[number])
        elif kind == EMPTY:
            self.allocator.empty_cache()
        elif kind == FAIL:
            self._try(number)
        elif kind == CHANGE:
            self.allocator.set_settings(self.trace.changes[number])
        else:
            self.allocator.set_pool(self.trace.pools[number], in_use=False)

    def _try(self, number: int) -> None:
        """Try a request that failed when it was recorded; what follows in the trace does without it."""
        index = self.trace.failures[self._tried]
        self._tried += 1
        try:
            address = self.allocator.malloc(*self.trace.requests[number])
        except ModelOutOfMemoryError:
            self.failed.append(index)
        else:
            self.saved += 1
            if self.allocator.total.reserved.peak > self._peak:
                self._note_peak(address, index)
            self.allocator.free(address)

    def _note_peak(self, address: int, event: int) -> None:
        """Remember how memory lies now that the request of an address (0: none) has brought it to its peak."""
        allocator = self.allocator
        self._peak = allocator.total.reserved.peak
        self._allocated = allocator.total.size
        self._stranded = stranded(allocator)
        if self._looks:
            self._layout = layout_of(allocator, address, event)
            if self._peak - self._stepped >= self._peak >> _SMALL_STEP:
                self._stepped, self._step = self._peak, self._layout.step

    def result(self) -> Replay:
        """Return what the run came to."""
        allocator = self.allocator
        return Replay(
            peak_allocated=allocator.total.size_peak,
            peak_reserved=allocator.total.reserved.peak,
            unallocated_ratio=1 - self._allocated / self._peak if self._peak else None,
            stranded=self._stranded,
            retries=allocator.retries,
            device_allocations=allocator.device_allocations,
            device_frees=allocator.device_frees,
            ooms=len(self.failed),
            first_oom=self.failed[0] if self.failed else None,
            saved_ooms=self.saved,
            events=self.trace.total,
            segments=len(allocator.segments) + len(allocator.expandable),
            layout=self._layout,
            step=self._step,
        )


def stranded(allocator: Allocator) -> int:
    """Return the free bytes that emptying the cache would not give back to the driver."""
    if len(allocator.groups) == 1 and not allocator.expandable:
        return allocator.total.split_size
    total = 0
    for group in allocator.groups.values():
        for pool in (group.small, group.large):
            for block in allocator.free_blocks(pool):
                total += block.size
                if group is allocator.default or not group.in_use:
                    total -= _returnable(block)
    return total


def _returnable(block: Block) -> int:
    if block.segment is None:
        return 0 if block.is_split else block.size
    start, end = whole_pages(block, block.segment)
    return max(0, end - start)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under what a trace is replayed.

    Attributes:
        total_memory: bytes of the device, or `None` without end.
        outside: bytes of it that others hold.
        limit: bytes that may be reserved, or `None` without a cap.
    """

    total_memory: int | None = None
    outside: int = 0
    limit: int | None = None


def replay(
    trace: Trace, settings: AllocatorSettings, conditions: Conditions, *, looks: bool = False, otherwise: bool = False
) -> Replay:
    """Run a trace under some settings; returns what that came to.

    Args:
        trace: the operations.
        settings: what holds at the start.
        conditions: the device.
        looks: whether to remember how memory lay at the peak.
        otherwise: whether what a recording does not tell about other runs turns out as it otherwise might: the driver
            hands out addresses strictly downwards, not as in a typical process, and every delay of other streams
            happens again.
    """
    run = Player(trace, _allocator(settings, conditions, otherwise=otherwise), looks=looks, delays=otherwise)
    run.start()
    run.run()
    return run.result()


def reserved_at_start(trace: Trace, settings: AllocatorSettings, conditions: Conditions) -> int:
    """Return the bytes that a replay has reserved before the first event, for what was alive then and nothing else."""
    run = Player(trace, _allocator(settings, conditions))
    run.start()
    return run.allocator.reserved


def _allocator(settings: AllocatorSettings, conditions: Conditions, *, otherwise: bool = False) -> Allocator:
    total = conditions.total_memory
    limit = conditions.limit
    if settings.per_process_memory_fraction < 1 and total is not None:
        limit = int(settings.per_process_memory_fraction * total)
    capacity = None if total is None else max(0, total - conditions.outside)
    driver = TopDownDriver(capacity) if otherwise else ProcessDriver(capacity)
    return Allocator(settings, total_memory=total, limit=limit, driver=driver)
