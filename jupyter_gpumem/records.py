"""The facts this package passes around: frozen, in bytes and seconds, `None` where something is not known.

A record holds numbers and names only: no tensor, frame or namespace can stay alive because a result was kept.
How a record looks is decided in `report`, which registers its renderers here, so that this module stays at the bottom.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Renderer:
    """How one kind of record is shown: a function for each medium, both from the record alone."""

    text: Callable[[Any], str]
    html: Callable[[Any], str]


class Record:
    """Base of the results that users get: one text and one HTML form, and `to_dict()` for JSON."""

    __slots__ = ()
    _derived: ClassVar[tuple[str, ...]] = ()
    _renderers: ClassVar[dict[type, Renderer]] = {}

    def __init_subclass__(cls) -> None:
        # IPython looks for this beside the `__repr__` of the same class, and would prefer that one otherwise.
        cls._repr_pretty_ = Record._repr_pretty_  # type: ignore[method-assign]

    @classmethod
    def rendered_by(cls, text: Callable[[Any], str], html: Callable[[Any], str]) -> None:
        """Register how records of this class are shown."""
        Record._renderers[cls] = Renderer(text, html)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain containers (bytes as `int`, missing as `None`), ready for `json.dump`."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return fields | {name: _plain(getattr(self, name)) for name in self._derived}

    def __str__(self) -> str:
        renderer = self._renderers.get(type(self))
        return renderer.text(self) if renderer else repr(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001 - IPython's signature
        printer.text(str(self))

    def _repr_html_(self) -> str | None:
        renderer = self._renderers.get(type(self))
        return renderer.html(self) if renderer else None


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Device(Record):
    """Which device a number belongs to, as PyTorch numbers it in this process.

    Attributes:
        kind: PyTorch's device type: `cuda` (NVIDIA and ROCm), `xpu`, `mps`, or that of a back end in tests.
        index: PyTorch's index, which `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` shape; not the driver's.
        name: the product name.
        total: bytes of device memory that PyTorch can see.
        uuid, pci_bus_id: identities shared with the driver; the only keys under which the driver is asked.
    """

    kind: str
    index: int
    name: str | None = None
    total: int | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None

    @property
    def label(self) -> str:
        """PyTorch's name for the device, such as `cuda:0`."""
        return f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True)
class Counters(Record):
    """One reading of an allocator's own counters; see the table of words in the README for their meaning.

    `allocation_count` and `allocation_bytes` count every allocation since the process began; the rest are levels, of
    which `live` is the number of allocations that are not freed.
    """

    allocated: int | None = None
    reserved: int | None = None
    active: int | None = None
    requested: int | None = None
    inactive_split: int | None = None
    live: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    retries: int | None = None
    ooms: int | None = None
    allocation_count: int | None = None
    allocation_bytes: int | None = None


NOTHING_YET = Counters(*[0] * len(dataclasses.fields(Counters)))
"""What an allocator that does not exist yet would have counted."""


@dataclass(frozen=True, slots=True)
class DriverMemory(Record):
    """What the driver says of a card.

    Attributes:
        total, used, free: bytes of the whole card, for all processes.
        process: bytes of this process on it, or `None` where the driver does not tell (containers, WSL, MIG).
        source: who answered: `nvml`, or `runtime` for the device's own run-time library.
    """

    total: int
    used: int
    free: int
    process: int | None
    source: str


