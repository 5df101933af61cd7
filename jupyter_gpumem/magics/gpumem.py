"""`%gpumem`, `%%gpumem` and `%gpumem_auto`: what a statement, a cell or every cell costs, and what the card holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jupyter_gpumem import devices
from jupyter_gpumem.devices import check_devices, device_labels
from jupyter_gpumem.errors import InvalidValueError, UnavailableError
from jupyter_gpumem.measurement import Measure
from jupyter_gpumem.overview import status
from jupyter_gpumem.records import Series
from jupyter_gpumem.units import format_bytes

from .cells import Auto
from .errors import number_of_last, shown_since
from .running import prepare

if TYPE_CHECKING:
    import argparse

    from jupyter_gpumem.records import Record

    from .session import Session


def check(options: argparse.Namespace, *, cell: bool) -> None:
    """Refuse what cannot be done, before any code of the user's runs.

    Raises:
        UnavailableError: PyTorch is not installed, or a device was named and there can be none.
        DeviceNotFoundError: a named device is not visible.
        InvalidValueError: options that do not go together.
    """
    if options.help:
        return
    if cell and options.statement:
        raise InvalidValueError(
            f"the code of a cell begins on the second line, got {options.statement!r} on the first; "
            "for one statement write %gpumem with one percent sign"
        )
    if cell and options.output:
        raise InvalidValueError("a cell cannot return the result (-o); store it in a variable with -v NAME")
    devices.check_context()
    if not devices.torch_installed():
        raise UnavailableError(f"GPU memory cannot be measured: {devices.explain_absence()}")
    check_devices(device_labels(options.device))


def line(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Any:
    """Run `%gpumem`: the status, or one statement measured."""
    __tracebackhide__ = True
    if options.statement:
        return _measured(session, options, options.statement, local_ns)
    if options.repeat is not None:
        raise InvalidValueError("-r needs a statement to repeat: %gpumem -r 3 STATEMENT")
    record = status(options.device)
    if not record.devices and not devices.torch_installed():
        raise UnavailableError(f"nothing to show: {record.missing}")
    return deliver(session, options, record)


def cell(session: Session, options: argparse.Namespace, body: str) -> Any:
    """Run `%%gpumem` inside another magic, or with repeats; elsewhere `cells` measures the cell natively."""
    __tracebackhide__ = True
    return _measured(session, options, body, None, cell=True)


def _measured(
    session: Session, options: argparse.Namespace, code: str, local_ns: dict[str, Any] | None, *, cell: bool = False
) -> Any:
    """Run code from inside the magic; returns its last value, or with `-o` the result object."""
    __tracebackhide__ = True
    check(options, cell=cell)
    above = session.cells.lines_above(code) if cell else lines_above_call(session)
    run = prepare(session.shell, code, local_ns, number=session.cells.number(), above=above)
    runs = []
    value = returned = None
    failure: BaseException | None = None
    handled = sys.exc_info()[1]
    try:
        for number in range(1, (options.repeat or 1) + 1):
            value = None  # so that a run never overlaps with the result of the one before
            measure = Measure(devices=options.device)
            shown = number_of_last()
            try:
                measure.start()
                value = run()
                failure = shown_since(shown)
                if options.output or options.repeat is not None or run.silent:
                    value = None  # nobody gets it: what it holds does not stay
            except BaseException as error:
                failure = error
                raise
            finally:
                if measure.running:
                    result = measure.stop(None if failure is None else type(failure))
                    runs.append(result if options.repeat is None else replace(result, repeat=(number, options.repeat)))
            if failure is not None:
                break
    finally:
        try:
            if runs:  # else the measuring itself was interrupted
                record: Record = runs[0] if options.repeat is None else Series(tuple(runs))
                returned = deliver(session, options, record, failure, handled)
        finally:
            failure = handled = None  # the error refers to this very frame
    return returned if options.output else value if options.repeat is None else None


def lines_above_call(session: Session) -> int:
    """Return how many lines of a cell precede the line magic that runs; 0 if it was not called from a cell's code."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame, inner = frame.f_back, frame
        if inner.f_code.co_name == "run_line_magic":
            from_cell = session.shell.compile.format_code_name(frame.f_code.co_filename) is not None
            return frame.f_lineno - 1 if from_cell else 0
    return 0


def deliver(
    session: Session,
    options: argparse.Namespace,
    record: Record,
    error: BaseException | None = None,
    handled: BaseException | None = None,
    *,
    last: bool = False,
) -> Record | None:
    """Store, show or return a result, as the options say.

    Args:
        session: whose.
        options: of the magic.
        record: the result.
        error: what ended the measured code.
        handled: what was being handled already when that code began.
        last: whether a cell has just ended, and so nothing of it follows.
    """
    if options.variable is not None:
        session.shell.push({options.variable: record})  # type: ignore[no-untyped-call]
        if error is not None:
            session.errors.stored(error, options.variable, record, handled)
    return session.deliver(options, record, last=last)


def auto(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> None:  # noqa: ARG001
    """Run `%gpumem_auto`."""
    if options.free_errors is not None:
        session.errors.free = options.free_errors == "on"
        if options.state is None and options.device is None and not options.min:
            return
    if options.state == "on":
        devices.check_context()
        check_devices(device_labels(options.device))
        session.cells.auto = Auto(None if options.device is None else tuple(options.device), options.min)
    elif options.device is not None or options.min:
        raise InvalidValueError("options go with on: %gpumem_auto on --min 1MiB")
    elif options.state == "off":
        session.cells.auto = None
    else:
        setting = session.cells.auto
        text = f"gpumem measures {'every cell' if setting else 'no cell by itself'}"
        if setting and setting.devices is not None:
            text += f" on {', '.join(sorted(device_labels(setting.devices) or ()))} only"
        if setting and setting.minimum:
            text += f", those that move at least {format_bytes(setting.minimum)}"
        session.show_text(text + ("; errors' frames are released at once" if session.errors.free else ""))
