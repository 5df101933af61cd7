"""Which allocator settings to try for a workload when the user names none, and which of those tried to recommend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .allocator.keys import is_known_to
from .allocator.settings import AllocatorSettings, warnings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .allocator.replay import Replay


_LITTLE = 0.01
"""A share of the reserved peak that is not worth another setting."""

_SENSIBLE = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:8",
    "large_segment_size_mb:64",
)
_SENSIBLE_WITH_CAP = ("garbage_collection_threshold:0.8", "garbage_collection_threshold:0.6")


def _failure(result: Replay) -> tuple[bool, int]:
    """Return what makes one failure worse than another: that there is one, and how early.

    How many there are says little: nobody knows what the program would have done after the first.
    """
    return (result.ooms > 0, -(result.first_oom or 0))


def cost(choice: AllocatorSettings, result: Replay) -> tuple[tuple[bool, int], int, int, int]:
    """Return what makes one choice worse than another: failure, then memory, then waiting for the driver."""
    return (_failure(result), result.peak_reserved, result.device_frees + result.retries, len(str(choice)))


def recommended(rows: list[tuple[AllocatorSettings, Replay]]) -> int | None:
    """Return which row to recommend; `None` when the recorded settings are as good as any.

    Among those that come within a little of the lowest peak, the simplest.
    """
    usable = [n for n, (choice, _) in enumerate(rows) if choice != rows[0][0] and not _unsafe(choice)]
    lowest = min(usable, key=lambda n: cost(*rows[n]), default=None)
    if lowest is None:
        return None
    reference, least = cost(*rows[0]), cost(*rows[lowest])
    little = int(_LITTLE * rows[0][1].peak_reserved)
    if least[0][0]:  # nothing gets through: then nothing is recommended
        return None
    if least[0] > reference[0] or (least[0] == reference[0] and least[1] > reference[1] - max(1, little)):
        return None
    close = [n for n in usable if cost(*rows[n])[0] == least[0] and rows[n][1].peak_reserved <= least[1] + little]
    return min(close, key=lambda n: (str(rows[n][0]).count(":"), *cost(*rows[n])))


def _unsafe(choice: AllocatorSettings) -> bool:
    """Whether a choice is never to be recommended: it can do harm, or what it does is not in the model."""
    return any(text.startswith(("unsafe", "not modelled")) for text in warnings(choice, capped=True))


class Search:
    """Which choices to try when the user names none; none is tried twice, and none that is unsafe.

    Args:
        recorded: the settings at the start of the recording.
        torch: the version of PyTorch that made it.
        capped: whether a memory cap is in force.
    """

    def __init__(self, recorded: AllocatorSettings, torch: Any, *, capped: bool) -> None:
        self.capped = capped
        self._known = {recorded}
        # What the user set besides stays as it is: it is not what is being tried.
        self._base = AllocatorSettings(others=recorded.others)
        self._large = is_known_to("large_segment_size_mb", torch if isinstance(torch, str) else "")

    def sensible(self) -> list[AllocatorSettings]:
        """Return what is worth trying anywhere."""
        return self._new(map(self._base.then, (*_SENSIBLE, *(_SENSIBLE_WITH_CAP if self.capped else ()))))

    def near(self, best: AllocatorSettings) -> list[AllocatorSettings]:
        """Return the choices that differ from the best one so far in a single value."""
        near = []
        if best.max_split_size is not None:
            sizes = (best.max_split_size // 2, best.max_split_size * 2)
            near += [replace(best, max_split_size=size) for size in sizes if size >= best.large_segment_size]
        divisions = best.roundup_power2_divisions[0]
        for steps in (divisions // 2, divisions * 2) if divisions > 1 else (8, 16):
            near.append(replace(best, roundup_power2_divisions=(steps if steps > 1 else 0,) * 16))
        near += [replace(best, large_segment_size=best.large_segment_size * factor) for factor in (2, 4)]
        if self.capped:
            thresholds = (0.7, 0.9) if best.garbage_collection_threshold else (0.8,)
            near += [replace(best, garbage_collection_threshold=threshold) for threshold in thresholds]
        return self._new(near)

    def _new(self, choices: Iterable[AllocatorSettings]) -> list[AllocatorSettings]:
        found = [choice for choice in dict.fromkeys(choices) if choice not in self._known and not _unsafe(choice)]
        if not self._large:
            found = [choice for choice in found if choice.large_segment_size == self._base.large_segment_size]
        self._known.update(found)
        return found
