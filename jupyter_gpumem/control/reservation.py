"""Putting memory aside: into PyTorch's cache, where later requests find it, or held as a guard band.

`torch.cuda.memory.reserve()`, which many recommend, does not exist. What works is to allocate and let go: the memory
stays in the cache, in the pool and on the stream where it was allocated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.arguments import shown
from jupyter_gpumem.devices import actable_device, backends, check_context, driver_memory, note_loss
from jupyter_gpumem.errors import InvalidValueError, ShortOfMemoryError, UnavailableError
from jupyter_gpumem.finishing import run_all, uninterrupted
from jupyter_gpumem.fragments import lying_in, pool_id_of, segment_at
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.records import Reservation, Reservations
from jupyter_gpumem.units import format_bytes

from .amounts import parse_amount
from .configuration import configuration
from .room import Room, has_room, largest_request, usefulness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from jupyter_gpumem.devices import Backend, Controls


_IN_THE_PEAK = (
    "the peak of allocated memory, yours and that of open measurements, may count it: another thread allocated or "
    "freed at the same moment"
)


class ReservationBook:
    """What this process has put aside. Thread-safe.

    Held memory lives until it is released: it outlasts a reload of the extension, but not its unloading.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[str, tuple[Reservation, Backend, Controls]] = {}
        self._claimed: set[str] = set()

    def list(self, released: tuple[str, ...] = ()) -> Reservations:
        """Return everything that was put aside and is still there, or has gone since it was listed last.

        Args:
            released: names of what was just released, to be shown with it.
        """
        with self._lock:
            found = [_refreshed(reservation, backend) for reservation, backend, _ in self._entries.values()]
            for reservation in found:
                if reservation.state == "gone":
                    del self._entries[reservation.name]
            return Reservations(tuple(found), released)

    def held(self, backend: Backend, index: int) -> dict[int, Reservation]:
        """Return what is held on a device, by address.

        A virtual GPU that was switched off and on again is another back end: what its predecessor held is gone.
        """
        with self._lock:
            return {
                reservation.address: reservation
                for reservation, owner, _ in self._entries.values()
                if reservation.state == "held" and owner is backend and reservation.device.index == index
            }

    def names(self) -> tuple[str, ...]:
        """Return the names in use."""
        with self._lock:
            return tuple(self._entries)

    @contextlib.contextmanager
    def claim(self, name: str | None) -> Iterator[str]:
        """Keep a name, or one that is made up, for a reservation that is being made.

        Raises:
            InvalidValueError: it is in use, or no name.
        """
        if name is not None and not (isinstance(name, str) and name.strip()):
            raise InvalidValueError(f"not a name: {shown(name)}; write a text such as spare")
        with self._lock:
            self.list()  # names of what has gone are free again
            if name is None:
                tries = (f"reserve-{i}" for i in range(1, len(self._entries) + len(self._claimed) + 2))
                name = next(one for one in tries if one not in self._entries and one not in self._claimed)
            elif name in self._claimed:
                raise InvalidValueError(f"{name!r} is being put aside by another thread; choose another name")
            elif name in self._entries:
                raise InvalidValueError(
                    f"{name!r} already names {format_bytes(self._entries[name][0].size)} that are put aside; "
                    "choose another name, or release it first"
                )
            self._claimed.add(name)
        try:
            yield name
        finally:
            with self._lock:
                self._claimed.discard(name)

    def add(self, reservation: Reservation, backend: Backend, controls: Controls) -> None:
        """Note one more."""
        with self._lock:
            self._entries[reservation.name] = reservation, backend, controls

    def drop(self, name: str) -> None:
        """Forget what was not put aside after all."""
        with self._lock:
            self._entries.pop(name, None)

    def release(self, name: str | None = None) -> tuple[str, ...]:
        """Give held memory back to the cache, and forget what was only cached; returns the names.

        Args:
            name: which; everything without one.

        Raises:
            InvalidValueError: there is nothing of that name.
            UnavailableError: the CUDA context is lost.
        """
        with self._lock:
            if name is not None and name not in self._entries:
                there = ", ".join(self._entries) or "nothing"
                raise InvalidValueError(f"nothing is put aside under the name {name!r}; there is: {there}")
            names = tuple(self._entries) if name is None else (name,)
            for one in names:
                self._let_go(one)
            return names

    def _let_go(self, name: str) -> None:
        """Forget an entry, and free what it holds; the lock is held."""
        reservation, backend, controls = self._entries[name]
        # With a virtual GPU that is switched off, its memory is gone too.
        held = reservation.state == "held" and backend in backends()
        if held:
            check_context()
        with uninterrupted():
            del self._entries[name]  # first: whatever comes of it, nothing is freed twice
            if held:
                controls.free(reservation.address)

    def let_go(self, reservation: Reservation) -> None:
        """Release this very reservation, if that was not done yet."""
        with self._lock:
            if self.holds(reservation):
                self.release(reservation.name)

    def holds(self, reservation: Reservation) -> bool:
        """Whether this very reservation is still noted: its name may be another one's by now."""
        with self._lock:
            return self._entries.get(reservation.name, (None,))[0] is reservation

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Have everything afterwards as it was: what is put aside or released meanwhile is so on trial."""
        with self._lock:
            kept = self._entries, self._claimed
            self._entries, self._claimed = dict(self._entries), set()
        try:
            yield
        finally:
            with self._lock:
                self._entries, self._claimed = kept

    def close(self) -> None:
        """Release everything (`%unload_ext`); once the CUDA context is lost, only forget it."""

        def release(name: str) -> None:
            with contextlib.suppress(UnavailableError):
                self._let_go(name)

        with self._lock:
            try:
                run_all(functools.partial(release, name) for name in self.names())
            finally:
                self._entries.clear()


RESERVATIONS = ReservationBook()


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
        return _refreshed(now, self._backend)

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
        size: bytes, or a text: `512MiB`, `80%` (of the card), `80%free` (of what is free on it).
        hold: keep it allocated, as a guard band that nothing else gets; otherwise later requests find it in the cache.
        name: what to release it by.
        device: index or label; needed where the process uses several.

    Raises:
        InvalidValueError: the size is not understood, the name is in use, or it is not clear which device is meant.
        ShortOfMemoryError: there is too little left; nothing was changed.
        UnavailableError: there is nothing to reserve on, or the device is not in use by this process.
        DeviceNotFoundError: the device is not visible.
    """
    amount = parse_amount(size)
    backend, controls, index = actable_device("memory cannot be put aside", device)
    wanted = amount.of(backend.device(index).total or 0, _free(backend, index))
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
    free, limit = _free(backend, index), backend.limit(index)
    total = backend.device(index).total or free
    return Room(free, total, None if limit is None else max(0, limit - _reserved(backend, index)))


def _free(backend: Backend, index: int) -> int:
    memory = backend.memory(index) or driver_memory(backend, index)
    return memory.free if memory is not None else backend.device(index).total or 0


def _reserved(backend: Backend, index: int) -> int:
    return int(backend.stats(index)["reserved_bytes"]["all"]["current"])


def _refreshed(reservation: Reservation, backend: Backend) -> Reservation:
    """Return a reservation as it is now: what is cached serves tensors and goes back, and a virtual GPU goes off."""
    if backend not in backends():
        return dataclasses.replace(reservation, state="gone", free=0)
    if reservation.state != "cached":
        return reservation
    segments = backend.segments(reservation.device.index)
    if segments is None:  # as once the CUDA context is lost: nobody can tell what has become of it
        return reservation
    free, live = lying_in(segments, reservation.address, reservation.size)
    return dataclasses.replace(reservation, state="cached" if free else "in use" if live else "gone", free=free)
