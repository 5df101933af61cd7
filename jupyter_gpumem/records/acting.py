"""What acting on the allocator did: settings changed, cache given back, memory put aside, a cap set."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Device, Record


@dataclass(frozen=True, slots=True)
class Setting(Record):
    """One key of the allocator settings.

    Attributes:
        key, value: as they are written in a settings string; the value also in words where it cannot be written.
        source: where it comes from: `default`, the name of an environment variable, `virtual GPU`, or `this session`.
        accepts: what may be written.
        available: whether the PyTorch at hand knows it.
    """

    key: str
    value: str
    source: str
    accepts: str
    available: bool


@dataclass(frozen=True, slots=True)
class SettingChange(Record):
    """One key that changed: its value before and after, and what the change applies to."""

    key: str
    before: str
    after: str
    effect: str


@dataclass(frozen=True, slots=True)
class AllocatorConfig(Record):
    """The allocator settings in force and, when they were just changed, how.

    Attributes:
        settings: every key, in alphabetical order.
        text: the string that stands for all that differs from PyTorch's defaults; empty for those.
        changes: what changed, or `None` when nothing was asked to.
        verified: the keys that PyTorch was asked for afterwards, and that say what was wanted.
        warnings: what is pointless or unsafe about what is in force, one sentence each.
        notes: what else is to know, one sentence each.
        permanent: the line to put before `import torch`, so that it is so from the start; `None` where it is anyway.
        version: PyTorch's version.
    """

    settings: tuple[Setting, ...]
    text: str
    changes: tuple[SettingChange, ...] | None
    verified: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    permanent: str | None
    version: str

    def __getitem__(self, key: str) -> str:
        """Return the value in force of a key, as it is written.

        Raises:
            KeyError: there is no such key.
        """
        for setting in self.settings:
            if setting.key == key:
                return setting.value
        raise KeyError(key)


@dataclass(frozen=True, slots=True)
class Pin(Record):
    """A segment that cannot go back to the driver because something in it lives.

    Attributes:
        address: where the segment begins.
        stranded: free bytes of the segment that only stay because of the live ones.
        live: bytes of the blocks that live in it, and `live_blocks` how many these are.
        site: where in the user's code the largest of them was allocated; `None` unless a recording ran then.
        reservations: the names of what `reserve` holds among them.
    """

    address: int
    stranded: int
    live: int
    live_blocks: int
    site: str | None
    reservations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceEmptied(Record):
    """What giving unused memory back did on one device, in bytes.

    Attributes:
        before, after: what was reserved.
        allocated: what live tensors hold.
        stranded: unallocated bytes that stay, because live blocks share their segments (or their pages).
        private: unallocated bytes of private pools, which only their owners can reuse or give up.
        workspaces: bytes of cuBLAS workspaces among what is allocated.
        held: bytes that `reserve` holds among what is allocated.
        pins: the segments with stranded bytes, those with most first; at most ten.
        pinned_by: live bytes in all segments with stranded bytes.
    """

    _derived = ("returned",)

    device: Device
    before: int
    after: int
    allocated: int
    stranded: int
    private: int
    workspaces: int
    held: int
    pins: tuple[Pin, ...]
    pinned_by: int

    @property
    def returned(self) -> int:
        """Bytes that went back to the driver."""
        return self.before - self.after


@dataclass(frozen=True, slots=True)
class Emptied(Record):
    """What giving unused memory back did.

    Attributes:
        devices: one entry for each device the process uses.
        elapsed_s: how long it took, waiting for the GPU included.
        recorded: whether a recording knows where live memory was allocated.
        missing: why there was nothing to do, or `None`.
    """

    _derived = ("returned",)

    devices: tuple[DeviceEmptied, ...]
    elapsed_s: float
    recorded: bool = False
    missing: str | None = None

    @property
    def returned(self) -> int:
        """Bytes that went back to the driver, on all devices."""
        return sum(one.returned for one in self.devices)


@dataclass(frozen=True, slots=True)
class Reservation(Record):
    """Memory that was put aside in PyTorch's cache.

    Attributes:
        name: what it is released by.
        device: where.
        size: bytes that were asked for.
        taken: bytes that came from the driver for it; less where the cache had some.
        address: where it begins.
        segment: `driver` for a piece of its own from the driver, `expandable` for mapped pages.
        pool: `small` or `large`: the size class of requests that find it.
        private: whether it lies in a private pool, which only its owner uses.
        stream: handle of the stream whose requests find it.
        state: `held` while it is a guard band, `cached` while later requests find some of it, `in use` while they have
            it all, `gone` after it went back to the driver.
        free: bytes of it that later requests find; none of what is held.
        warnings: why it is of little use, if it is.
        whole: whether only requests about as large find it, as it is never split.
    """

    name: str
    device: Device
    size: int
    taken: int
    address: int
    segment: str
    pool: str
    private: bool
    stream: int
    state: str
    free: int
    warnings: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Reservations(Record):
    """Everything that was put aside, in the order in which it was.

    Attributes:
        entries: the reservations.
        released: names of those that were held, and were just given to the cache.
        forgotten: names of those that were not held, and were just taken off the list.
    """

    entries: tuple[Reservation, ...]
    released: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceLimit(Record):
    """The cap of this process on one device, in bytes.

    Attributes:
        limit: what may be reserved, or `None` without a cap.
        before: the same before a change; `None` too when nothing was changed.
        reserved: what is reserved now.
    """

    _derived = ("above",)

    device: Device
    limit: int | None
    before: int | None
    reserved: int

    @property
    def above(self) -> int:
        """Bytes by which more is reserved than the cap allows."""
        return 0 if self.limit is None else max(0, self.reserved - self.limit)


@dataclass(frozen=True, slots=True)
class Limits(Record):
    """The caps of this process.

    Attributes:
        devices: one entry for each device the process uses.
        changed: whether they were just set.
        missing: why there is nothing to show, or `None`.
    """

    devices: tuple[DeviceLimit, ...]
    changed: bool
    missing: str | None = None
