"""Trying advice out: the allocator's live state in the model, changed as advised, and the failed request again."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.allocator.start import Held, adopt, pool_of
from jupyter_gpumem.allocator.trace import Trace
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import MiB

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyter_gpumem.allocator.blocks import PoolId

    from .observer import OomState

_SMALL_SEGMENT, _LARGEST_SMALL, _LARGEST_SHARED = 2 * MiB, MiB, 10 * MiB - 512
_SPACE, _RANGE = 1 << 60, 1 << 50
"""Addresses for memory that the model's allocator gets beyond what is there."""


class RemainingDriver:
    """A driver that has so many bytes left and takes everything back, wherever it came from."""

    def __init__(self, free: int) -> None:
        self._free, self._next = free, _SPACE

    @property
    def free(self) -> int | None:
        return self._free

    def allocate(self, size: int) -> int | None:
        if size > self._free:
            return None
        self._free -= size
        return self._address(size)

    def release(self, address: int, size: int) -> None:  # noqa: ARG002
        self._free += size

    def reserve(self, size: int) -> int | None:
        return self._address(size)

    def unreserve(self, address: int, size: int) -> None:
        """Do nothing: addresses are plentiful."""

    def map(self, address: int, size: int) -> bool:  # noqa: ARG002
        if size > self._free:
            return False
        self._free -= size
        return True

    def unmap(self, address: int, size: int) -> None:  # noqa: ARG002
        self._free += size

    def _address(self, size: int) -> int:
        address = self._next
        self._next += -(-size // (32 * MiB)) * 32 * MiB
        return address


class Rehearsal:
    """The state in which a request failed, to be tried under other circumstances.

    Args:
        state: what was kept when it failed.

    Attributes:
        settings: the settings in force.
        usable: whether the model, as the state is, refuses the request too: only then its other answers mean anything.
    """

    def __init__(self, state: OomState) -> None:
        self._state = state
        self._segments = state.segments or []
        try:
            self.settings = AllocatorSettings.from_snapshot(state.settings)
        except InvalidValueError:
            self.settings = AllocatorSettings()
            self._segments = []
        self._size = _request(state.tried, self.settings)
        self.usable = (
            bool(self._segments)
            and self._size is not None
            and state.free is not None
            and not dict(self.settings.others).get("backend", "native").startswith("cudaMallocAsync")
            and self.succeeds() is False
        )

    def succeeds(self, *, freed: Collection[int] = (), capped: bool = True, added: int = 0) -> bool | None:
        """Return whether the request would succeed now, under the settings in force; `None` if that is unclear.

        Args:
            freed: addresses of allocations that are given up before.
            capped: whether the cap stays.
            added: bytes that the driver gets besides.
        """
        held, alive = self._held(freed)
        return self._try(held, alive, self.settings, capped=capped, added=added)

    def succeeds_expandable(self) -> bool | None:
        """Return whether it would had the process been started with expandable segments; `None` if that is unclear.

        Every tensor is taken to lie in its segment as it does now. What expandable segments change is that pages
        between them go back to the driver, and come again where they are needed.
        """
        settings = replace(self.settings, expandable_segments=True)
        held, alive = self._held(())
        moved_held: list[Held] = []
        moved_alive: list[tuple[int, int, int, Any]] = []
        base = _SPACE * 2
        for owner, group in groupby(sorted(held, key=_owner), key=_owner):
            base += _RANGE
            at, page = base, _SMALL_SEGMENT if owner[1] else settings.large_segment_size
            for old in sorted(group, key=lambda h: h.address):
                inside = [a for a in alive if old.address <= a[0] < old.address + old.size]
                moved_alive += [(at + a[0] - old.address, *a[1:]) for a in inside]
                at += -(-old.size // page) * page
            moved_held.append(Held(base, at - base, owner[2], owner[1], owner[0], expandable=True))
        grown = sum(h.size for h in moved_held) - sum(h.size for h in held)
        return self._try(moved_held, moved_alive, settings, capped=True, added=-grown)

    def _held(self, freed: Collection[int]) -> tuple[list[Held], list[tuple[int, int, int, Any]]]:
        held, alive = [], []
        for segment in self._segments:
            stream, pool = segment.get("stream", 0), pool_of(segment)
            small = segment.get("segment_type") == "small"
            expandable = bool(segment.get("is_expandable", False))
            held.append(Held(segment["address"], segment["total_size"], stream, small, pool, expandable))
            address = segment["address"]
            for block in segment["blocks"]:
                address = block.get("address", address)
                if block["state"] != "inactive" and address not in freed:
                    requested = block.get("requested_size") or block["size"]
                    alive.append((address, requested, stream, pool if pool != (0, 0) else None))
                address += block["size"]
        return held, alive

    def _try(
        self, held: list[Held], alive: list[Any], settings: AllocatorSettings, *, capped: bool, added: int
    ) -> bool | None:
        assert self._size is not None  # noqa: S101 - not asked otherwise
        allocator = Allocator(
            settings,
            total_memory=self._state.device.total,
            driver=RemainingDriver((self._state.free or 0) + added),
        )
        allocator.set_limit(self._state.limit if capped else None)
        if not adopt(allocator, held, Trace(start=alive)):
            return None
        try:
            allocator.malloc(self._size, self._state.stream)
        except ModelOutOfMemoryError:
            return False
        return True


def _owner(held: Held) -> tuple[PoolId, bool, int]:
    return held.pool, held.small, held.stream


def _request(tried: int | None, settings: AllocatorSettings) -> int | None:
    """Return the largest request that needs a segment of that size: what was really asked for is not told."""
    if tried is None:
        return None
    if tried <= _SMALL_SEGMENT:
        return _LARGEST_SMALL
    if tried == settings.large_segment_size:
        return min(_LARGEST_SHARED, tried)
    return tried
