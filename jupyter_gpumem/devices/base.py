"""What a device is to the rest of the package: two small Protocols.

A `Backend` is a family of devices whose memory PyTorch manages (its counters are exact); a `Driver` speaks for the
whole card, other processes included. Everything above this package is written against these two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from jupyter_gpumem.records import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from jupyter_gpumem.records import Device, DriverMemory

VIRTUAL = "gpumem_label"
"""The attribute of a device's properties that says what a device is called that is not there but modelled."""

Stats: TypeAlias = dict[str, Any]
"""PyTorch's nested statistics: `{"allocated_bytes": {"all": {"current": 0, "peak": 0, ...}, ...}, "num_ooms": 0}`."""


class Watcher(Protocol):
    """Who wants to know when user code reads or resets the counters that we also use. Runs on the caller's thread."""

    def reading(self, backend: Backend, index: int, stats: Stats) -> None:
        """Correct, in place, statistics that are about to be handed to the user."""

    def peak_reset(self, backend: Backend, index: int) -> AbstractContextManager[None]:
        """Return a context in which the user's own reset of the peaks takes place."""

    def totals_reset(self, backend: Backend, index: int) -> AbstractContextManager[None]:
        """Return a context in which the user's own reset of the accumulated counts takes place."""


class Backend(Protocol):
    """A family of devices with one allocator each. Every method is thread-safe and none initialises a device."""

    @property
    def kind(self) -> str:
        """PyTorch's device type, such as `cuda`."""

    def ready(self) -> Sequence[int]:
        """Return the indices of the devices that this process already uses: only these have counters."""

    def count(self) -> int | None:
        """Return how many devices are visible, or `None` while that cannot be known without initialising."""

    def device(self, index: int) -> Device:
        """Return who a ready device is."""

    def stats(self, index: int) -> Stats:
        """Return a fresh reading of a ready device's counters (about 15 us)."""

    def reset_peaks(self, index: int) -> None:
        """Set every peak to its current value. Only the peak ledger may call this."""

    def memory(self, index: int) -> DriverMemory | None:
        """Return total and free bytes as the device's run-time library gives them, or `None`."""

    def segments(self, index: int) -> list[dict[str, Any]] | None:
        """Return the allocator's segments in PyTorch's snapshot format, or `None`. Milliseconds: not for hot paths."""

    def settings(self) -> dict[str, Any]:
        """Return the allocator settings in force as the snapshot tells them; empty when there are none."""

    def starting_text(self) -> str | None:
        """Return the settings string that these devices began with; `None` where the environment has said it."""

    def limit(self, index: int) -> int | None:
        """Return how many bytes this process may reserve, or `None` without a cap."""

    def owns(self, index: int, address: int, storage: object) -> bool:
        """Whether a storage that says it lies at an address of a device does, and was not left by another back end."""

    def workspaces(self, index: int) -> dict[int, int]:
        """Return `{address: bytes}` of the library workspaces kept for the life of the process. Milliseconds."""

    def watch(self, watcher: Watcher) -> Callable[[], None] | None:
        """Let `watcher` see the user's reads and resets from now on.

        Returns the function that undoes it, or `None` while there is nothing to watch.
        """

    def controls(self) -> Controls | None:
        """Return what acts on these devices' allocators, or `None` where PyTorch offers nothing of the kind."""


class Controls(Protocol):
    """What acts on the allocators of a back end. Nothing of it is called unless a user asked for that very act.

    Devices are named by index and must be ready: acting on another one would create a context there.
    """

    def apply_settings(self, text: str) -> None:
        """Hand PyTorch a settings string, for the whole process. One call is not incremental.

        Raises:
            ValueError, RuntimeError: PyTorch's own refusals; keys before the bad one are in force then.
        """

    def settings_text(self, values: Mapping[str, Any]) -> str | None:
        """Return the string PyTorch was given last, even if it refused it; `None` where it does not tell.

        Args:
            values: the settings as the snapshot tells them, which PyTorch before 2.12 is asked by.
        """

    def empty_cache(self) -> None:
        """Give unused cached memory of all devices back to the driver. Waits for the GPU."""

    def clear_workspaces(self) -> None:
        """Let go of the library workspaces of all devices; the next matrix products take new ones."""

    def stream(self, index: int) -> int:
        """Return the handle of this thread's current stream; 0 is the default one."""

    def allocate(self, index: int, size: int, owned: list[int]) -> None:
        """Allocate memory that no tensor owns, on this thread's current stream, unless it is short.

        Args:
            index: the device.
            size: bytes.
            owned: gets the address, before anything can keep this from returning.
        """

    def free(self, address: int) -> None:
        """Give such memory back to the cache. Thread-safe."""

    def set_fraction(self, index: int, fraction: float) -> None:
        """Cap what this process may reserve, as a share of the card's total; 1.0 takes the cap away."""

    def shares_memory(self) -> bool:
        """Whether other processes may use tensors of this one, as far as can be told."""


class Driver(Protocol):
    """The card as its driver sees it. Every method is thread-safe and quick (under 0.1 ms once started)."""

    def memory(self, device: Device) -> DriverMemory | None:
        """Return the memory of the card that `device` is, or `None` when that very card cannot be identified."""

    def cards(self) -> tuple[tuple[Device, DriverMemory], ...]:
        """Return every card of the machine, for processes that have not initialised one; indices are the driver's."""


_NO_POOLS: Stats = {"all": {}}


class Levels(NamedTuple):
    """What is read of a device several times a second; see `Counters` for the words."""

    allocated: int | None
    reserved: int | None
    peak_allocated: int | None
    retries: int | None
    ooms: int | None


def levels(stats: Stats) -> Levels:
    """Pick these out of PyTorch's nested statistics: a fifth of the time that all counters take."""
    allocated, reserved = stats.get("allocated_bytes", _NO_POOLS)["all"], stats.get("reserved_bytes", _NO_POOLS)["all"]
    return Levels(
        allocated.get("current"),
        reserved.get("current"),
        allocated.get("peak"),
        stats.get("num_alloc_retries"),
        stats.get("num_ooms"),
    )


def counters(stats: Stats) -> Counters:
    """Pick the counters we report out of PyTorch's nested statistics; what is not there stays `None`."""
    allocated, reserved = stats.get("allocated_bytes", _NO_POOLS)["all"], stats.get("reserved_bytes", _NO_POOLS)["all"]
    count = stats.get("allocation", _NO_POOLS)["all"]
    return Counters(
        allocated.get("current"),
        reserved.get("current"),
        stats.get("active_bytes", _NO_POOLS)["all"].get("current"),
        stats.get("requested_bytes", _NO_POOLS)["all"].get("current"),
        stats.get("inactive_split_bytes", _NO_POOLS)["all"].get("current"),
        live=count.get("current"),
        peak_allocated=allocated.get("peak"),
        peak_reserved=reserved.get("peak"),
        retries=stats.get("num_alloc_retries"),
        ooms=stats.get("num_ooms"),
        allocation_count=count.get("allocated"),
        allocation_bytes=allocated.get("allocated"),
    )
