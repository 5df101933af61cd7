"""Making a trace out of recorded events."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import RecordingError

from . import sizes
from .blocks import DEFAULT_POOL
from .trace import (
    ALLOC,
    CHANGE,
    COMPLETE,
    DEFER,
    EMPTY,
    END_POOL,
    FAIL,
    FREE,
    LARGEST,
    MAP,
    SPECIAL,
    UNMAP,
    Trace,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .blocks import PoolId
    from .trace import Circumstances

_SEGMENT = {"segment_alloc": ALLOC, "segment_free": FREE, "segment_map": MAP, "segment_unmap": UNMAP}
_GIVES = {ALLOC: 1, MAP: 1, FREE: -1, UNMAP: -1}
_START = 1 << 40  # numbers of allocations that were alive at the start, until they are known to be first


def compile_trace(
    events: Sequence[dict[str, Any]], circumstances: Circumstances, *, reserved: int = 0, pools: Any = None
) -> Trace:
    """Return the operations of a recorded trace.

    Args:
        events: PyTorch's trace entries of one device, oldest first.
        circumstances: what was in force.
        reserved: bytes that the allocator held before the first event.
        pools: a function from an address to the id of its private pool (or `None`), for traces that do not tell.

    Raises:
        RecordingError: an event is not of PyTorch's format.
    """
    compiler = _Compiler(events, circumstances, reserved, pools)
    try:
        compiler.run()
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise RecordingError(f"an event of the trace is malformed: {error!r:.80}; record again") from error
    return compiler.finish()


class _Compiler:
    def __init__(
        self, events: Sequence[dict[str, Any]], circumstances: Circumstances, reserved: int, pools: Any
    ) -> None:
        self.events, self.circumstances, self.pool_of = events, circumstances, pools
        self.trace = Trace(reserved=reserved, total=len(events))
        self.live: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.late: list[int] = []
        self.window: list[tuple[int, int, int]] = []
        self.released = self.short = self.delayed = False
        self.reserved = self.before_release = reserved
        self.release_at = 0
        self.requests: dict[tuple[int, int, PoolId | None], int] = {}
        self.orphans = 0
        self.highest = self.trace.highest = reserved + self._highest_rise()

    def _highest_rise(self) -> int:
        level = highest = 0
        for event in [event for event in self.events if event.get("action") in _SEGMENT]:
            level += _GIVES[_SEGMENT[event["action"]]] * event["size"]
            highest = max(highest, level)
        return highest

    def run(self) -> None:
        """Go through the events once."""
        index = 0
        for at, text in self.circumstances.changes:
            index = self._run(index, at)
            self._changed(text)
        self._run(index, len(self.events))
        if self.late or self.released:
            self._before_request()
        self.trace.requests = list(self.requests)
        self.trace.alive = self.live.keys() | self.waiting.keys()

    def _run(self, index: int, end: int) -> int:
        events = self.events
        while index < end:
            event = events[index]
            action = event["action"]
            if action == "alloc":
                self._allocated(index, event)
            elif action == "free_requested":
                index += self._freed(index, event)
            elif action == "free_completed":
                self._completed(event)
            elif action in _SEGMENT:
                self._segment(index, _SEGMENT[action], event)
            elif action == "oom":
                self._failed(index, event)
            index += 1
        return index

    def _changed(self, text: str) -> None:
        if self.late or self.released or self.short:
            self._before_request()
        self._special(CHANGE, len(self.trace.changes))
        self.trace.changes.append(text)
        now = self.circumstances.settings.then(text)
        self.circumstances = dataclasses.replace(self.circumstances, settings=now)

    def _allocated(self, index: int, event: dict[str, Any]) -> None:
        trace = self.trace
        if self.late or self.released or self.short:
            self._before_request()
        size, address = event["size"], event["addr"]
        if not 0 <= size < LARGEST:
            raise RecordingError(f"event {index} allocates {size} bytes: not possible, the file is damaged")
        if address in self.live:
            self.orphans += 1
        self.live[address] = len(trace.addresses)
        if self.window:
            self._attach()
        trace.ops.append(self._request(event, address))
        trace.addresses.append(address)
        trace.events.append(index)
        if self.late:
            self._complete_late()

    def _request(self, event: dict[str, Any], address: int) -> int:
        plain = self.pool_of is None and "pool_id" not in event
        request = (event["size"], event.get("stream", 0), None if plain else self._pool(event, address))
        number = self.requests.get(request)
        if number is None:
            number = self.requests[request] = len(self.requests)
        return number

    def _freed(self, index: int, event: dict[str, Any]) -> int:
        """Note a free; returns how many of the following events belong to it."""
        if self.late or self.released:
            self._before_request()
        address = event["addr"]
        allocation = self.live.pop(address, None)
        if allocation is None:
            allocation = self._alive_at_start(event, address)
        if index + 1 < len(self.events):
            following = self.events[index + 1]
            if following["action"] == "free_completed" and following["addr"] == address:
                self.trace.ops.append(~allocation)
                return 1
        self._special(DEFER, allocation)
        self.waiting[address] = allocation
        self.delayed = True
        return 0

    def _pool(self, event: dict[str, Any], address: int) -> PoolId | None:
        pool = event.get("pool_id")
        if pool is None and self.pool_of is not None:
            pool = self.pool_of(address)
        return None if pool is None or pool == DEFAULT_POOL or list(pool) == [0, 0] else (int(pool[0]), int(pool[1]))

    def _alive_at_start(self, event: dict[str, Any], address: int) -> int:
        start = self.trace.start
        start.append((address, event["size"], event.get("stream", 0), self._pool(event, address)))
        return _START + len(start) - 1

    def _completed(self, event: dict[str, Any]) -> None:
        address = event["addr"]
        allocation = self.waiting.pop(address, None)
        if allocation is not None:
            self.late.append(allocation)
        elif address in self.live:
            # Its request was not recorded (skipped actions): take it as a plain free.
            self.trace.ops.append(~self.live.pop(address))
            self.orphans += 1
        else:
            # The request fell out of the ring, this did not: it was alive, or at least in the way.
            self.trace.ops.append(~self._alive_at_start(event, address))

    def _segment(self, index: int, kind: int, event: dict[str, Any]) -> None:
        size = event["size"]
        if not 0 <= size < LARGEST:
            raise RecordingError(f"event {index} has a segment of {size} bytes: not possible, the file is damaged")
        pool = self._pool(event, event["addr"])
        if kind in {FREE, UNMAP}:
            if not self.released:
                self.released, self.before_release, self.release_at = True, self.reserved, index
            if pool is not None and pool not in self.trace.pools:
                # Only a pool without an owner gives memory back.
                self._special(END_POOL, len(self.trace.pools))
                self.trace.pools.append(pool)
        elif self.released:
            self._explain(index)
        elif not self.short:
            self._complete_late()
        if pool is not None and kind == ALLOC and self.circumstances.settings.expandable_segments:
            self.trace.custom.add(pool)
        self.reserved += _GIVES[kind] * size
        self.window.append((kind, event["addr"], size))
        self.trace.streams.append(event.get("stream", 0))

    def _explain(self, index: int) -> None:
        """Decide whether the request that follows explains why memory was given back; if not, the user did it."""
        size = self._next_request(index)
        reason = None if size is None else self._reason(size)
        if reason is None:
            self._before_request()
            return
        self.released = False
        if reason == "short":
            self.short = True
            self._wait_for_flush()
        elif self.late:
            self._complete_late()

    def _wait_for_flush(self) -> None:
        """Where streams wait for each other, let the last free before a flush have been completed by the flush.

        Its events look the same if it was free at once; but then the request did not want it, and it does not matter.
        """
        requested, completed = self.events[max(0, self.release_at - 2)], self.events[self.release_at - 1]
        pair = requested["action"] == "free_requested" and completed["action"] == "free_completed"
        if self.delayed and pair and requested["addr"] == completed["addr"] and self.trace.ops[-1] < 0:
            allocation = ~self.trace.ops.pop()
            self._special(DEFER, allocation)
            self.late.append(allocation)

    def _next_request(self, index: int) -> int | None:
        for event in self.events[index : index + 64]:
            if event["action"] in {"alloc", "oom"}:
                return int(event["size"])
            if event["action"] not in _SEGMENT:
                return None
        return None

    def _reason(self, size: int) -> str | None:
        here = self.circumstances
        segment = sizes.segment_size(
            sizes.round_size(size, here.settings.roundup_power2_divisions), here.settings.large_segment_size
        )
        wanted = self.before_release + segment
        if here.limit is not None and wanted > here.limit:
            return "short"
        # The device itself was short: it had held as much as the highest level ever seen, so not below that. A level
        # below half of the device is no shortage either, unless most of it is known to be taken by others.
        room = None if here.total_memory is None else here.total_memory - here.outside
        if wanted > self.highest and (room is None or wanted > (room if here.outside else room / 2)):
            return "short"
        threshold = here.settings.garbage_collection_threshold
        if threshold and here.limit is not None and self.before_release > int(threshold * here.limit):
            return "collected"
        return None

    def _failed(self, index: int, event: dict[str, Any]) -> None:
        self._special(FAIL, self._request(event, -1))
        self.trace.failures.append(index)
        self.released = self.short = False
        self._complete_late()

    def _before_request(self) -> None:
        """Put down what happened since the last operation, now that the next one is known."""
        if self.short:
            self.short = False
            return  # what completed did so inside of the request: it comes after it
        self._complete_late()
        if self.released:
            self.released = False
            self._special(EMPTY, 0)

    def _complete_late(self) -> None:
        for allocation in self.late:
            self._special(COMPLETE, allocation)
        self.late.clear()

    def _special(self, kind: int, number: int) -> None:
        if kind in {EMPTY, FAIL}:
            self._attach()
        self.trace.special.append((len(self.trace.ops), kind, number))
        self.trace.ops.append(SPECIAL)

    def _attach(self) -> None:
        """What was done with the driver belongs to the operation that comes now."""
        position = len(self.trace.ops)
        self.trace.segments.extend((position, *entry) for entry in self.window)
        self.window.clear()

    def finish(self) -> Trace:
        """Return the trace with the allocations that were alive at the start in front."""
        trace, alive = self.trace, len(self.trace.start)
        del trace.streams[len(trace.segments) :]  # of what belongs to a request after the last event
        if self.orphans:
            trace.notes.append(f"{self.orphans} events have lost their counterparts (skipped actions, or torn ring)")
        if alive:
            _number_start_first(trace)
        trace.prompt = _prompt(trace)
        return trace


def _prompt(trace: Trace) -> frozenset[int]:
    """Return which delayed frees are the exception among those of the same request."""
    delayed = [number for _, kind, number in trace.special if kind == DEFER]
    if not delayed:
        return frozenset()
    requests = [op for op in trace.ops if 0 <= op < SPECIAL]
    first = len(trace.start)
    made, late = Counter(requests), Counter(requests[number - first] for number in delayed if number >= first)
    return frozenset(
        number
        for number in delayed
        if number >= first and 2 * late[requests[number - first]] < made[requests[number - first]]
    )


def _number_start_first(trace: Trace) -> None:
    alive = len(trace.start)

    def renumber(allocation: int) -> int:
        return allocation - _START if allocation >= _START else allocation + alive

    trace.ops = array("q", [op if op >= 0 else ~renumber(~op) for op in trace.ops])
    trace.special = [
        (position, kind, renumber(number) if kind in {DEFER, COMPLETE} else number)
        for position, kind, number in trace.special
    ]
    trace.addresses = array("Q", [block[0] for block in trace.start]) + trace.addresses
    trace.events = array("q", [-1] * alive) + trace.events
