"""Who holds device memory, and what came back when something let go of it."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Device, Record


@dataclass(frozen=True, slots=True)
class Holder(Record):
    """One line of the books: something that keeps allocations alive.

    Attributes:
        kind: `variable`, `graph` (an autograd graph), `hook`, `output` (`Out[n]`), `error` (a frame of the last error),
            `frame` (a function that runs, or a task that waits), `module`, `cycle` (garbage that waits for the
            collector), `reservation` (what `%gpumem_reserve --hold` holds) or `other`.
        name: what a person would call it.
        detail: where in it the largest piece lies, if that is not the name itself.
        what: the type of what is held by that name.
        tensors: how many storages are counted here; none in a reservation, which no tensor shows.
        allocated: their bytes, as allocated; each storage is counted with one holder only.
        alone: the part of them that nobody else holds: what letting go of this returns.
        also: who holds some of them besides.
        note: what is remarkable about it, in one sentence, or `None`.
    """

    kind: str
    name: str
    detail: str | None
    what: str
    tensors: int
    allocated: int
    alone: int
    also: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Site(Record):
    """Where unattributed memory was allocated, as a recording tells.

    Attributes:
        place: `train.py:12 in step`, or `In[5], line 12 in step` for a cell: the innermost that is not PyTorch's.
        allocated: bytes.
        blocks: how many allocations.
    """

    place: str
    allocated: int
    blocks: int


@dataclass(frozen=True, slots=True)
class DeviceHolders(Record):
    """The books of one device: its holders, workspaces, private pools and what is not attributed are all of it.

    Attributes:
        allocated: bytes of live allocations, by the allocator's own counter.
        holders: largest first.
        workspaces: bytes of cuBLAS workspaces.
        private: bytes in private pools (CUDA graphs, `MemPool`) that no Python object shows.
        unattributed: bytes of the other allocations that no Python object shows; negative where they cannot be told
            apart and more was found than the counter says.
        sites: where the unattributed ones were made, while a recording runs.
        outside: bytes of tensors on this device whose memory is not the allocator's; not part of `allocated`.
    """

    _derived = ("named",)

    device: Device
    allocated: int
    holders: tuple[Holder, ...]
    workspaces: int
    private: int
    unattributed: int
    sites: tuple[Site, ...] = ()
    outside: int = 0

    @property
    def named(self) -> int:
        """Bytes that are counted with a holder."""
        return sum(holder.allocated for holder in self.holders)


@dataclass(frozen=True, slots=True)
class Holders(Record):
    """Who holds the memory of each device.

    Attributes:
        devices: one entry for each device in use.
        visited: how many Python objects were looked at.
        complete: whether the search came to its end; otherwise `visited` is its budget.
        missing: why nothing can be said, in one sentence, or `None`.
    """

    devices: tuple[DeviceHolders, ...]
    visited: int = 0
    complete: bool = True
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Chain(Record):
    """What keeps the memory of one name alive.

    Attributes:
        name: the name that was asked about.
        kind: as in `Holder`.
        what: what it is, such as `Linear` or `Tensor of shape (3, 4)`.
        allocated: bytes that it holds, by device label.
        alone: the part of them that deleting the name returns.
        chains: how others hold the same memory, a sentence each.
        complete: whether the search came to its end.
    """

    name: str
    kind: str
    what: str
    allocated: dict[str, int]
    alone: int
    chains: tuple[str, ...]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ReleaseStep(Record):
    """One step of letting go.

    Attributes:
        step: `last error`, `outputs`, `cycles` or `unused cache`.
        what: what went, or would go, in one phrase.
        allocated: bytes of tensors that it returned; in a rehearsal, those that it would.
        reserved: bytes that it returned to the driver.
    """

    step: str
    what: str
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Released(Record):
    """What came back, step by step.

    Attributes:
        steps: in the order in which they were taken.
        rehearsal: whether nothing was done, and the numbers are what would come back.
        allocated, reserved: bytes on all devices afterwards.
        kept: what the user's own variables hold, largest first: never deleted here.
        notes: what else is to be said, one sentence each.
    """

    steps: tuple[ReleaseStep, ...]
    rehearsal: bool
    allocated: int
    reserved: int
    kept: tuple[Holder, ...] = ()
    notes: tuple[str, ...] = ()
