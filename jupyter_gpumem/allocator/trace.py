"""A recorded trace as the few numbers that a replay needs.

PyTorch's events say what the program asked for and what the allocator did about it. The first become operations; the
second (segments, failures) are kept aside as what a replay is checked against, except for two things that the program
also asks for and that leave no event of their own: `empty_cache()`, and the end of a private pool.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .blocks import PoolId
    from .settings import AllocatorSettings

DEFER, COMPLETE, EMPTY, FAIL, END_POOL, CHANGE = range(6)
"""What happens beside plain allocations and frees: a free that another stream delays, its completion, `empty_cache()`,
a request that failed when it was recorded, a private pool that has lost its owner, and other settings."""

ALLOC, FREE, MAP, UNMAP = range(4)
"""What the recorded allocator did with the driver."""

SPECIAL = 1 << 62

LARGEST = 1 << 60
"""PyTorch refuses larger requests at once."""


@dataclass(slots=True)
class Trace:
    """What one device's allocator was asked for.

    Attributes:
        requests: distinct `(size, stream, pool)`; pool is `None` for the default one.
        ops: an allocation as the index of its request; the free of allocation k as `~k`; SPECIAL for anything else.
        special: `(position, kind, number)` of what SPECIAL stands for; see DEFER and the rest. The number is an
            allocation, a request, or an index into `pools` or `changes`.
        start: `(address, size, stream, pool)` of what was alive when the trace begins: the first allocations.
        addresses: where the recorded allocations lay, `start` included.
        events: the index in the recorded trace of each allocation; -1 for those of `start`.
        failures: the index in the recorded trace of each FAIL.
        segments: `(position, kind, address, size)` of what was done with the driver during `ops[position]`.
        custom: private pools that got segments although new memory was mapped into growing ones: they have an allocator
            of their own.
        streams: the stream of each of `segments`.
        changes: the settings string of each CHANGE, as the program handed it to PyTorch.
        prompt: allocations whose free another stream delayed, as it did with fewer than half of the same size and
            stream: that was a hiccup of the recorded run. The others of the kind were free by the next request.
        alive: addresses of what was allocated in the trace and still is at its end.
        reserved: bytes held from the driver at the start.
        highest: the most that was ever held.
        total: how many recorded events this was made from.
        notes: what makes the trace less than certain, one sentence each.
    """

    requests: list[tuple[int, int, PoolId | None]] = field(default_factory=list)
    ops: array[int] = field(default_factory=lambda: array("q"))
    special: list[tuple[int, int, int]] = field(default_factory=list)
    start: list[tuple[int, int, int, PoolId | None]] = field(default_factory=list)
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    events: array[int] = field(default_factory=lambda: array("q"))
    failures: list[int] = field(default_factory=list)
    segments: list[tuple[int, int, int, int]] = field(default_factory=list)
    pools: list[PoolId] = field(default_factory=list)
    custom: set[PoolId] = field(default_factory=set)
    streams: list[int] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    prompt: frozenset[int] = frozenset()
    alive: set[int] = field(default_factory=set)
    reserved: int = 0
    highest: int = 0
    total: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under what a trace was recorded; needed to tell a shortage of memory from a call of `empty_cache()`.

    Attributes:
        settings: the allocator settings, at the start where they changed.
        limit: bytes that could be reserved, or `None` without a cap.
        total_memory: bytes of the device, when known.
        outside: bytes of the device that were not this allocator's, as far as known.
        changes: `(index, string)` of each change: the first event after it, and what PyTorch was handed.
    """

    settings: AllocatorSettings
    limit: int | None = None
    total_memory: int | None = None
    outside: int = 0
    changes: tuple[tuple[int, str], ...] = ()


def add_start(trace: Trace, blocks: Sequence[tuple[int, int, int, PoolId | None]]) -> None:
    """Add allocations that live through the whole trace, in front of those that are only freed in it."""
    extra = len(blocks)
    trace.start[:0] = blocks
    trace.addresses = array("Q", [block[0] for block in blocks]) + trace.addresses
    trace.events = array("q", [-1] * extra) + trace.events
    trace.ops = array("q", [op if op >= 0 else op - extra for op in trace.ops])
    trace.special = [
        (position, kind, number + extra if kind in {DEFER, COMPLETE} else number)
        for position, kind, number in trace.special
    ]
    trace.prompt = frozenset(number + extra for number in trace.prompt)
