"""Watching the fragmentation while a loop runs: a callback when a device passes a threshold, and nothing printed."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from jupyter_gpumem.arguments import check_listener, real, shown
from jupyter_gpumem.devices import check_context, counters, ready_devices
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.finishing import run_all, uninterrupted

from .auditing import THRESHOLD, audit_device, check_threshold

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from jupyter_gpumem.records import DeviceAudit

KEPT = 100
"""How many audits a monitor keeps, the newest ones."""

_running: weakref.WeakSet[monitor] = weakref.WeakSet()


class monitor:  # noqa: N801 - reads as a verb: `with gm.monitor(on_exceed=print):`
    """Watch the unallocated ratio of all devices in use: `with gm.monitor(5, 0.45, on_exceed=note) as m:`.

    A daemon thread reads the counters (about 15 us for each device) every `interval` seconds. When a device passes the
    threshold it is audited once; it has to fall below it again before it is audited anew. Also `start()` and `stop()`,
    each start being a new beginning.

    Args:
        interval: seconds between two readings.
        threshold: the unallocated ratio, from 0 to 1.
        on_exceed: called with the `DeviceAudit`, in the monitor's thread. An error in it ends the monitor, and is
            raised by `stop()`, or at the end of the block unless that has an error of its own.

    Raises:
        InvalidValueError: the interval or the threshold makes no sense, or `on_exceed` is no function.
    """

    def __init__(
        self,
        interval: float = 1.0,
        threshold: float = THRESHOLD,
        on_exceed: Callable[[DeviceAudit], object] | None = None,
    ) -> None:
        seconds = real(interval)
        if seconds is None or not 0 < seconds <= threading.TIMEOUT_MAX:
            raise InvalidValueError(
                f"not an interval: {shown(interval)}; write seconds above 0 and up to {int(threading.TIMEOUT_MAX):,}"
            )
        ratio = check_threshold(threshold)
        if on_exceed is not None:
            check_listener("on_exceed", on_exceed, "a DeviceAudit")
        self._interval, self._threshold, self._on_exceed = seconds, ratio, on_exceed
        self._above: set[str] = set()
        self._audits: deque[DeviceAudit] = deque(maxlen=KEPT)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def audits(self) -> tuple[DeviceAudit, ...]:
        """What was found whenever a device passed the threshold, the newest at most 100."""
        return tuple(self._audits)

    @property
    def running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Read every device once, now, in the calling thread.

        Raises:
            UnavailableError: the CUDA context is lost; it ends the thread, and `stop()` raises it.
        """
        check_context()
        for backend, index in ready_devices():
            levels = counters(backend.stats(index))
            label = f"{backend.kind}:{index}"
            reserved = levels.reserved or 0
            if not reserved or 1 - (levels.allocated or 0) / reserved <= self._threshold:
                self._above.discard(label)
            elif label not in self._above:
                found = audit_device(backend, index, self._threshold)
                if found is not None and found.exceeded:
                    self._above.add(label)
                    self._audits.append(found)
                    if self._on_exceed is not None:
                        self._on_exceed(found)

    def start(self) -> monitor:
        """Begin to watch, and return itself.

        Raises:
            InvalidValueError: it watches already.
            UnavailableError: the CUDA context is lost.
        """
        check_context()
        if self.running:
            raise InvalidValueError("this monitor watches already; stop it first, or make another one")
        self._ended.clear()
        self._above.clear()
        self._error = None
        thread = threading.Thread(target=self._watch, name="gpumem-monitor", daemon=True)
        try:
            with uninterrupted():
                self._thread = thread
                _running.add(self)
                thread.start()
        except BaseException:  # an interrupt: nobody has this monitor yet, to stop it
            self.end()
            raise
        return self

    def stop(self) -> None:
        """Stop watching; harmless if it does not watch. Raises what the callback raised, if it did."""
        self.end()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """Stop watching, and leave what the callback raised to `stop()`."""
        self._ended.set()
        if self._thread is not None and self.running and self._thread is not threading.current_thread():
            self._thread.join()
        _running.discard(self)

    def _watch(self) -> None:
        try:
            while not self._ended.is_set():
                self.check()
                self._ended.wait(self._interval)
        except BaseException as error:  # noqa: BLE001 - also an exit: it belongs to the caller, who gets it from `stop`
            self._error = error

    def __enter__(self) -> monitor:
        try:
            return self.start()
        except KeyboardInterrupt:  # after the start, and before the block, whose end would stop it
            self.end()
            raise

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:  # the one to see; what the callback raised is not lost: `stop` has it
            self.end()


def end_all() -> None:
    """Stop every monitor (`%unload_ext`)."""
    run_all(one.end for one in list(_running))
