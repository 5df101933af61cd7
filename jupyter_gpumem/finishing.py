"""Finishing what was begun: signals and the collector wait for it, and a failing step does not keep the next back."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_Entered = TypeVar("_Entered")

_SIGNALS = ("SIGINT", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2")
"""Those whose handlers may raise: the first is Ctrl-C; Windows has not all of them."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let no handler of a signal raise inside: a Ctrl-C comes at the end, when nothing is half done.

    Python runs handlers in the main thread, between any two bytecodes, also inside PyTorch's functions: what these had
    in hand would be lost. Other threads are never interrupted, so there is nothing to do in them. About 5 us.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: object) -> None:  # noqa: ARG001 - what Python hands to every handler
        came.append(number)

    try:
        with contextlib.ExitStack() as restoring:
            for name in _SIGNALS:
                number: Any = getattr(signal, name, None)
                before = None if number is None else signal.getsignal(number)
                if callable(before):  # not what is ignored, or left to the system
                    restoring.callback(signal.signal, number, before)
                    signal.signal(number, note)
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


@contextlib.contextmanager
def undivided(context: contextlib.AbstractContextManager[_Entered]) -> Iterator[_Entered]:
    """Be inside a context that no signal's handler interrupts while it is entered or left, only in between."""
    with contextlib.ExitStack() as leaving:
        with uninterrupted():
            inner = contextlib.ExitStack()
            leaving.callback(_leave, inner)
            entered = inner.enter_context(context)
        yield entered


def _leave(entered: contextlib.ExitStack) -> None:
    with uninterrupted():
        entered.close()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the automatic collector from running: it would take garbage away that is being counted, and much time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def run_all(steps: Iterable[Callable[[], object]]) -> None:
    """Run every step, whatever some of them raise; then raise the first of these errors."""
    errors: list[BaseException] = []
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001, PERF203 - an interrupt too: it is raised below
            errors.append(error)
    if errors:
        raise errors[0]
