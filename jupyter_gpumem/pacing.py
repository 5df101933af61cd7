"""One background thread that beats at a steady pace, whatever the main thread does.

It survives forks (`os.register_at_fork`), never prints, and keeps the error that ended it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_FORK_PATIENCE = 1.0
_STOP_PATIENCE = 2.0


class Clock:
    """Real time: what the pace is kept by. Tests bring their own."""

    def now(self) -> float:
        """Return seconds that only ever grow."""
        return time.monotonic()

    def wait(self, wake: threading.Event, seconds: float) -> None:
        """Return when `wake` is set, or after that many seconds."""
        wake.wait(seconds)


class Heartbeat:
    """A daemon thread that calls `beat` every `interval` seconds until it is stopped or an error ends it.

    Beats fall on multiples of the interval since the start: a late one does not delay the next, and beats that were
    missed altogether (a long C call that kept the interpreter's lock) are left out.

    Args:
        beat: called on the thread. It must neither print nor display.
        interval: seconds from beat to beat.
        clock: what time is.
        on_error: called on the thread, once, after an exception of `beat` was kept in `error`.

    Attributes:
        error: what ended the thread, or `None`.
        interval: seconds from beat to beat.
    """

    def __init__(
        self,
        beat: Callable[[], None],
        interval: float,
        *,
        clock: Clock | None = None,
        on_error: Callable[[], None] | None = None,
    ) -> None:
        self.error: Exception | None = None
        self.interval = interval
        self._beat = beat
        self._clock = clock or Clock()
        self._on_error = on_error
        self._thread: threading.Thread | None = None
        self._beating = threading.Lock()
        self._wake = threading.Event()
        self._stopped = True
        self._held = False
        _heartbeats.add(self)

    def start(self) -> None:
        """Begin to beat; harmless while it does."""
        if not self.running:
            self._stopped = False
            self._wake.clear()
            self._thread = threading.Thread(target=self._run, name="gpumem-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it, but not for ever: a beat that hangs must not hang its owner."""
        thread = self._thread
        self._stopped = True
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_PATIENCE)
        self._thread = None

    def poke(self) -> None:
        """Let the next beat come at once; the pace of the others stays."""
        self._wake.set()

    @property
    def running(self) -> bool:
        """Whether it beats in this very process."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        due = self._clock.now()
        while not self._stopped:
            try:
                with self._beating:
                    self._beat()
            except Exception as error:  # noqa: BLE001 - kept, and raised by whoever asks: a thread has nobody to tell
                self.error = error
                if self._on_error is not None:
                    with contextlib.suppress(Exception):  # the first error counts; a second would only be printed
                        self._on_error()
                return
            now = self._clock.now()
            if now >= due:
                due += self.interval * (1 + (now - due) // self.interval)
            self._clock.wait(self._wake, due - now)
            if not self._stopped:
                self._wake.clear()

    # Around a fork no beat is under way, so the child inherits no lock that is held, neither ours nor one further down.

    def _before_fork(self) -> None:
        inside = self._thread is threading.current_thread()
        self._held = not inside and self._beating.acquire(timeout=_FORK_PATIENCE)

    def _after_fork_in_parent(self) -> None:
        if self._held:
            self._held = False
            self._beating.release()

    def _forget_thread(self) -> None:
        self._thread = None
        self._beating = threading.Lock()
        self._wake = threading.Event()
        self._stopped = True
        self._held = False


_heartbeats: weakref.WeakSet[Heartbeat] = weakref.WeakSet()


def _each(method: Callable[[Heartbeat], None]) -> Callable[[], None]:
    def call() -> None:
        for heartbeat in list(_heartbeats):
            method(heartbeat)

    return call


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_each(Heartbeat._before_fork),
        after_in_parent=_each(Heartbeat._after_fork_in_parent),
        after_in_child=_each(Heartbeat._forget_thread),
    )
