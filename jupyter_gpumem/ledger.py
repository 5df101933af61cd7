"""The peak ledger: exact peaks for any number of open measurements, and the user's own maximum left as it was.

PyTorch keeps one peak for each device and everybody resets it for everybody (pytorch/pytorch#16266, #15968). The ledger
makes it serve all: before the counter is reset, its value is folded into every open interval and into the user's own
maximum; when the user reads the counter, that maximum is added back; when the user resets it, the value is folded into
the open intervals in the same way and the reset is honoured. Nothing here samples.

What cannot be seen is noticed where possible: a peak that fell without a reset we know of makes the affected results
lower bounds, and they say so.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from . import devices
from .intervals import RACE, UNSEEN_RESET, Account, Interval, Span, check_totals, highest, plus
from .peaks import fell, increase, leaves, read_peaks, rose, rose_and_fell
from .records import NOTHING_YET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .devices import Backend, Levels, Stats
    from .intervals import Key
    from .records import Counters


class PeakLedger:
    """The book of all open intervals of a process. Thread-safe; one instance, `LEDGER`, serves everybody."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._accounts: dict[Key, Account] = {}
        # Weak: a measurement that its owner dropped without an end (a tracker in a cell that ran again) is over.
        self._open: weakref.WeakSet[Interval] = weakref.WeakSet()
        self._unwatch: dict[Backend, Callable[[], None]] = {}
        self._import_watch: devices.TorchImportWatch | None = None

    # Measuring.

    def open(self, interval: Interval | None = None, ready: Iterable[Key] | None = None) -> Interval:
        """Begin an interval on every ready device that it covers, by default all. About 50 us for each device.

        Args:
            interval: what to begin; a caller that has it can `discard` it when an interrupt cuts this off.
            ready: the ready devices, where the caller has looked already.
        """
        interval = Interval() if interval is None else interval
        with self._lock:
            self._watch()
            for backend, index in devices.ready_devices() if ready is None else ready:
                if interval.covers(backend, index):
                    start = self._restart_peaks(backend, index)
                    interval.spans[backend, index] = Span(start, start.allocated, start.reserved)
            self._open.add(interval)
        return interval

    def close(self, interval: Interval) -> dict[Key, Span]:
        """End an interval and return its spans, in device order. Closing twice raises `ValueError`.

        A virtual device that was switched off meanwhile ends with nothing; one whose context was lost has no span.
        """
        ended = set()
        with self._lock:
            if interval not in self._open:
                raise ValueError("this interval is closed already")
            for backend, index in devices.ready_devices():
                if interval.covers(backend, index):
                    read = self._fold(backend, index, backend.stats(index))
                    span = self._span(interval, backend, index)
                    span.end = self._with_totals(backend, index, read)
                    check_totals(span)
                    ended.add((backend, index))
            self._open.remove(interval)
            self._drop_what_counters_show_again()
            self._unwatch_if_idle()
        lost = devices.lost_context() is not None
        return {key: span for key, span in interval.spans.items() if not lost or key in ended}

    def discard(self, interval: Interval) -> None:
        """End an interval that nobody wants to know of, if it is open."""
        with self._lock:
            self._open.discard(interval)
            self._unwatch_if_idle()

    def read(self, interval: Interval) -> list[tuple[Backend, int, Levels]]:
        """Return the levels of every ready device, with the peak of an interval that stays open.

        About 20 us for each device, on any thread. Nothing is folded for it: that comes with the next reset.
        """
        found = []
        with self._lock:
            for backend, index in devices.ready_devices():
                if interval.covers(backend, index):
                    allocated, reserved, peak, retries, ooms = devices.levels(backend.stats(index))
                    peak = highest(self._span(interval, backend, index).peak_allocated, peak)
                    account = self._account(backend, index)
                    retries, ooms = plus(retries, account.retries), plus(ooms, account.ooms)
                    found.append((backend, index, devices.Levels(allocated, reserved, peak, retries, ooms)))
        return found

    @property
    def open_intervals(self) -> int:
        """How many measurements are open now."""
        return len(self._open)

    @property
    def watching(self) -> bool:
        """Whether any binding of PyTorch is replaced, or its import watched, at the moment."""
        return bool(self._unwatch) or self._import_watch is not None

    def detach(self) -> None:
        """Give every binding back at once (`%unload_ext`). From then on the user's maximum is what the counter says."""
        with self._lock:
            for undo in self._unwatch.values():
                undo()
            self._unwatch.clear()
            if self._import_watch is not None:
                self._import_watch.remove()
                self._import_watch = None
            for account in self._accounts.values():
                account.user = None

    def attach(self) -> None:
        """Watch again, if a measurement is open: other devices may have come."""
        with self._lock:
            if self._open:
                self._watch()

    def keep_out(self, backend: Backend, index: int, brief: Callable[[], object]) -> bool:
        """Run what makes one allocation and frees it again, and keep that out of all peaks of allocated memory.

        What it takes from the driver stays reserved, and counts. Returns whether it could be told from what other
        threads did at the same moment; if not, the peaks are left as they are.
        """
        with self._lock:
            before = backend.stats(index)
            self._fold(backend, index, before)
            brief()
            after = backend.stats(index)
            made, freed = (increase(before, after, "allocation", way) for way in ("allocated", "freed"))
            if (made, freed) != (1, 1):
                return False
            if rose(read_peaks(before), read_peaks(after), but=("reserved_bytes", "segment")):
                self._watch()
                self._reset(backend, index, after)
            account = self._account(backend, index)
            account.count -= made
            account.size -= increase(before, after, "allocated_bytes", "allocated")
            return True

    # What the user's own code does meanwhile (`devices.Watcher`).

    def reading(self, backend: Backend, index: int, stats: Stats) -> None:
        """Raise the peaks in `stats` to what the user would see without us."""
        account = self._accounts.get((backend, index))
        if account is None or not account.user:
            return
        if fell(account.last, read_peaks(stats)):
            with self._lock:  # and read again: `stats` may be older than our own latest reset
                if index in backend.ready():
                    self._fold(backend, index, backend.stats(index))
        user = account.user or {}  # once: another thread may end the last measurement meanwhile
        for key, name, leaf in leaves(stats):
            leaf["peak"] = max(leaf["peak"], user.get((key, name), 0))

    @contextlib.contextmanager
    def peak_reset(self, backend: Backend, index: int) -> Iterator[None]:
        """Fold the peaks that the user is about to wipe out; afterwards the user's maximum starts anew."""
        with self._lock:
            if index not in backend.ready():  # a loop over all cards resets those without a context too
                yield
                return
            before = backend.stats(index)
            self._fold(backend, index, before)
            yield
            after = backend.stats(index)
            account = self._account(backend, index)
            account.user, account.last = None, read_peaks(after)
            self._doubt_if_raced(backend, index, before, after)
            self._unwatch_if_idle()

    @contextlib.contextmanager
    def totals_reset(self, backend: Backend, index: int) -> Iterator[None]:
        """Carry over the counts that the user is about to wipe out, so that differences stay right."""
        with self._lock:
            if index not in backend.ready():
                yield
                return
            before = devices.counters(backend.stats(index))
            yield
            account = self._account(backend, index)
            account.retries += before.retries or 0
            account.ooms += before.ooms or 0
            account.count += before.allocation_count or 0
            account.size += before.allocation_bytes or 0

    # Book-keeping; the lock is held.

    def _restart_peaks(self, backend: Backend, index: int) -> Counters:
        """Have the peaks begin at the current levels; where those we report do so already, nothing is reset."""
        before = backend.stats(index)
        read = self._fold(backend, index, before)
        if (read.peak_allocated, read.peak_reserved) == (read.allocated, read.reserved):
            return self._with_totals(backend, index, read)
        return self._with_totals(backend, index, devices.counters(self._reset(backend, index, before)))

    def _reset(self, backend: Backend, index: int, before: Stats) -> Stats:
        """Reset the peaks, after what was folded last has been kept for the user; returns the statistics then."""
        account = self._account(backend, index)
        if account.user is None:
            account.user = dict(account.last)
        else:
            for key, value in account.last.items():
                account.user[key] = max(account.user.get(key, 0), value)
        account.last = {}  # an interrupt right after the reset must not look like one out of our sight
        backend.reset_peaks(index)
        after = backend.stats(index)
        account.last = read_peaks(after)
        self._doubt_if_raced(backend, index, before, after)
        return after

    def _fold(self, backend: Backend, index: int, stats: Stats) -> Counters:
        """Take the peaks as read into every open interval, and notice if they fell since the last reading."""
        account = self._account(backend, index)
        peaks = read_peaks(stats)
        unseen = fell(account.last, peaks)
        if unseen:
            account.user = None  # honoured, as a reset in our sight would be
        account.last = peaks
        read = devices.counters(stats)
        for interval in self._open:
            if interval.covers(backend, index):
                span = self._span(interval, backend, index)
                span.peak_allocated = highest(span.peak_allocated, read.peak_allocated)
                span.peak_reserved = highest(span.peak_reserved, read.peak_reserved)
                if unseen:
                    span.doubt = span.doubt or UNSEEN_RESET
        return read

    def _span(self, interval: Interval, backend: Backend, index: int) -> Span:
        """Return the span of a device; one that became ready inside the interval began with nothing."""
        span = interval.spans.get((backend, index))
        if span is None:
            span = interval.spans[backend, index] = Span(NOTHING_YET, first_use=True)
        return span

    def _doubt_if_raced(self, backend: Backend, index: int, before: Stats, after: Stats) -> None:
        """Mark intervals if a peak can have come and gone between the reading and the reset.

        Memory that only grew, or only shrank, between the two has its maximum in one of them: nothing is lost then.
        """
        if any(rose_and_fell(before, after, key) for key in ("allocation", "reserved_bytes")):
            for interval in self._open:
                if interval.covers(backend, index):
                    self._span(interval, backend, index).doubt = RACE

    def _with_totals(self, backend: Backend, index: int, read: Counters) -> Counters:
        account = self._account(backend, index)
        if not (account.count or account.size):  # the user has never reset the accumulated counts
            return read
        return replace(
            read,
            retries=plus(read.retries, account.retries),
            ooms=plus(read.ooms, account.ooms),
            allocation_count=plus(read.allocation_count, account.count),
            allocation_bytes=plus(read.allocation_bytes, account.size),
        )

    def _account(self, backend: Backend, index: int) -> Account:
        account = self._accounts.get((backend, index))
        if account is None:
            account = self._accounts[backend, index] = Account()
        return account

    def _drop_what_counters_show_again(self) -> None:
        for account in self._accounts.values():
            if account.user is not None and all(account.last.get(k, 0) >= v for k, v in account.user.items()):
                account.user = None

    def _watch(self) -> None:
        for backend in devices.backends():
            undo = None if backend in self._unwatch else backend.watch(self)
            if undo is not None:
                self._unwatch[backend] = undo
        if self._import_watch is None and "torch" not in sys.modules:
            self._import_watch = devices.TorchImportWatch(self._torch_imported)
            self._import_watch.install()

    def _torch_imported(self) -> None:
        with self._lock:
            self.attach()

    def _unwatch_if_idle(self) -> None:
        if not self._open and all(account.user is None for account in self._accounts.values()):
            self.detach()


LEDGER = PeakLedger()
