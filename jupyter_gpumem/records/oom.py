"""Out-of-memory errors: what they say, why they happened, what would help; and the search for a batch size."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Record


@dataclass(frozen=True, slots=True)
class OomText(Record):
    """What an out-of-memory text says. Sizes in bytes, as exact as they were printed.

    Attributes:
        family: `allocator` (PyTorch's, with numbers), `driver` (a call of the driver failed), `library` (cuBLAS, cuDNN
            and the like could not allocate), `assert` (an assertion that hides one, as on MIG), `host` (main memory),
            `bare` (without numbers, as people raise it themselves).
        platform: `cuda`, `hip`, `xpu`, `npu`, `mps` or `cpu`.
        requested: what was asked for.
        device: PyTorch's index.
        total, free: of the card; for MPS `total` is what is allowed.
        limit: the cap, if one is named.
        allocated: in live tensors, private pools included.
        unallocated: reserved by PyTorch, but in no live tensor.
        private: allocated in private pools.
        processes: `(pid, bytes)` of processes that are named; bytes are `None` where the driver did not know.
        own: what this process has in use, if that is said.
    """

    _derived = ("oversubscribed",)

    family: str
    platform: str
    requested: int | None = None
    device: int | None = None
    total: int | None = None
    free: int | None = None
    limit: int | None = None
    allocated: int | None = None
    unallocated: int | None = None
    private: int | None = None
    processes: tuple[tuple[int, int | None], ...] = ()
    own: int | None = None

    @property
    def oversubscribed(self) -> int | None:
        """Bytes that are allocated beyond the card, which Windows keeps in main memory; `None` if there are none."""
        if self.allocated is None or self.total is None or self.allocated <= self.total:
            return None
        return self.allocated - self.total


@dataclass(frozen=True, slots=True)
class OomAction(Record):
    """Something that would help.

    Attributes:
        text: what to do, as a sentence without a full stop.
        gives: the bytes it would give, as far as known.
        checked: whether a replay of the allocator's state showed that the failed request succeeds with it.
        settings: the allocator settings that it consists of, or `None`.
    """

    text: str
    gives: int | None = None
    checked: bool = False
    settings: str | None = None


@dataclass(frozen=True, slots=True)
class OomExplanation(Record):
    """Why memory ran out, and what would help here.

    Attributes:
        verdict: `others`, `cap`, `fragmentation`, `too much`, `absurd request`, `private pools`, `outside`, `host`, or
            `unclear`.
        sentence: the verdict in one sentence.
        text: what the error's own text says.
        device: the device's label, when known.
        evidence: `(what, bytes)`, the numbers it rests on.
        details: what else was seen, a sentence each.
        actions: what would help, the best first.
        seen: `when it happened`, `afterwards`, or `in the text only`.
    """

    verdict: str
    sentence: str
    text: OomText
    device: str | None
    evidence: tuple[tuple[str, int], ...]
    details: tuple[str, ...]
    actions: tuple[OomAction, ...]
    seen: str


@dataclass(frozen=True, slots=True)
class OomIncident(Record):
    """An out-of-memory error of this process, with its explanation.

    Attributes:
        explanation: why memory ran out.
        time: when it was explained, or, if it ended no cell, when it happened; in seconds since 1970.
        cell: the number of the notebook's cell that failed, or `None`.
        came: how it came, if it ended no cell of the notebook: `handled by the code`, `raised in the thread 'loader'`.
    """

    explanation: OomExplanation
    time: float
    cell: int | None = None
    came: str | None = None


@dataclass(frozen=True, slots=True)
class FailedAttempt(Record):
    """An attempt that ran out of memory and was cleared away.

    Attributes:
        number: 1 for the first.
        error: the error's own text.
        requested: bytes that were asked for, when known.
        returned: bytes of reserved memory that clearing away gave back to the driver.
    """

    number: int
    error: str
    requested: int | None
    returned: int


@dataclass(frozen=True, slots=True)
class Trial(Record):
    """One batch size that was tried.

    Attributes:
        batch_size: how many samples.
        fits: whether both iterations ran.
        peak_allocated, peak_reserved: the highest of each counter on the fullest device.
        error: the out-of-memory text, if it did not fit.
        left: bytes that stayed allocated afterwards, beyond what was there before the first trial.
        elapsed_s: wall time in seconds.
    """

    batch_size: int
    fits: bool
    peak_allocated: int | None
    peak_reserved: int | None
    error: str | None
    left: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class BatchSize(Record):
    """The largest batch size that runs. Usable as a number.

    Attributes:
        batch_size: the largest that ran; 0 when not even 1 did.
        trials: everything that was tried, in order.
        margin: the share of each device that was kept free during the trials.
        at_maximum: whether it is the maximum that was asked for, so that a larger one may run too.
        leaks: bytes that every further trial leaves behind, or `None`.
        predicted: the largest that should run by a prediction, which the trials began near; `None` without one.
        notes: what else is to be said, one sentence each.
        oom: why memory runs out already with a batch of 1, or `None` where that runs.
    """

    batch_size: int
    trials: tuple[Trial, ...]
    margin: float
    at_maximum: bool
    leaks: int | None = None
    predicted: int | None = None
    notes: tuple[str, ...] = ()
    oom: OomExplanation | None = None

    def __int__(self) -> int:
        return self.batch_size

    def __index__(self) -> int:
        return self.batch_size
