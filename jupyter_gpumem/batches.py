"""Finding the largest batch that fits: by trying, with as few trials as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from .notebook import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_FASTEST = 16
"""No batch is more than so many times as large as the largest that was seen to fit."""

_BOLD = 8
_TURNS = 4
_NEAR = 8
_FLAT = 1024
"""Where so much larger a batch needs no more, its size is taken not to matter."""


@dataclass(frozen=True, slots=True)
class Largest:
    """What was found.

    Attributes:
        value: the largest batch that was seen to fit; 0 if none was.
        exact: whether the next one was seen not to.
        estimate: otherwise the largest that would fit if memory grew evenly from what was seen; `None` if it does not.
    """

    value: int
    exact: bool
    estimate: int | None = None


class Search(Generic[T]):
    """Trials with several batches, shared by the questions about several cards.

    What a larger batch needs is taken to be no less than what a smaller one does.

    Args:
        sample: tries a batch; what it returns is kept.
        need: how much memory a trial needed, in bytes.
        first: the batch that is tried first.
        limit: how many trials there may be.
        most: the largest batch that may be tried; `None` for any.

    Attributes:
        samples: what the trials returned, by batch.
        stopped: why no larger batch was tried, if one failed for another reason than memory.
    """

    def __init__(
        self, sample: Callable[[int], T], need: Callable[[T], int], first: int, limit: int, most: int | None = None
    ) -> None:
        self._most = most
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
        step, turn = 1, 0
        while True:
            verdicts = {batch: fits(sample) for batch, sample in self.samples.items()}
            low = max((batch for batch, good in verdicts.items() if good), default=0)
            high = min((batch for batch, good in verdicts.items() if not good and batch > low), default=None)
            if high == low + 1:
                return Largest(low, exact=True)
            beyond = 2**62 if self._most is None else self._most + 1
            end = min(value for value in (high, self._failed, beyond) if value is not None)
            if end <= low + 1 or self._trials >= self._limit:
                break
            batch = self._larger(low, room) if high is None else self._between(low, high, room, step, turn)
            if batch is None:
                break
            if high is not None:
                step, turn = (1 if turn % _TURNS == 0 else _BOLD * step), turn + 1
            self._try(min(max(batch, low + 1), end - 1, max(1, low) * _FASTEST if high is None else end))
        known = sorted(self.samples)
        at = len(known) if high is None else known.index(high) + 1
        estimate = self._even(known[max(0, at - 2) : at], room)
        if estimate is not None:
            estimate = max(low, estimate if high is None else min(estimate, high - 1))
        return Largest(low, exact=False, estimate=None if self._failed is not None else estimate)

    def _try(self, batch: int) -> None:
        self._trials += 1
        try:
            self.samples[batch] = self._sample(batch)
        except Exception as error:  # noqa: BLE001 - the same code ran with another batch: this one is not possible
            self._failed = batch
            first_line = next(iter(text_of(error).splitlines()), "")
            self.stopped = f"with {batch:,} it fails: {type(error).__name__}: {first_line}"[:200]

    def _larger(self, low: int, room: int) -> int | None:
        """Return what to try while everything fits, or `None` where larger batches need no more."""
        if self._failed is not None:
            return (low + self._failed) // 2
        known = sorted(self.samples)
        guess = self._even(known[-2:], room)
        if guess is None:  # the peak is elsewhere as yet
            return None if self._is_flat(known) else _BOLD * low
        return guess

    def _between(self, low: int, high: int, room: int, step: int, turn: int) -> int:
        """Return what to try between one that fits and one that does not.

        By turns: as if memory grew evenly between both; a step beyond the latest trial, and a larger one, since the
        answer is near it; and the middle, which is sure.
        """
        if high - low <= _NEAR or turn % _TURNS == _TURNS - 1:
            return (low + high) // 2
        known = sorted(self.samples)
        at = known.index(high)
        if turn % _TURNS == 0:
            guess = self._even(known[at - 1 : at + 1] if at else known[:2], room)
            return (low + high) // 2 if guess is None else guess
        return low + step if next(reversed(self.samples)) == low else high - step

    def _even(self, pair: list[int], room: int) -> int | None:
        """Return the batch that would just fit if memory grew evenly, as between two others; `None` if it does not."""
        if len(pair) < 2:
            return None
        first, second = (self._need(self.samples[batch]) for batch in pair)
        slope = (second - first) / (pair[1] - pair[0])
        return int(pair[0] + (room - first) / slope) if slope > 0 else None

    def _is_flat(self, known: list[int]) -> bool:
        most = self._need(self.samples[known[-1]])
        level = [batch for batch in known if self._need(self.samples[batch]) >= most]
        return known[-1] >= _FLAT * level[0]
