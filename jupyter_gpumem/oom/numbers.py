"""The numbers of an out-of-memory error, from the state that was kept and, for what that lacks, from the text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyter_gpumem.units import GiB, MiB

if TYPE_CHECKING:
    from jupyter_gpumem.records import OomText

    from .observer import OomState

_DEFAULT_POOL = (0, 0)
_CONTEXT = 600 * MiB
"""What a CUDA context takes, roughly (612 MB on an H200): not worth a verdict."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is known; sizes in bytes, `None` where it is not.

    Attributes:
        request: bytes of the segment that was asked for.
        total, free: of the card.
        limit: the cap on reserved bytes.
        allocated, unallocated: in live tensors; reserved, but in none. Private pools are in both.
        private: reserved by private pools, or, where only the text tells, allocated in them.
        private_free: the part of `unallocated` that lies in private pools.
        others: held by other processes.
        outside: held by this process outside PyTorch's allocator.
        elsewhere: `others` and `outside` together, where the driver does not tell them apart.
        pid: the other process that holds most, where it is named.
        oversubscribed: allocated beyond the card.
        sharing: what counts against the cap besides what is reserved: all of the process, on MPS.
        allocated_known, unallocated_known: whether these were told; where they were not they count as nothing.
    """

    request: int | None
    total: int | None
    free: int | None
    limit: int | None
    allocated: int
    unallocated: int
    private: int = 0
    private_free: int = 0
    others: int | None = None
    outside: int | None = None
    elsewhere: int | None = None
    pid: int | None = None
    oversubscribed: int | None = None
    sharing: int = 0
    allocated_known: bool = True
    unallocated_known: bool = True

    @property
    def reserved(self) -> int:
        """Bytes that the allocator holds."""
        return self.allocated + self.unallocated

    @property
    def room(self) -> int | None:
        """Bytes that could still have been reserved: what the driver has left, and what the cap allows."""
        below_cap = None if self.limit is None else self.limit - self.reserved - self.sharing
        rooms = [room for room in (self.free, below_cap) if room is not None]
        return max(0, min(rooms)) if rooms else None

    @property
    def short(self) -> int | None:
        """Bytes that were missing."""
        return None if self.request is None or self.room is None else max(0, self.request - self.room)


def numbers(text: OomText, state: OomState | None) -> Numbers:
    """Return what is known of an error."""
    return _of_text(text) if state is None else _of_state(text, state)


def _of_state(text: OomText, state: OomState) -> Numbers:
    counters, driver = state.counters, state.driver
    allocated, reserved = counters.allocated or 0, counters.reserved or 0
    total = driver.total if driver is not None else state.device.total or text.total
    others = outside = elsewhere = None
    if driver is not None:
        if driver.process is not None:
            others, outside = driver.used - driver.process, driver.process - reserved
        else:
            elsewhere = driver.used - reserved
    private = [s for s in state.segments or () if tuple(s.get("segment_pool_id", _DEFAULT_POOL)) != _DEFAULT_POOL]
    held = sum(segment["total_size"] for segment in private)
    return Numbers(
        request=state.tried if state.tried is not None else text.requested,
        total=total,
        free=state.free,
        limit=state.limit if state.limit is not None else text.limit,
        allocated=allocated,
        unallocated=reserved - allocated,
        private=held,
        private_free=held - sum(segment.get("allocated_size", 0) for segment in private),
        others=others,
        outside=outside,
        elsewhere=elsewhere,
        pid=_largest(text, reserved)[0],
        oversubscribed=text.oversubscribed,
    )


def _of_text(text: OomText) -> Numbers:
    allocated, unallocated = text.allocated or 0, text.unallocated or 0
    reserved = allocated + unallocated
    known = text.allocated is not None and text.unallocated is not None
    others = outside = elsewhere = pid = None
    if text.platform == "mps":  # there `own` is what lies outside PyTorch's pools
        outside = text.own
    elif text.total is not None and text.free is not None and text.oversubscribed is None:
        used = text.total - text.free
        pid, others = _largest(text, reserved)
        own = text.own if text.own is not None else used - others if others is not None else None
        if own is not None:
            others, outside = others or 0, own - reserved if known else None
        elif known and used >= reserved:
            elsewhere = used - reserved
    return Numbers(
        request=text.requested,
        total=text.total,
        free=text.free,
        limit=text.limit,
        allocated=allocated,
        unallocated=unallocated,
        private=text.private or 0,
        others=others,
        outside=outside,
        elsewhere=elsewhere,
        pid=pid,
        oversubscribed=text.oversubscribed,
        sharing=text.own or 0 if text.platform == "mps" else 0,
        allocated_known=text.allocated is not None,
        unallocated_known=text.unallocated is not None,
    )


def _largest(text: OomText, reserved: int) -> tuple[int | None, int | None]:
    """Return the other process that holds most, and what all others hold.

    In a container the driver gives the numbers of the host's processes, so that our own one may be among them: it is
    the one that holds at least what we have reserved, if nothing else is said to be ours.
    """
    named = [(size, pid) for pid, size in text.processes if size is not None and pid != os.getpid()]
    if text.own is None and named:
        ours = [entry for entry in named if entry[0] >= reserved > 0]
        if ours:
            named.remove(min(ours))
    if not named:
        return None, 0 if text.processes else None
    return max(named)[1], sum(size for size, _ in named)


NOTABLE = GiB
"""Memory outside PyTorch or of others below this is not worth a word of its own, beside a context's `CONTEXT`."""

CONTEXT = _CONTEXT
