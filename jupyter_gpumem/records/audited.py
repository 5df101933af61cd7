"""What an audit of the fragmentation found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .base import Device, Record

if TYPE_CHECKING:
    from .state import Fragmentation


@dataclass(frozen=True, slots=True)
class PoolAudit(Record):
    """One pool's memory on one stream; neither is ever shared with another. Sizes in bytes.

    Attributes:
        pool_id: PyTorch's id of a private pool (CUDA graphs, `MemPool`), or `(0, 0)` for the default one.
        kind: `small` for requests up to 1 MiB, `large` for others.
        stream: handle of the stream.
        reserved, allocated, free: what the segments hold, what lives in them, and what does not.
        largest_free: the largest free block.
        returnable, stranded: what emptying the cache would give back of the free bytes, and would not.
        external: 1 - largest free block / free bytes; `None` when nothing is free.
        segments: how many there are.
    """

    pool_id: tuple[int, int]
    kind: str
    stream: int
    reserved: int
    allocated: int
    free: int
    largest_free: int
    returnable: int
    stranded: int
    external: float | None
    segments: int

    @property
    def private(self) -> bool:
        """Whether the pool has an owner who alone uses it."""
        return self.pool_id != (0, 0)


@dataclass(frozen=True, slots=True)
class DeviceAudit(Record):
    """How the memory of one device lies.

    Attributes:
        allocated, reserved: the allocator's counters, in bytes.
        fragmentation: how what is reserved but unallocated lies.
        pools: by pool, kind and stream.
        exceeded: whether the common ratio is above the threshold.
        reservations: the names of what `reserve` holds in segments with stranded bytes.
        cached: the names of what `reserve` put into the cache and would go back to the driver with the rest.
    """

    _derived = ("unallocated_ratio", "common_ratio")

    device: Device
    allocated: int
    reserved: int
    fragmentation: Fragmentation
    pools: tuple[PoolAudit, ...]
    exceeded: bool
    reservations: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()

    @property
    def unallocated_ratio(self) -> float | None:
        """1 - allocated / reserved, or `None` when nothing is reserved."""
        return 1 - self.allocated / self.reserved if self.reserved else None

    @property
    def common_ratio(self) -> float | None:
        """The same without what private pools have free: that is no fragmentation, their owners need it again."""
        ratio = self.unallocated_ratio
        return None if ratio is None else ratio - self.fragmentation.private / self.reserved


@dataclass(frozen=True, slots=True)
class Audit(Record):
    """How the memory of every device lies, judged by a threshold.

    Attributes:
        devices: one entry for each device the process uses.
        threshold: the unallocated ratio, without private pools, above which a device's memory counts as fragmented.
        expandable: whether new memory comes as expandable segments.
        before: the same before memory was compacted, or `None` when it was not.
        collected: how many unreachable objects were collected for that.
        missing: why there is nothing to audit, or `None`.
    """

    _derived = ("exceeded", "returned")

    devices: tuple[DeviceAudit, ...]
    threshold: float
    expandable: bool = False
    before: tuple[DeviceAudit, ...] | None = None
    collected: int | None = None
    missing: str | None = None

    @property
    def exceeded(self) -> bool:
        """Whether any device is above the threshold."""
        return any(one.exceeded for one in self.devices)

    @property
    def returned(self) -> int | None:
        """Bytes that compacting gave back to the driver, or `None` when it was not asked for."""
        if self.before is None:
            return None
        return sum(one.reserved for one in self.before) - sum(one.reserved for one in self.devices)
