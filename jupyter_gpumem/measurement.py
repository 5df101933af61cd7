"""Measuring a piece of code: as a `with` block, as a decorator, or started and stopped by the magics."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import devices
from .arguments import check_function, check_listener, is_method, shown
from .devices import check_devices, device_labels
from .errors import InvalidValueError
from .host import resident_bytes
from .incidents import wait_for_reason
from .intervals import Interval
from .ledger import LEDGER
from .records import DeviceUsage, Measurement
from .units import minus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from .devices import Backend
    from .intervals import Key, Span
    from .records import DriverMemory, OomExplanation

    Function = TypeVar("Function", bound=Callable[..., Any])

_workspaces = devices.WorkspaceLog()


class Measure:
    """One measurement, open from `start()` to `stop()`; also a context manager and a decorator.

    Measurements may nest and overlap, in any number and in any threads: each gets its own exact peak, and
    `torch.cuda.max_memory_allocated()` says what it would have said without them.

    Args:
        label: a name for the report.
        devices: which devices to measure, as indices or labels (`0`, `"cuda:1"`); all that the process uses if `None`.
        on_result: called with the `Measurement` when the measured code ends, also when it fails.

    Raises:
        InvalidValueError: the label is no text, or `on_result` is no function.

    Attributes:
        result: the `Measurement`, once the measured code has ended; `None` before. Where it ran out of memory,
            `result.oom` says why as soon as the error is explained.
    """

    def __init__(
        self,
        label: str | None = None,
        devices: Iterable[int | str] | int | str | None = None,
        on_result: Callable[[Measurement], object] | None = None,
    ) -> None:
        if not (label is None or isinstance(label, str)):
            raise InvalidValueError(f"a label is a text, got {shown(label)}; devices are named with devices=")
        if on_result is not None:
            check_listener("on_result", on_result, "a Measurement")
        self.result: Measurement | None = None
        self._label = label
        self._only = device_labels(devices)
        self._on_result = on_result
        self._interval: Interval | None = None
        self._drivers: dict[Key, DriverMemory | None] = {}
        self._rss: int | None = None
        self._began = 0.0
        self._measured: Any = None  # the decorated function
        self._handled: BaseException | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped yet."""
        return self._interval is not None

    def start(self) -> Measure:
        """Begin. About 0.1 ms on one device; nothing is synchronised, collected or initialised.

        Raises:
            UnavailableError: devices were named, and this process cannot have any.
            DeviceNotFoundError: a named device is not visible.
            RuntimeError: it is running already.
        """
        if self.running:
            raise RuntimeError("this measurement is running already; make one for each piece of code")
        check_devices(self._only)
        self.result = None
        self._rss = resident_bytes()
        ready = [key for key in devices.ready_devices() if self._only is None or _label(*key) in self._only]
        self._drivers = {key: devices.driver_memory(*key) for key in ready}
        interval = Interval(self._only)
        try:
            self._interval = LEDGER.open(interval, ready)
            self._began = time.perf_counter()
        except BaseException:  # a Ctrl-C, say: nobody would ever end it
            self._interval = None
            LEDGER.discard(interval)
            raise
        return self

    def stop(self, error: type[BaseException] | None = None, *, search_workspaces: bool = True) -> Measurement:
        """End, and return what it cost. `error` is the type of the exception that ended the measured code.

        Raises:
            RuntimeError: it was not started.
        """
        elapsed = time.perf_counter() - self._began
        if self._interval is None:
            raise RuntimeError("this measurement was not started")
        interval, self._interval = self._interval, None
        try:
            spans = LEDGER.close(interval)
        except BaseException:
            LEDGER.discard(interval)
            raise
        usages = [
            _usage(*key, span, self._drivers.get(key), devices.driver_memory(*key)) for key, span in spans.items()
        ]
        if search_workspaces:
            usages = [_with_workspaces(backend, usage) for (backend, _), usage in zip(spans, usages, strict=True)]
        self.result = Measurement(
            devices=tuple(usages),
            elapsed_s=elapsed,
            rss_delta=minus(resident_bytes(), self._rss),
            label=self._label,
            error=None if error is None else error.__name__,
            missing=None if usages else missing_devices(self._only),
        )
        return self.result

    def __enter__(self) -> Measure:
        self.start()
        self._handled = sys.exc_info()[1]
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        handled, self._handled = self._handled, None
        result = self.stop(error)
        if self._on_result is not None:
            self._on_result(result)
        if value is not None:
            wait_for_reason(value, functools.partial(self._explained, result), handled)

    def __call__(self, function: Function) -> Function:
        """Return `function` measured at each call; its attribute `measurement` is the latest result.

        Raises:
            InvalidValueError: it cannot be called.
            TypeError: it is a generator function.
        """
        if is_method(function):
            raise TypeError("measure the function itself: put @gm.measure below @classmethod or @staticmethod")
        check_function("what is measured", function, "any arguments")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"cannot measure the generator function {function.__qualname__!r}: its body runs between the lines of "
                "its caller; measure the loop that consumes it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def measured(*args: Any, **kwargs: Any) -> Any:
                __tracebackhide__ = True
                with self._fresh(function) as one:
                    one._measured, one._on_result = measured, functools.partial(self._keep, measured)
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def measured(*args: Any, **kwargs: Any) -> Any:
                __tracebackhide__ = True
                with self._fresh(function) as one:
                    one._measured, one._on_result = measured, functools.partial(self._keep, measured)
                    return function(*args, **kwargs)

        measured.measurement = None  # type: ignore[attr-defined]
        return measured  # type: ignore[return-value]

    def __repr__(self) -> str:
        if self.result is not None:
            return str(self.result)
        return f"<gpumem measurement, {'running' if self.running else 'not started'}>"

    def _fresh(self, function: Callable[..., Any]) -> Measure:
        """Return an independent measurement, so that recursive and concurrent calls do not meet."""
        return Measure(self._label or getattr(function, "__qualname__", type(function).__qualname__), self._only)

    def _explained(self, result: Measurement, found: OomExplanation) -> None:
        """Have a result say why memory ran out, wherever we keep it."""
        explained = replace(result, oom=found)
        if self.result is result:
            self.result = explained
        if self._measured is not None and self._measured.measurement is result:
            self._measured.measurement = explained

    def _keep(self, measured: Any, result: Measurement) -> None:
        measured.measurement = result
        if self._on_result is not None:
            self._on_result(result)