@dataclass(frozen=True, slots=True)
class DeviceUsage(Record):
    """What one measured piece of code did to one device.

    Attributes:
        start, end: the allocator's counters when the interval began and ended.
        peak_allocated, peak_reserved: the highest value of each counter inside the interval.
        doubt: why the peaks are lower bounds only, or `None` when they are exact.
        driver_start, driver_end: the driver's view at the same moments.
        first_use: the device's context was created inside the interval.
        workspaces: bytes of cuBLAS workspaces that appeared inside the interval and stay for the process.
    """

    _derived = (
        "exact",
        "peak_over_start",
        "reserved_over_start",
        "delta_allocated",
        "delta_reserved",
        "outside_delta",
        "others_delta",
        "elsewhere_delta",
        "allocation_count",
        "retries",
        "ooms",
    )

    device: Device
    start: Counters
    end: Counters
    peak_allocated: int | None
    peak_reserved: int | None
    doubt: str | None = None
    driver_start: DriverMemory | None = None
    driver_end: DriverMemory | None = None
    first_use: bool = False
    workspaces: int | None = None

    @property
    def exact(self) -> bool:
        """Whether the peak is exact; a missing peak is neither exact nor a bound."""
        return self.doubt is None and self.peak_allocated is not None

    @property
    def delta_allocated(self) -> int | None:
        """Bytes of tensors left behind: end minus start."""
        return _minus(self.end.allocated, self.start.allocated)

    @property
    def delta_reserved(self) -> int | None:
        """Bytes that the allocator took from the driver (or gave back, when negative)."""
        return _minus(self.end.reserved, self.start.reserved)

    @property
    def peak_over_start(self) -> int | None:
        """Bytes that were needed on top of what was there at the start."""
        return _minus(self.peak_allocated, self.start.allocated)

    @property
    def reserved_over_start(self) -> int | None:
        """Bytes by which the reserved peak rose above what was reserved at the start."""
        return _minus(self.peak_reserved, self.start.reserved)

    @property
    def retries(self) -> int | None:
        """Allocations that only succeeded after the cache was flushed: slow, and a sign of a full card."""
        return _minus(self.end.retries, self.start.retries)

    @property
    def ooms(self) -> int | None:
        """Out-of-memory errors raised by the allocator, caught ones included."""
        return _minus(self.end.ooms, self.start.ooms)

    @property
    def allocation_count(self) -> int | None:
        """How many allocations were made."""
        return _minus(self.end.allocation_count, self.start.allocation_count)

    @property
    def outside_delta(self) -> int | None:
        """Change of this process's memory outside PyTorch's allocator: context, kernels, libraries."""
        process = None
        if self.driver_end is not None and self.driver_end.process is not None:
            # A device without a context holds nothing of this process, whether or not the driver was asked.
            before = 0 if self.first_use else (self.driver_start.process if self.driver_start else None)
            process = _minus(self.driver_end.process, before)
        return _minus(process, self.delta_reserved)

    @property
    def others_delta(self) -> int | None:
        """Change of what everything but this process holds on the card."""
        return _minus(_others(self.driver_end), _others(self.driver_start))

    @property
    def elsewhere_delta(self) -> int | None:
        """Change of everything on the card but PyTorch's memory, where the driver does not tell processes apart."""
        if self.driver_end is None or self.driver_end.process is not None:
            return None
        used = _minus(self.driver_end.used, self.driver_start.used if self.driver_start else None)
        return _minus(used, self.delta_reserved)

    @property
    def changed(self) -> bool:
        """Whether anything happened here: an allocation, a level that moved, a context that appeared."""
        return self.first_use or bool(self.allocation_count) or bool(self.delta_allocated) or bool(self.delta_reserved)


@dataclass(frozen=True, slots=True)
class Measurement(Record):
    """What one measured piece of code cost: a statement, a cell, a `with` block, a call, a step of a loop.

    Attributes:
        devices: one entry for each device whose memory could be read, in PyTorch's order.
        elapsed_s: wall time in seconds. Nothing is synchronised for it: work still queued on a GPU is not in it.
        rss_delta: change of this process's resident host memory, in bytes.
        label: the name given by the user, if any.
        error: the type of the exception that ended it, or `None`.
        missing: why no device could be read, in one sentence, or `None`.
        repeat: which repetition this is, starting at 1, and of how many: `(2, 5)`; `None` without repetitions.
    """

    _derived = ("peak_allocated",)

    devices: tuple[DeviceUsage, ...]
    elapsed_s: float
    rss_delta: int | None = None
    label: str | None = None
    error: str | None = None
    missing: str | None = None
    repeat: tuple[int, int] | None = None

    @property
    def peak_allocated(self) -> int | None:
        """The highest allocated peak of any one device; peaks of several devices do not add up."""
        return max((u.peak_allocated for u in self.devices if u.peak_allocated is not None), default=None)

    def __iter__(self) -> Iterator[DeviceUsage]:
        return iter(self.devices)

    def __getitem__(self, index: int | str) -> DeviceUsage:
        """Return the usage of a device by PyTorch's index or label: `result[0]`, `result["cuda:1"]`.

        Raises:
            KeyError: that device was not measured.
        """
        for usage in self.devices:
            if index in (usage.device.index, usage.device.label):
                return usage
        raise KeyError(index)


@dataclass(frozen=True, slots=True)
class Series(Record):
    """Several measurements in order: the runs of one statement (`-r N`), or the named steps of a loop."""

    runs: tuple[Measurement, ...]


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
    """

    _derived = ("layers", "unallocated_ratio")

    device: Device
    counters: Counters | None
    driver: DriverMemory | None
    fragmentation: Fragmentation | None = None
    limit: int | None = None

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
        parts = [("allocated by tensors", allocated)]
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
    """

    devices: tuple[DeviceStatus, ...]
    settings: dict[str, str]
    versions: dict[str, str]
    missing: str | None = None


def _minus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a - b


def _others(driver: DriverMemory | None) -> int | None:
    return None if driver is None else _minus(driver.used, driver.process)
