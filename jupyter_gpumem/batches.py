"""Finding the largest batch that fits: by trying, with as few trials as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_FASTEST = 16
"""No batch is more than so many times as large as the largest that was seen to fit."""

_BOLD = 4
_FLAT = 64
"""Where so much larger a batch needs no more, its size is taken not to matter."""

_MIDDLE_EVERY = 3


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest batch that was seen to fit (0 if not even 1 does), and whether the next one was seen not to."""

    value: int
    exact: bool


class Search(Generic[T]):
    """Trials with several batches, shared by the questions about several cards.

    What a larger batch needs is taken to be no less than what a smaller one does.

    Args:
        sample: tries a batch; what it returns is kept.
        need: how much memory a trial needed, in bytes.
        first: the batch that is tried first.
        limit: how many trials there may be.

    Attributes:
        samples: what the trials returned, by batch.
        stopped: why no larger batch was tried, if one failed for another reason than memory.
    """

    def __init__(self, sample: Callable[[int], T], need: Callable[[T], int], first: int, limit: int) -> None:
        self._sample, self._need, self._limit = sample, need, limit
        self.samples: dict[int, T] = {}
        self.stopped: str | None = None
        self._failed: int | None = None
        self._trials = 1
        self.samples[first] = sample(first)

    @property
    def trials(self) -> int:
        """How many trials there were."""
        return self._trials

    def largest(self, fits: Callable[[T], bool], room: int) -> Largest:
        """Return the largest batch that fits into a room of so many bytes, as far as the trials that are left tell."""
        for attempt in range(1, self._limit + 1):
            verdicts = {batch: fits(sample) for batch, sample in self.samples.items()}
            low = max((batch for batch, good in verdicts.items() if good), default=0)
            high = min((batch for batch, good in verdicts.items() if not good and batch > low), default=None)
            if high == low + 1:
                return Largest(low, exact=True)
            end = min(value for value in (high, self._failed, 2**62) if value is not None)
            if end <= low + 1 or self._trials >= self._limit:
                break
            batch = self._guess(low, high, room, middle=attempt % _MIDDLE_EVERY == 0)
            if batch is None:
                break
            self._try(min(max(batch, low + 1), end - 1, max(1, low) * _FASTEST if high is None else end))
        return Largest(low, exact=False)

    def _try(self, batch: int) -> None:
        self._trials += 1
        try:
            self.samples[batch] = self._sample(batch)
        except Exception as error:  # noqa: BLE001 - the same code ran with another batch: this one is not possible
            self._failed = batch
            first_line = next(iter(str(error).splitlines()), "")
            self.stopped = f"with {batch:,} it fails: {type(error).__name__}: {first_line}"[:200]

    def _guess(self, low: int, high: int | None, room: int, *, middle: bool) -> int | None:
        """Return the batch that would just fit if memory grew evenly, or `None` if it does not grow."""
        if middle and high is not None:
            return (low + high) // 2
        known = sorted(self.samples)
        if high is None:
            pair = known[-2:] if len(known) > 1 else None
            if pair is None:
                return 2 * low
        else:
            at = known.index(high)
            pair = [known[at - 1], high] if at else known[:2] if len(known) > 1 else None
            if pair is None:
                return high // 2
        first, second = (self._need(self.samples[batch]) for batch in pair)
        slope = (second - first) / (pair[1] - pair[0])
        if slope <= 0:  # the peak is elsewhere as yet
            if high is not None:
                return (low + high) // 2
            return None if self._is_flat(known) else _BOLD * low
        return int(pair[0] + (room - first) / slope)

    def _is_flat(self, known: list[int]) -> bool:
        most = self._need(self.samples[known[-1]])
        level = [batch for batch in known if self._need(self.samples[batch]) >= most]
        return known[-1] >= _FLAT * level[0]
