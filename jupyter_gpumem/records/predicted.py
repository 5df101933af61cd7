"""What code would need on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Device, Record


@dataclass(frozen=True, slots=True)
class PredictedUse(Record):
    """What code would need of one device.

    Attributes:
        device: the virtual card that it ran on, as if its memory had no end.
        start_allocated: bytes that were allocated before it began.
        peak_allocated, peak_reserved: the most that was allocated, and that PyTorch's allocator held for it.
        parts: what the peak consists of, largest first; the bytes add up to `peak_allocated`.
        line: the line of the code where the peak is, counted in its cell or file; `None` if it is in none of its own.
        text: that line.
        phase: what was going on: `forward pass`, `backward pass`, `optimizer step`; `None` for anything else.
    """

    device: Device
    start_allocated: int
    peak_allocated: int
    peak_reserved: int
    parts: tuple[tuple[str, int], ...]
    line: int | None
    text: str | None
    phase: str | None


@dataclass(frozen=True, slots=True)
class Fit(Record):
    """Whether code fits on a card, or on a machine of several.

    Attributes:
        gpu: the name of the card, or of the machine: `2xA100-40GB`.
        total: bytes that PyTorch sees, of the card that is fullest.
        context: bytes of it that the CUDA context takes.
        peak_reserved: bytes that the allocator would hold there if that card had no end.
        fits: whether the code gets through.
        retries: how often the cache has to be flushed for that.
        line: the line where memory runs out, if it does.
        ran: whether the code ran as on this machine; otherwise the allocations of another are replayed.
        largest_batch: the largest value of the batch variable that was seen to fit; 0 if none was, `None` if that was
            not asked for.
        largest_is_exact: whether the next larger value was seen not to fit.
        largest_estimate: otherwise the largest that would fit if memory grew evenly from what was seen.
    """

    _derived = ("usable", "left")

    gpu: str
    total: int
    context: int
    peak_reserved: int
    fits: bool
    retries: int
    line: int | None
    ran: bool
    largest_batch: int | None = None
    largest_is_exact: bool = False
    largest_estimate: int | None = None

    @property
    def usable(self) -> int:
        """Bytes that PyTorch's allocator can get."""
        return self.total - self.context

    @property
    def left(self) -> int:
        """What is left of the usable bytes at the peak; negative where they are not enough."""
        return self.usable - self.peak_reserved


@dataclass(frozen=True, slots=True)
class BatchSearch(Record):
    """How the largest batch was looked for.

    Attributes:
        name: the variable.
        value: what it is.
        runs: how often the code ran, the first run among it.
        limit: how often it may.
        stopped: why no larger values were tried, if that was not for want of memory.
    """

    name: str
    value: int
    runs: int
    limit: int
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class Prediction(Record):
    """What code would need, and where it would fit.

    Where there are decisions, both are of the way that the code went: another may take more.

    Attributes:
        devices: one entry for each device that it used.
        fits: the cards, smallest first.
        seconds: how long the prediction took.
        batch: how the largest batch was looked for, if it was.
        smallest: the smallest card known on which it fits, where the table does not tell.
        placeholders: where a value was asked for that does not exist, and what was given for it.
        not_undone: what the code changed that could not be put back.
        unsaved: files that `torch.save` was to write, and that were left as they are.
        unwatched: variables that hold too much for all of it to be remembered, and that the code does not name.
        decisions: where the code decides on such a value, as far as its source tells.
    """

    devices: tuple[PredictedUse, ...]
    fits: tuple[Fit, ...]
    seconds: float
    batch: BatchSearch | None = None
    smallest: str | None = None
    placeholders: tuple[str, ...] = ()
    not_undone: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()
    unwatched: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()

    def __getitem__(self, gpu: str) -> Fit:
        for fit in self.fits:
            if fit.gpu.lower().replace(" ", "-") == gpu.lower().replace(" ", "-"):
                return fit
        raise KeyError(f"{gpu!r} is not in the table; it has {', '.join(fit.gpu for fit in self.fits)}")
