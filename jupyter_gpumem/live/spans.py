"""The cells that ran while the panel was open: when, and what they did to each device."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_gpumem.records import Measurement, OomExplanation

KEPT = 200
"""Cells that are remembered."""


class Spans:
    """The latest cells, as the browser gets them. Thread-safe.

    Args:
        now: seconds since 1970.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._spans: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._running: dict[str, Any] | None = None

    @property
    def running(self) -> bool:
        """Whether a cell runs."""
        return self._running is not None

    def began(self, number: int) -> dict[str, Any]:
        """Note that a cell begins."""
        with self._lock:
            span = self._running = {"number": number, "start": self._now(), "end": None}
            self._spans.append(span)
            return span

    def ended(self, measurement: Measurement | None) -> dict[str, Any] | None:
        """Note that the running cell has ended, and what it cost; `None` if no beginning was seen."""
        with self._lock:
            span, self._running = self._running, None
            if span is None:
                return None
            # A new object: the old one may be on its way to the browser.
            ended = span | {"end": self._now()} | (_cost(measurement) if measurement is not None else {})
            self._spans[self._spans.index(span)] = ended
            return ended

    def explained(self, explanation: OomExplanation) -> dict[str, Any] | None:
        """Note why the cell that ended last ran out of memory; `None` if a cell runs, or none was seen."""
        with self._lock:
            if self._running is not None or not self._spans:
                return None
            reason = {name: getattr(explanation, name) for name in ("device", "verdict", "sentence")}
            self._spans[-1] = self._spans[-1] | {"oom": reason}
            return self._spans[-1]

    def all(self) -> list[dict[str, Any]]:
        """Return every cell that is remembered, oldest first."""
        with self._lock:
            return list(self._spans)


def _cost(measurement: Measurement) -> dict[str, Any]:
    return {
        "error": measurement.error,
        "devices": {
            usage.device.label: {
                "peak": usage.peak_allocated,
                "over": usage.peak_over_start,
                "stays": usage.delta_allocated,
                "exact": usage.exact,
            }
            for usage in measurement.devices
            if usage.changed
        },
    }
