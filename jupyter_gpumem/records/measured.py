"""What a measured piece of code cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyter_gpumem.units import minus

from .base import Counters, Device, DriverMemory, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .oom import OomExplanation


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
        return minus(self.end.allocated, self.start.allocated)

    @property
    def delta_reserved(self) -> int | None:
        """Bytes that the allocator took from the driver (or gave back, when negative)."""
        return minus(self.end.reserved, self.start.reserved)

    @property
    def peak_over_start(self) -> int | None:
        """Bytes that were needed on top of what was there at the start."""
        return minus(self.peak_allocated, self.start.allocated)

    @property
    def reserved_over_start(self) -> int | None:
        """Bytes by which the reserved peak rose above what was reserved at the start."""
        return minus(self.peak_reserved, self.start.reserved)

    @property
    def retries(self) -> int | None:
        """Allocations that only succeeded after the cache was flushed: slow, and a sign of a full card."""
        return minus(self.end.retries, self.start.retries)

    @property
    def ooms(self) -> int | None:
        """Out-of-memory errors raised by the allocator, caught ones included."""
        return minus(self.end.ooms, self.start.ooms)

    @property
    def allocation_count(self) -> int | None:
        """How many allocations were made."""
        return minus(self.end.allocation_count, self.start.allocation_count)

    @property
    def outside_delta(self) -> int | None:
        """Change of this process's memory outside PyTorch's allocator: context, kernels, libraries."""
        process = None
        if self.driver_end is not None and self.driver_end.process is not None:
            # A device without a context holds nothing of this process, whether or not the driver was asked.
            before = 0 if self.first_use else (self.driver_start.process if self.driver_start else None)
            process = minus(self.driver_end.process, before)
        return minus(process, self.delta_reserved)

    @property
    def others_delta(self) -> int | None:
        """Change of what everything but this process holds on the card."""
        return minus(_others(self.driver_end), _others(self.driver_start))

    @property
    def elsewhere_delta(self) -> int | None:
        """Change of everything on the card but PyTorch's memory, where the driver does not tell processes apart."""
        if self.driver_end is None or self.driver_end.process is not None:
            return None
        used = minus(self.driver_end.used, self.driver_start.used if self.driver_start else None)
        return minus(used, self.delta_reserved)

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
        error: the type of the exception that ended it, or that IPython showed in it (`%run`), or `None`.
        missing: why no device could be read, in one sentence, or `None`.
        repeat: which repetition this is, starting at 1, and of how many: `(2, 5)`; `None` without repetitions.
        oom: why memory ran out, if that is what ended it and the error was explained: in a notebook with the extension
            it is by itself, elsewhere by `gm.explain_oom(error)` or `gm.retry_on_oom`.
    """

    _derived = ("peak_allocated",)

    devices: tuple[DeviceUsage, ...]
    elapsed_s: float
    rss_delta: int | None = None
    label: str | None = None
    error: str | None = None
    missing: str | None = None
    repeat: tuple[int, int] | None = None
    oom: OomExplanation | None = None

    @property
    def peak_allocated(self) -> int | None:
        """The highest allocated peak of any one device; peaks of several devices do not add up."""
        return max((u.peak_allocated for u in self.devices if u.peak_allocated is not None), default=None)

    def __iter__(self) -> Iterator[DeviceUsage]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: int | str) -> DeviceUsage:
        """Return the usage of a device by PyTorch's index or label: `result[0]`, `result["cuda:1"]`.

        Raises:
            KeyError: that device was not measured.
        """
        for usage in self.devices:
            if index in (usage.device.index, usage.device.label):
                return usage
        raise KeyError(f"{index} was not measured: {self.missing or 'the process had not used it'}")


@dataclass(frozen=True, slots=True)
class Series(Record):
    """Several measurements in order: the runs of one statement (`-r N`), or the named steps of a loop."""

    runs: tuple[Measurement, ...]

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: int) -> Measurement:
        """Return one of the measurements: `result[0]` is the first."""
        return self.runs[index]


def _others(driver: DriverMemory | None) -> int | None:
    return None if driver is None else minus(driver.used, driver.process)