@overload
def measure(function: Function, /) -> Function: ...
@overload
def measure(
    label: str | None = None,
    /,
    *,
    devices: Iterable[int | str] | int | str | None = None,
    on_result: Callable[[Measurement], object] | None = None,
) -> Measure: ...
def measure(
    function: Any = None,
    /,
    *,
    devices: Iterable[int | str] | int | str | None = None,
    on_result: Callable[[Measurement], object] | None = None,
) -> Any:
    """Measure the GPU memory of a block or of a function's calls: `with gm.measure() as m:`, `@gm.measure`.

    The first argument is the function to decorate, or a label. After the block, `m.result` is a `Measurement`; of a
    decorated function, `f.measurement` is the latest one, and `on_result=print` shows each.
    """
    if callable(function) or isinstance(function, (classmethod, staticmethod)):
        return Measure(devices=devices, on_result=on_result)(function)
    return Measure(function, devices, on_result)


def missing_devices(labels: frozenset[str] | None = None) -> str:
    """Return in one sentence why a measurement, or one of the devices in `labels`, saw no device."""
    absent = devices.explain_unused(labels) or devices.explain_absence()
    if absent is not None:
        return absent
    if devices.loaded_torch() is None:
        return "torch was not imported"
    return "no GPU was used yet in this process"


def _label(backend: Backend, index: int) -> str:
    return f"{backend.kind}:{index}"


def _with_workspaces(backend: Backend, usage: DeviceUsage) -> DeviceUsage:
    found = _workspaces.appeared(backend, usage)
    return usage if found is None else replace(usage, workspaces=found)


def _usage(
    backend: Backend, index: int, span: Span, before: DriverMemory | None, after: DriverMemory | None
) -> DeviceUsage:
    return DeviceUsage(
        device=backend.device(index),
        start=span.start,
        end=span.end,
        peak_allocated=span.peak_allocated,
        peak_reserved=span.peak_reserved,
        doubt=span.doubt,
        driver_start=before,
        driver_end=after,
        first_use=span.first_use,
    )
