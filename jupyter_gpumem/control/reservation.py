"""Putting memory aside: into PyTorch's cache, where later requests find it, or held as a guard band.

`torch.cuda.memory.reserve()`, which many recommend, does not exist. What works is to allocate and let go: the memory
stays in the cache, in the pool and on the stream where it was allocated.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.arguments import check_flag
from jupyter_gpumem.devices import actable_device, driver_memory, note_loss
from jupyter_gpumem.errors import ShortOfMemoryError
from jupyter_gpumem.finishing import uninterrupted
from jupyter_gpumem.fragments import pool_id_of, segment_at
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.records import Reservation
from jupyter_gpumem.units import format_bytes

from .amounts import parse_amount
from .book import RESERVATIONS, refreshed
from .configuration import configuration
from .room import Room, has_room, is_kept_whole, largest_request, usefulness

if TYPE_CHECKING:
    from types import TracebackType

    from jupyter_gpumem.devices import Backend, Controls


__all__ = ["RESERVATIONS", "Reserved", "reserve"]

_IN_THE_PEAK = (
    "the peak of allocated memory, yours and that of open measurements, may count it: another thread allocated or "
    "freed at the same moment"
)


class Reserved:
    """Memory that was put aside: `with gm.reserve("2GiB", hold=True) as r:` releases it at the end."""

    def __init__(self, record: Reservation, backend: Backend) -> None:
        self._record, self._backend = record, backend

    @property
    def record(self) -> Reservation:
        """What is known of it, as it is now; once the CUDA context is lost, as it was."""
        now = self._record
        if now.state == "held" and not RESERVATIONS.holds(now):
            now = dataclasses.replace(now, state="cached", free=now.size)
        return refreshed(now, self._backend)

    def release(self) -> None:
        """Give it back to the cache, if it is held and was not given back yet."""
        RESERVATIONS.let_go(self._record)

    def __enter__(self) -> Reserved:
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if value is None or not note_loss(value):  # a block that lost the context has its own error to show
            self.release()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain containers."""
        return self.record.to_dict()

    def __repr__(self) -> str:
        return str(self.record)

    def _repr_html_(self) -> str | None:
        return self.record._repr_html_()


def reserve(
    size: int | str, *, hold: bool = False, name: str | None = None, device: int | str | None = None
) -> Reserved:
    """Put memory aside for this process, in one piece, on the current stream of the calling thread.

    Args:
        size: bytes, or a text: `512MiB`, `80%` (of the card), `80%free` (of what is free on it, and within the cap).
        hold: keep it allocated, as a guard band that nothing else gets; otherwise later requests find it in the cache.
        name: what to release it by.
        device: index or label; needed where the process uses several.

    Raises:
        InvalidValueError: the size or the flag is not understood, the name is in use, or it is not clear which device
            is meant.
        ShortOfMemoryError: there is too little left; nothing was changed.
        UnavailableError: there is nothing to reserve on, or the device is not in use by this process.
        DeviceNotFoundError: the device is not visible.
    """
    amount = parse_amount(size)
    check_flag("hold", hold)
    backend, controls, index = actable_device("memory cannot be put aside", device)
    room = _room(backend, index)
    if amount.free and not room.least:
        why = "its cap leaves nothing" if room.allowed == 0 else "the driver has nothing left"
        raise ShortOfMemoryError(
            f"nothing of what is free can be put aside on {backend.device(index).label}: {why}, with "
            f"{format_bytes(room.reserved)} reserved; name a size, for what the cache has, or make room first"
        )
    wanted = amount.of(backend.device(index).total or 0, room.least)
    with RESERVATIONS.claim(name) as name:
        return _put_aside(backend, controls, index, wanted, name, hold=hold)


def _put_aside(backend: Backend, controls: Controls, index: int, wanted: int, name: str, *, hold: bool) -> Reserved:
    settings = configuration(backend, controls).in_force()
    stream = controls.stream(index)
    segments, room = backend.segments(index) or [], _room(backend, index)
    where = f"{format_bytes(wanted)} cannot be put aside on {backend.device(index).label}"
    if not has_room(wanted, segments, stream, settings, room):  # PyTorch would empty the cache before it gives up
        largest = largest_request(segments, stream, settings, room)
        raise ShortOfMemoryError(
            f"{where}: the largest size that would work now is {format_bytes(largest)} ({largest} bytes); "
            "nothing was changed"
        )
    owned: list[int] = []
    made: list[Reservation] = []

    def make() -> None:
        before = _reserved(backend, index)
        controls.allocate(index, wanted, owned)
        if not owned:
            raise ShortOfMemoryError(
                f"{where}, although {format_bytes(room.least)} seemed free: other processes were faster, or it is in "
                "pieces; PyTorch has emptied its cache in the attempt"
            )
        segment: dict[str, Any] = segment_at(backend.segments(index) or [], owned[0]) or {}
        reservation = Reservation(
            name=name,
            device=backend.device(index),
            size=wanted,
            taken=_reserved(backend, index) - before,
            address=owned[0],
            segment="expandable" if segment.get("is_expandable", False) else "driver",
            pool=segment.get("segment_type", "large"),
            private=bool(segment) and pool_id_of(segment) != (0, 0),
            stream=stream,
            state="held" if hold else "cached",
            free=0 if hold else wanted,
            warnings=() if hold else tuple(usefulness(wanted, settings)),
            whole=is_kept_whole(wanted, settings),
        )
        if not hold:
            controls.free(owned.pop())
        made.append(reservation)

    try:
        with uninterrupted():
            if hold:  # that is allocated, and counts as such
                make()
            elif not LEDGER.keep_out(backend, index, make):
                made[0] = dataclasses.replace(made[0], warnings=(*made[0].warnings, _IN_THE_PEAK))
            RESERVATIONS.add(made[0], backend, controls)
    except BaseException:  # also an interrupt, at the end: nobody gets to know of this memory
        with uninterrupted():
            RESERVATIONS.drop(name)
            for address in owned:
                controls.free(address)
        raise
    return Reserved(made[0], backend)


def _room(backend: Backend, index: int) -> Room:
    """Return how many bytes can still be reserved: what the driver has left, and what the cap leaves."""
    free, limit, reserved = _free(backend, index), backend.limit(index), _reserved(backend, index)
    total = backend.device(index).total or free or 0
    return Room(free, total, None if limit is None else max(0, limit - reserved), reserved)


def _free(backend: Backend, index: int) -> int | None:
    memory = backend.memory(index) or driver_memory(backend, index)
    return None if memory is None else memory.free


def _reserved(backend: Backend, index: int) -> int:
    return int(backend.stats(index)["reserved_bytes"]["all"]["current"])
