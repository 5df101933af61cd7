"""Peaks in PyTorch's statistics: where they are, and whether somebody has reset them between two readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from .devices import Stats

Peaks: TypeAlias = "dict[tuple[str, object], int]"
"""Bytes or counts by counter and pool; the pool is `None` where a counter has none."""


def leaves(stats: Stats) -> Iterator[tuple[str, object, dict[str, int]]]:
    """Yield `(key, pool, counter)` for every counter that has a peak, at either depth of PyTorch's statistics."""
    for key, value in stats.items():
        if isinstance(value, dict):
            if "peak" in value:
                yield key, None, value
            else:
                for name, leaf in value.items():
                    if isinstance(leaf, dict) and "peak" in leaf:
                        yield key, name, leaf


def read_peaks(stats: Stats) -> Peaks:
    """Return every peak, as `leaves` finds them; written out, because it runs at each reading."""
    peaks: Peaks = {}
    for key, value in stats.items():
        if isinstance(value, dict):
            if "peak" in value:
                peaks[key, None] = value["peak"]
            else:
                for name, leaf in value.items():
                    if isinstance(leaf, dict) and "peak" in leaf:
                        peaks[key, name] = leaf["peak"]
    return peaks


def fell(last: Peaks, now: Peaks) -> bool:
    """Whether a peak is below its last reading, which only a reset can do."""
    return last != now and any(value > now.get(key, value) for key, value in last.items())


def rose(last: Peaks, now: Peaks, *, but: Collection[str]) -> bool:
    """Whether a peak is above its last reading, that of some counters aside."""
    return any(value > last.get(key, 0) for key, value in now.items() if key[0] not in but)


def rose_and_fell(before: Stats, after: Stats, key: str) -> bool:
    """Whether a level went both ways between two readings, by the counts that only ever rise."""
    old, new = (stats.get(key, {}).get("all", {}) for stats in (before, after))
    return all(old.get(way) != new.get(way) for way in ("allocated", "freed"))


def increase(before: Stats, after: Stats, key: str, way: str) -> int:
    """Return by how much an accumulated count of all pools rose."""
    old, new = (stats.get(key, {}).get("all", {}).get(way, 0) for stats in (before, after))
    return int(new - old)
