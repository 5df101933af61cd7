"""The book of what this process has put aside, by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import shlex
import threading
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.arguments import shown
from jupyter_gpumem.devices import backends, check_context
from jupyter_gpumem.errors import InvalidValueError, UnavailableError
from jupyter_gpumem.finishing import run_all, uninterrupted
from jupyter_gpumem.fragments import is_empty, lying_in, pins, segment_at
from jupyter_gpumem.records import Pin, Reservation, Reservations
from jupyter_gpumem.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jupyter_gpumem.devices import Backend, Controls


class ReservationBook:
    """What this process has put aside. Thread-safe.

    Held memory lives until it is released: it outlasts a reload of the extension, but not its unloading.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[str, tuple[Reservation, Backend, Controls]] = {}
        self._claimed: set[str] = set()

    def list(self) -> Reservations:
        """Return everything that was put aside and is still there, or has gone since it was listed last."""
        with self._lock:
            found = [refreshed(reservation, backend) for reservation, backend, _ in self._entries.values()]
            for reservation in found:
                if reservation.state == "gone":
                    del self._entries[reservation.name]
            return Reservations(tuple(found))

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

    def pins(
        self, backend: Backend, index: int, segments: Sequence[dict[str, Any]], large_page: int
    ) -> tuple[Pin, ...]:
        """Return the segments of a device that strand free bytes, with the names of what is held in them."""
        names: dict[int, tuple[str, ...]] = {}
        for address, reservation in self.held(backend, index).items():
            segment = segment_at(segments, address)
            if segment is not None:
                names[segment["address"]] = (*names.get(segment["address"], ()), reservation.name)
        return tuple(
            dataclasses.replace(pin, reservations=names.get(pin.address, ()))
            for pin in pins(segments, large_page=large_page)
        )

    def returnable(self, backend: Backend, index: int, segments: Sequence[dict[str, Any]]) -> tuple[str, ...]:
        """Return the names of what is in the cache of a device and goes back to the driver when that is emptied."""
        with self._lock:
            cached = [
                reservation
                for reservation, owner, _ in self._entries.values()
                if reservation.state == "cached" and owner is backend and reservation.device.index == index
            ]
        return tuple(
            one.name
            for one in cached
            if (segment := segment_at(segments, one.address)) is not None
            and (
                is_empty(segment)
                or (segment.get("is_expandable", False) and lying_in(segments, one.address, one.size)[0])
            )
        )

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
        if name is not None and not _is_name(name):
            raise InvalidValueError(
                f"not a name: {shown(name)}; write a text such as spare, in one line, not beginning with - and without "
                "{, } and $"
            )
        claimed: str | None = None
        try:
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
                claimed = name  # first: an interrupt must not leave a name that nobody can have
                self._claimed.add(name)
            yield name
        finally:
            if claimed is not None:
                with self._lock:
                    self._claimed.discard(claimed)

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
                there = ", ".join(map(shlex.quote, self._entries)) or "nothing"
                raise InvalidValueError(f"nothing is put aside under the name {name!r}; there is: {there}")
            names = tuple(self._entries) if name is None else (name,)
            for one in names:
                self._let_go(one)
            return names

    def release_and_list(self, name: str | None = None) -> Reservations:
        """Release, and return what is left, with the names of what was held and of what was only cached.

        Raises as `release` does.
        """
        with self._lock:
            held = {one for one in self._entries if self._holds_memory(one)}
            names = self.release(name)
            return dataclasses.replace(
                self.list(),
                released=tuple(one for one in names if one in held),
                forgotten=tuple(one for one in names if one not in held),
            )

    def _holds_memory(self, name: str) -> bool:
        """Whether an entry is held, and not gone with a virtual GPU that is switched off."""
        reservation, backend, _ = self._entries[name]
        return reservation.state == "held" and backend in backends()

    def _let_go(self, name: str) -> None:
        """Forget an entry, and free what it holds; the lock is held."""
        reservation, _, controls = self._entries[name]
        held = self._holds_memory(name)
        if held:
            check_context()
        with uninterrupted():
            del self._entries[name]  # first: whatever comes of it, nothing is freed twice
            if held:
                controls.free(reservation.address)

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

    def let_go(self, reservation: Reservation) -> None:
        """Release this very reservation, if that was not done yet."""
        with self._lock:
            if self.holds(reservation):
                self.release(reservation.name)

    def holds(self, reservation: Reservation) -> bool:
        """Whether this very reservation is still noted: its name may be another one's by now."""
        with self._lock:
            return self._entries.get(reservation.name, (None,))[0] is reservation

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


def _is_name(name: object) -> bool:
    """Whether one can write it after `--release`, where IPython puts values in the place of braces and `$`."""
    return isinstance(name, str) and name.isprintable() and bool(re.fullmatch(r"\s*[^\s\-{}$][^{}$]*", name))


RESERVATIONS = ReservationBook()


def refreshed(reservation: Reservation, backend: Backend) -> Reservation:
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
