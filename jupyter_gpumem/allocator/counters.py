"""The allocator model's counters, as `torch.cuda.memory_stats()` defines them."""

from __future__ import annotations

from typing import Any

_QUAD = tuple[int, int, int, int]


class Level:
    """A quantity that rises and falls, with what PyTorch keeps about it."""

    __slots__ = ("base", "current", "gained", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.gained = self.base = 0

    def change(self, amount: int) -> None:
        """Let it rise by an amount, or fall when the amount is negative."""
        self.current += amount
        if amount > 0:
            self.gained += amount
            self.peak = max(self.peak, self.current)

    def reset_peak(self) -> None:
        """Let the peak be what is there now."""
        self.peak = self.current

    def reset_totals(self) -> None:
        """Forget what was ever gained and lost."""
        self.base, self.gained = self.current, 0

    def quad(self) -> _QUAD:
        """Return current, peak, and what was gained and lost altogether."""
        return _quad(self.current, self.peak, self.gained, self.base)


class Tally:
    """The counters of one kind of pool. The hot path counts in here, so these are plain numbers.

    Attributes:
        count, size, asked: live allocations, their bytes, and the bytes that were asked for; each with its peak and
            with what was gained since the totals were last reset.
        pending, pending_size, pending_asked: the same of freed blocks that another stream may still use.
        active, active_size, active_asked: peaks of both together while anything was pending; otherwise the peaks of
            the live ones are also these.
        split, split_size: free blocks in segments that also hold live ones (expandable segments left out).
    """

    __slots__ = (
        "active",
        "active_asked",
        "active_base",
        "active_size",
        "active_size_base",
        "asked",
        "asked_base",
        "asked_gained",
        "asked_peak",
        "count",
        "count_base",
        "count_gained",
        "count_peak",
        "pending",
        "pending_asked",
        "pending_size",
        "reserved",
        "segments",
        "size",
        "size_base",
        "size_gained",
        "size_peak",
        "split",
        "split_base",
        "split_gained",
        "split_peak",
        "split_size",
        "split_size_base",
        "split_size_gained",
        "split_size_peak",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)
        self.reserved, self.segments = Level(), Level()

    active: int
    active_asked: int
    active_base: int
    active_size: int
    active_size_base: int
    asked: int
    asked_base: int
    asked_gained: int
    asked_peak: int
    count: int
    count_base: int
    count_gained: int
    count_peak: int
    pending: int
    pending_asked: int
    pending_size: int
    reserved: Level
    segments: Level
    size: int
    size_base: int
    size_gained: int
    size_peak: int
    split: int
    split_base: int
    split_gained: int
    split_peak: int
    split_size: int
    split_size_base: int
    split_size_gained: int
    split_size_peak: int

    def note_active(self) -> None:
        """Raise the active peaks; needed after an allocation while something is pending."""
        self.active = max(self.active, self.count + self.pending)
        self.active_size = max(self.active_size, self.size + self.pending_size)
        self.active_asked = max(self.active_asked, self.asked + self.pending_asked)

    def defer(self, size: int, asked: int) -> None:
        """Count a live block as pending; its active peaks do not change by that."""
        if not self.pending:
            # From here on the live counters fall while the active ones do not.
            self.note_active()
        self.count -= 1
        self.size -= size
        self.asked -= asked
        self.pending += 1
        self.pending_size += size
        self.pending_asked += asked

    def settle(self, size: int, asked: int) -> None:
        """Count a pending block as free."""
        self.pending -= 1
        self.pending_size -= size
        self.pending_asked -= asked

    def reset_peaks(self) -> None:
        """Let every peak be what is there now."""
        for name in ("count", "size", "asked", "split", "split_size"):
            setattr(self, f"{name}_peak", getattr(self, name))
        self.active = self.active_size = self.active_asked = 0
        self.note_active()
        self.reserved.reset_peak()
        self.segments.reset_peak()

    def reset_totals(self) -> None:
        """Forget what was ever gained and lost."""
        for name in ("count", "size", "split", "split_size"):
            setattr(self, f"{name}_base", getattr(self, name))
            setattr(self, f"{name}_gained", 0)
        self.active_base, self.active_size_base = self.count + self.pending, self.size + self.pending_size
        self.asked_base, self.asked_gained = self.asked + self.pending_asked, 0
        self.reserved.reset_totals()
        self.segments.reset_totals()

    def quads(self) -> dict[str, _QUAD]:
        """Return current, peak, gained and lost of each counter, by PyTorch's name."""
        active, active_size = self.count + self.pending, self.size + self.pending_size
        asked = self.asked + self.pending_asked
        count_gained, size_gained = self.count_gained, self.size_gained
        return {
            "allocation": _quad(self.count, self.count_peak, count_gained, self.count_base),
            "segment": self.segments.quad(),
            "active": _quad(active, max(self.active, self.count_peak), count_gained, self.active_base),
            "inactive_split": _quad(self.split, self.split_peak, self.split_gained, self.split_base),
            "allocated_bytes": _quad(self.size, self.size_peak, size_gained, self.size_base),
            "reserved_bytes": self.reserved.quad(),
            "active_bytes": _quad(
                active_size, max(self.active_size, self.size_peak), size_gained, self.active_size_base
            ),
            "inactive_split_bytes": _quad(
                self.split_size, self.split_size_peak, self.split_size_gained, self.split_size_base
            ),
            "requested_bytes": _quad(
                asked, max(self.active_asked, self.asked_peak), self.asked_gained, self.asked_base
            ),
        }


def _quad(current: int, peak: int, gained: int, base: int) -> _QUAD:
    return current, peak, gained, base + gained - current


def nested(total: Tally, small: Tally, large: Tally) -> dict[str, Any]:
    """Return the counters of all pools in the format of `torch._C._cuda_memoryStats`.

    What was gained and lost in all pools is the sum of both; only the peaks of `total` are its own.
    """
    halves = (small.quads(), large.quads())
    stats: dict[str, Any] = {}
    for name, quad in total.quads().items():
        sums = [sum(half[name][i] for half in halves) for i in range(4)]
        sums[1] = quad[1]
        stats[name] = {
            "all": _named(sums),
            "small_pool": _named(halves[0][name]),
            "large_pool": _named(halves[1][name]),
        }
    return stats


def _named(quad: Any) -> dict[str, int]:
    return dict(zip(("current", "peak", "allocated", "freed"), quad, strict=True))


def named_level(level: Level) -> dict[str, int]:
    """Return a single level as PyTorch shows it."""
    return _named(level.quad())
