"""What devices and the recorder are in now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .base import Counters, Device, DriverMemory, Record

if TYPE_CHECKING:
    from .oom import OomIncident


@dataclass(frozen=True, slots=True)
class Fragmentation(Record):
    """How the reserved but unallocated memory of a device lies.

    Attributes:
        returnable: bytes that emptying the cache would give back to the driver.
        stranded: bytes it would not, because live blocks share their segments.
        private: unallocated bytes of private pools (CUDA graphs, `MemPool`), which only their owner can reuse.
        largest_free: the largest request that fits into cached memory now, without asking the driver.
        external: 1 - largest free block / free bytes, both summed over pools and streams (which never serve each
            other); expandable segments count as what they can grow to. `None` when nothing is free.
        segments, blocks: how many there are.
    """

    returnable: int
    stranded: int
    private: int
    largest_free: int
    external: float | None
    segments: int
    blocks: int


@dataclass(frozen=True, slots=True)
class DeviceStatus(Record):
    """One device now: layers that add up to the card.

    Attributes:
        counters: the allocator's counters, or `None` while this process has not used the device.
        driver: the driver's view, or `None` where it cannot be had.
        fragmentation: how the unallocated part lies, or `None` where there is no allocator to ask.
        limit: bytes this process may reserve, when a cap is set.
        held: bytes that `reserve` holds among what is allocated.
    """

    _derived = ("layers", "unallocated_ratio")

    device: Device
    counters: Counters | None
    driver: DriverMemory | None
    fragmentation: Fragmentation | None = None
    limit: int | None = None
    held: int = 0

    @property
    def unallocated_ratio(self) -> float | None:
        """1 - allocated / reserved, or `None` when nothing is reserved."""
        if self.counters is None or not self.counters.reserved or self.counters.allocated is None:
            return None
        return 1 - self.counters.allocated / self.counters.reserved

    @property
    def layers(self) -> tuple[tuple[str, int], ...]:
        """Named parts of the card in a fixed order; with a driver's answer they add up to its total exactly."""
        allocated = (self.counters.allocated if self.counters else 0) or 0
        reserved = (self.counters.reserved if self.counters else 0) or 0
        parts = [("allocated by tensors", allocated - self.held)]
        if self.held:
            parts.append(("held by %gpumem_reserve", self.held))
        if self.fragmentation is not None:
            returnable, private = self.fragmentation.returnable, self.fragmentation.private
            parts.append(("reserved, returnable", returnable))
            if private:
                parts.append(("reserved, private pools", private))
            parts.append(("reserved, stranded", reserved - allocated - returnable - private))
        else:
            parts.append(("reserved, unallocated", reserved - allocated))
        if self.driver is not None:
            if self.driver.process is not None:
                parts.append(("this process outside PyTorch", self.driver.process - reserved))
                parts.append(("other processes", self.driver.used - self.driver.process))
            else:
                parts.append(("outside PyTorch and others", self.driver.used - reserved))
            parts.append(("free", self.driver.free))
        return tuple(parts)


@dataclass(frozen=True, slots=True)
class Status(Record):
    """Every visible device now.

    Attributes:
        devices: one entry for each device.
        settings: the allocator settings in force that differ from PyTorch's defaults.
        versions: the versions that matter to these numbers, such as `{"torch": "2.13.0", "cuda": "13.0"}`.
        missing: why nothing can be said, in one sentence, or `None`.
        sources: where each of the settings comes from: an environment variable, `virtual GPU`, or `this session`.
        last_oom: the last out-of-memory error of this process that was explained, in a notebook also one that ended no
            cell; `None` if there was none.
    """

    devices: tuple[DeviceStatus, ...]
    settings: dict[str, str]
    versions: dict[str, str]
    missing: str | None = None
    sources: dict[str, str] = field(default_factory=dict)
    last_oom: OomIncident | None = None


@dataclass(frozen=True, slots=True)
class VirtualCard(Record):
    """A card that is not there but modelled.

    Attributes:
        capability: compute capability, major and minor.
        context: bytes that a process holds on it outside PyTorch's allocator.
        context_seen: whether that was seen on such a card; otherwise it is assumed.
        used: whether this process has used it.
    """

    device: Device
    capability: tuple[int, int]
    context: int
    context_seen: bool
    used: bool


@dataclass(frozen=True, slots=True)
class VirtualStatus(Record):
    """The virtual GPU of this process.

    Attributes:
        cards: the cards; none while it is off.
        notes: where a value was asked for that was not computed, and what was given for it; a sentence each.
    """

    cards: tuple[VirtualCard, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecorderStatus(Record):
    """Whether allocator events are recorded.

    Attributes:
        running: whether anyone records.
        ours: whether that is a recording of this package.
        events: how many there are, in the running recording or in the one stopped last; `None` without either.
        max_entries: how many are kept; `None` where it is not known.
        stacks: whether the places of allocations are recorded; `None` where it is not known.
    """

    running: bool
    ours: bool
    events: int | None
    max_entries: int | None
    stacks: bool | None
