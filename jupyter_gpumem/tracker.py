"""A named log of the steps of a loop: what each epoch, batch or phase cost."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .devices import device_labels
from .incidents import wait_for_reason
from .measurement import Measure
from .records import Series
from .report.plot import plot_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from .records import Measurement, OomExplanation


class Tracker:
    """A log that gets one measurement for each `step(name)`: what happened since the step before.

    Usable at once, or as a context manager that stops it; a step that an exception ends is kept, without a name::

        tracker = gm.Tracker()
        for epoch in range(3):
            train()
            tracker.step(f"epoch {epoch}")
        tracker.to_dataframe()

    Args:
        devices: which devices to measure, as indices or labels; all that the process uses if `None`.

    Attributes:
        steps: the measurements so far, in order.
    """

    def __init__(self, devices: Iterable[int | str] | int | str | None = None) -> None:
        self.steps: list[Measurement] = []
        self._devices = device_labels(devices)
        self._running: Measure | None = self._begin()
        self._handled: BaseException | None = None

    def step(self, name: object) -> Measurement:
        """End the running step under `name`, begin the next one, and return what the ended one cost.

        Raises:
            RuntimeError: the tracker was stopped.
        """
        result = self._end(name)
        self._running = self._begin()
        return result

    def stop(self) -> None:
        """End the log; what happened since the last step is dropped."""
        if self._running is not None:
            self._running.stop(search_workspaces=False)
            self._running = None

    def to_dict(self) -> dict[str, Any]:
        """Return the log as plain containers, ready for `json.dump`."""
        return {"steps": [step.to_dict() for step in self.steps]}

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict for each step and device, in bytes and seconds."""
        return [
            {
                "step": step.label,
                "device": usage.device.label,
                "peak_allocated": usage.peak_allocated,
                "peak_over_start": usage.peak_over_start,
                "delta_allocated": usage.delta_allocated,
                "allocated": usage.end.allocated,
                "peak_reserved": usage.peak_reserved,
                "reserved": usage.end.reserved,
                "retries": usage.retries,
                "exact": usage.exact,
                "elapsed_s": step.elapsed_s,
            }
            for step in self.steps
            for usage in step.devices
        ]

    def to_dataframe(self) -> Any:
        """Return the log as a pandas DataFrame, one row for each step and device; sizes in bytes.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        import pandas as pd

        return pd.DataFrame(self.rows())

    def plot(self, ax: Any = None) -> Any:
        """Draw the peaks and levels of each step with matplotlib, and return the axes."""
        return plot_steps(self.rows(), ax)

    def __enter__(self) -> Tracker:
        self.stop()
        self._running = self._begin()  # the first step begins here, also if the tracker was made long before
        self._handled = sys.exc_info()[1]
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        handled, self._handled = self._handled, None
        if self._running is not None and error is not None:
            step = self._running.stop(error)
            self.steps.append(step)
            self._running = None
            if value is not None:
                wait_for_reason(value, functools.partial(self._explained, step), handled)
        self.stop()

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.steps)

    def __repr__(self) -> str:
        return f"<gpumem tracker, {len(self.steps)} steps{'' if self._running else ', stopped'}>"

    def __str__(self) -> str:
        return str(Series(tuple(self.steps))) if self.steps else repr(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001 - IPython's signature
        printer.text(str(self))

    def _repr_html_(self) -> str | None:
        return Series(tuple(self.steps))._repr_html_() if self.steps else None

    def _explained(self, step: Measurement, found: OomExplanation) -> None:
        """Have the step that ended for lack of memory say why."""
        self.steps[:] = [replace(one, oom=found) if one is step else one for one in self.steps]

    def _begin(self) -> Measure:
        return Measure(devices=self._devices).start()

    def _end(self, name: object) -> Measurement:
        if self._running is None:
            raise RuntimeError("this tracker was stopped; make a new one")
        result = replace(self._running.stop(search_workspaces=False), label=str(name))
        self.steps.append(result)
        return result
