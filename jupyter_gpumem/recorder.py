"""Recording what the allocator does from now on, beside whatever the user records."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

from .arguments import check_flag, shown, whole
from .devices import check_context
from .devices.history import History
from .errors import InvalidValueError, RecordingError
from .recording import Recording, write_recording
from .records import RecorderStatus
from .saving import check_place
from .snapshots import KEY

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

MAX_ENTRIES = 1_000_000
"""Events kept by default, newest last: with Python stacks about 1 KiB of host memory each."""


class Recorder:
    """PyTorch's one recorder of a process, used politely. Thread-safe.

    Attributes:
        last: the recording that was stopped last, until the next one starts.
    """

    def __init__(self, history: History) -> None:
        self.last: Recording | None = None
        self._history = history
        self._lock = threading.RLock()
        self._ours = False
        self._max_entries = 0
        self._stacks = False

    def start(self, max_entries: int = MAX_ENTRIES, *, stacks: bool = True) -> None:
        """Begin to record.

        Args:
            max_entries: how many events to keep; older ones make room.
            stacks: whether to record where in the user's code each allocation is made (about 1 us each).

        Raises:
            InvalidValueError: that many events cannot be kept.
            RecordingError: a recording is running already, ours or another.
            UnavailableError: there is no PyTorch or no GPU to record.
        """
        kept = whole(max_entries)
        if kept is None or not 1 <= kept <= sys.maxsize:
            raise InvalidValueError(
                f"{shown(max_entries)} events cannot be kept; max_entries is a number of at least 1"
            )
        with self._lock:
            ours = self._running()
            if self._history.enabled():
                raise RecordingError(
                    "a recording is running already; stop it first"
                    if ours
                    else "a recording that is not ours is running and is left alone; it can be saved as it is"
                )
            self._history.start(kept, stacks=stacks, on_takeover=self._lost)
            self._ours, self._max_entries, self._stacks, self.last = True, kept, stacks, None

    def stop(self) -> Recording:
        """End our recording and return it.

        Raises:
            RecordingError: no recording of ours is running.
            UnavailableError: the CUDA context is lost.
        """
        with self._lock:
            check_context()
            if not self._running():
                raise RecordingError(f"no recording of ours is running{self._others()}; start one first")
            self.last = self._read()
            self._history.stop()
            self._ours = False
            return self.last

    def recording(self) -> Recording:
        """Return what is recorded so far, by whomever, or what was stopped last.

        Raises:
            RecordingError: nothing was recorded.
            UnavailableError: nothing was stopped, and the CUDA context is lost, so that nothing can be read any more.
        """
        with self._lock:
            if self._history.enabled():
                return self._read()
            if self.last is None:
                check_context()
                raise RecordingError("nothing was recorded; start a recording first")
            return self.last

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save what `recording()` returns, for this package and for PyTorch's own viewer.

        Raises:
            RecordingError: nothing was recorded, or the file cannot be written.
        """
        return write_recording(self.recording().snapshot, path)

    @property
    def running(self) -> bool:
        """Whether anyone records."""
        return self._history.enabled()

    def status(self) -> RecorderStatus:
        """Return whether and how events are recorded. Counts them, which takes as long as a snapshot does."""
        with self._lock:
            ours, enabled = self._running(), self._history.enabled()
            recording = self._read() if enabled else self.last
            events = sum(map(len, recording.snapshot.get("device_traces", ()))) if recording is not None else None
            return RecorderStatus(
                running=enabled,
                ours=ours,
                events=events,
                max_entries=self._max_entries if ours else None,
                stacks=self._stacks if ours else None,
            )

    def set_aside(self) -> Callable[[], None]:
        """Set our recording aside, if there is one, while a virtual GPU stands in for the recorded devices.

        Returns:
            What has it back: it ran on all the while, and none of what the virtual devices did is in it.
        """
        with self._lock:
            if not self._running():
                return lambda: None
            ours = self._history, self._max_entries, self._stacks
            go_on = self._history.set_aside()
            self._history, self._ours = self._history.another(), False

        def restore() -> None:
            with self._lock:
                (self._history, self._max_entries, self._stacks), self._ours = ours, True
                go_on()

        return restore

    def close(self) -> None:
        """End our recording, if there is one, and let go of what was recorded (`%unload_ext`)."""
        with self._lock:
            self.end()
            self.last = None

    def end(self) -> None:
        """End our recording, if there is one, without keeping it."""
        with self._lock:
            if self._running():
                self._history.stop()
                self._ours = False

    def _running(self) -> bool:
        """Whether a recording of ours runs; it may have ended out of our sight, or be the parent process's."""
        if self._ours and not self._history.enabled():
            self._history.forget()
            self._ours = False
        return self._ours

    def _read(self) -> Recording:
        snapshot = self._history.snapshot()
        return Recording(snapshot | {KEY: self._history.circumstances()}, "this session")

    def _lost(self) -> None:
        """Note that somebody else has started or ended a recording: what runs now is theirs."""
        self._ours = False

    def _others(self) -> str:
        return " (another one is, and is left alone)" if self._history.enabled() else ""


RECORDER = Recorder(History("cuda"))


class record:  # noqa: N801 - reads as a verb: `with gm.record() as r:`
    """Record a block: `with gm.record("run.pickle.gz") as r:`; afterwards `r.recording` is the `Recording`.

    Args:
        path: where to save it; nowhere if `None`.
        max_entries: how many events to keep; older ones make room.
        stacks: whether to record where each allocation is made.

    Raises:
        InvalidValueError: that many events cannot be kept, `stacks` is no flag, or the path is none.
        RecordingError: a recording is running already, or the file cannot be written; the block is not run then,
            unless that shows only at its end.
        UnavailableError: there is no PyTorch or no GPU to record.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, max_entries: int = MAX_ENTRIES, stacks: bool = True
    ) -> None:
        check_flag("stacks", stacks)
        self.recording: Recording | None = None
        self._state = "not started"
        self._path = path
        self._place: Path | None = None
        self._options = (max_entries, stacks)

    def __enter__(self) -> record:
        # Before the block, which may take hours; and where it is now, wherever the block goes.
        self._place = None if self._path is None else check_place(self._path)
        RECORDER.start(self._options[0], stacks=self._options[1])
        self.recording, self._state = None, "running"
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An error in the block must come through, also when the recording was taken away meanwhile, or cannot be read
        # because the device has failed.
        self._state = "ended, and nothing could be read"
        with contextlib.suppress(*((Exception,) if error is not None else ())):
            try:
                self.recording = RECORDER.stop()
            finally:
                RECORDER.end()
            if self._place is not None:
                write_recording(self.recording.snapshot, self._place)

    def __repr__(self) -> str:
        return f"<gpumem recording, {self._state}>" if self.recording is None else repr(self.recording)
