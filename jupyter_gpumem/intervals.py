"""Intervals that are measured, and what is known of each device inside one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from .records import NOTHING_YET, Counters
from .units import minus

if TYPE_CHECKING:
    from .devices import Backend
    from .peaks import Peaks

Key: TypeAlias = "tuple[Backend, int]"

UNSEEN_RESET = "the peak counter was reset out of our sight"
RACE = "another thread allocated and freed at the very moment a measurement began"


@dataclass(slots=True)
class Account:
    """What the ledger remembers of one device.

    `user` holds the maxima that the user would see had we never reset; `None` when the counters themselves still show
    them. `last` are the peaks as last read. `retries`, `ooms`, `count` and `size` are what the user's own resets of the
    accumulated counts have wiped out so far, less what is kept out of everybody's numbers.
    """

    user: Peaks | None = None
    last: Peaks = field(default_factory=dict)
    retries: int = 0
    ooms: int = 0
    count: int = 0
    size: int = 0


@dataclass(slots=True)
class Span:
    """One device inside one interval: how it began, the highest peaks folded in so far, and any doubt about them."""

    start: Counters
    peak_allocated: int | None = 0
    peak_reserved: int | None = 0
    doubt: str | None = None
    first_use: bool = False
    end: Counters = NOTHING_YET


class Interval:
    """A measurement that is open in the ledger: one span for each device, created when the device is first seen.

    Args:
        only: the labels of the devices that it covers; all without it.
    """

    __slots__ = ("__weakref__", "only", "spans")

    def __init__(self, only: frozenset[str] | None = None) -> None:
        self.only = only
        self.spans: dict[Key, Span] = {}

    def covers(self, backend: Backend, index: int) -> bool:
        """Whether the device belongs to this interval."""
        return self.only is None or f"{backend.kind}:{index}" in self.only


def check_totals(span: Span) -> None:
    """Doubt a peak below the average allocation: at least one allocation was that large, so the peak was too.

    Counts that fell were reset out of our sight: then nothing can be said of them.
    """
    count = minus(span.end.allocation_count, span.start.allocation_count)
    size = minus(span.end.allocation_bytes, span.start.allocation_bytes)
    if count is not None and count < 0:
        unknown = {"retries": None, "ooms": None, "allocation_count": None, "allocation_bytes": None}
        span.start = replace(span.start, **unknown)
    elif count and size and span.peak_allocated is not None and span.peak_allocated * count < size:
        span.doubt = span.doubt or UNSEEN_RESET


def highest(a: int | None, b: int | None) -> int | None:
    """Return the larger of two numbers, or `None` if one of them is not known."""
    return None if a is None or b is None else max(a, b)


def plus(a: int | None, b: int) -> int | None:
    """Return a sum, or `None` if it is not known of what."""
    return None if a is None else a + b
