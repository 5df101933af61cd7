"""The panel's buttons: each does one thing once, never while a cell runs, and says in a line what came of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.control.auditing import audit
from jupyter_gpumem.control.returning import empty_cache
from jupyter_gpumem.errors import GpumemError, InvalidValueError
from jupyter_gpumem.recorder import RECORDER

if TYPE_CHECKING:
    from collections.abc import Callable

_REMEMBERED = 64


class Actions:
    """Requests of buttons, in order. Thread-safe: they come on the main thread, or on one that serves comms.

    Args:
        busy: whether a cell runs now; then a request waits until `run` is called after it.
        answer: called with `(request id, name, text, failed)`; on whatever thread did the work.
        own: actions of the panel itself, beside those of this module.
    """

    def __init__(
        self,
        busy: Callable[[], bool],
        answer: Callable[[str, str, str, bool], None],
        own: dict[str, Callable[[], str]],
    ) -> None:
        self._busy = busy
        self._answer = answer
        self._actions = _ACTIONS | own
        self._lock = threading.Lock()
        self._seen: deque[str] = deque(maxlen=_REMEMBERED)
        self._waiting: deque[tuple[str, str]] = deque()
        self._working = False

    def request(self, identity: str, name: str) -> None:
        """Do what a button says, once: neither a repeated request nor one that already waits counts twice."""
        with self._lock:
            if identity in self._seen or name not in self._actions:
                return
            self._seen.append(identity)
            if any(name == waiting for _, waiting in self._waiting):
                return
            self._waiting.append((identity, name))
        if not self._busy():
            self.run()

    def run(self) -> None:
        """Do what waits, one after the other; another thread that is doing so already does these too."""
        while True:
            with self._lock:
                if self._working or not self._waiting:
                    return
                self._working = True
                identity, name = self._waiting.popleft()
            try:
                text, failed = self._actions[name](), False
            except GpumemError as error:
                text, failed = str(error), True
            except Exception as error:  # noqa: BLE001 - the browser is told: a comm handler's error would be lost
                text, failed = f"{type(error).__name__}: {error}", True
            finally:
                with self._lock:
                    self._working = False
            self._answer(identity, name, text, failed)


def recording() -> dict[str, Any]:
    """Return whether allocator events are recorded, without counting them."""
    return {"running": RECORDER.running, "kept": RECORDER.last is not None}


def _empty() -> str:
    return str(empty_cache())


def _audit() -> str:
    return str(audit())


def _record() -> str:
    RECORDER.start()
    return "recording; run what you want to look at, then stop"


def _stop() -> str:
    RECORDER.stop()
    return "recording stopped and kept: save it, or run %gpumem_whatif"


def _save() -> str:
    path = Path(time.strftime("gpumem-%Y%m%d-%H%M%S.pickle.gz"))
    if path.exists():
        raise InvalidValueError(f"{path} exists already; wait a second")
    return f"saved {RECORDER.save(path)}"


_ACTIONS: dict[str, Callable[[], str]] = {
    "empty": _empty,
    "audit": _audit,
    "record": _record,
    "stop": _stop,
    "save": _save,
}
