"""Trying again after an out-of-memory error, from a state in which the failed attempt holds nothing."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import sys
from typing import TYPE_CHECKING, Any

from .arguments import check_function, check_listener, check_whole, is_method, shown
from .devices import give_back_everywhere
from .errors import InvalidValueError
from .incidents import errors_are_released
from .notebook import add_note, chained, drop_traceback, text_of
from .oom import explain_error, find_oom, observer
from .records import FailedAttempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from .oom.observer import OomState
    from .records import OomText


def retry_on_oom(
    function: Callable[..., Any] | None = None,
    *,
    max_retries: int = 3,
    on_retry: Callable[[FailedAttempt], object] | None = None,
) -> Any:
    """Run a function again when it runs out of memory, after everything that the failed attempt held is released.

    As a decorator, with or without arguments, or as a call: `gm.retry_on_oom(max_retries=2).call(step, batch)`. Between
    attempts the frames of the failed one are released (an `except` block that tries again keeps them), garbage is
    collected and unused memory is given back. Other errors pass. The last error is raised with its explanation: as
    `error.gpumem_explanation`, and below its traceback where Python has notes.

    Args:
        function: what to decorate; without one the decorator is returned.
        max_retries: how often to try again; 0 only explains.
        on_retry: called with a `FailedAttempt` before each further attempt: to make a batch smaller, say.

    Raises:
        TypeError: the function is a generator function, whose body runs between the lines of its caller; or a class or
            static method, which the decorator goes below.
        InvalidValueError: `max_retries` is no whole number of 0 or more, or what is to be called cannot be.
    """
    if function is not None and not is_method(function) and not callable(function):
        raise InvalidValueError(f"expected a function, got {shown(function)}; write gm.retry_on_oom(max_retries=3)")
    retry = Retry(max_retries, on_retry)
    return retry if function is None else retry(function)


class Retry:
    """What `retry_on_oom` returns: decorates functions, or calls them.

    Args:
        max_retries: how often to try again.
        on_retry: called before each further attempt.
    """

    def __init__(self, max_retries: int, on_retry: Callable[[FailedAttempt], object] | None) -> None:
        # Refused now: on the day when memory runs out, an error of ours would take the place of the retry.
        max_retries = check_whole("max_retries", max_retries, least=0)
        if on_retry is not None:
            check_listener("on_retry", on_retry, "a FailedAttempt")
        self._max_retries, self._on_retry = max_retries, on_retry

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if is_method(function):
            raise TypeError("retry the function itself: put @gm.retry_on_oom below @classmethod or @staticmethod")
        check_function("what is retried", function, "any arguments")
        _refuse_generators(function)
        if _is(inspect.iscoroutinefunction, function):

            @functools.wraps(function)
            async def retried_async(*args: Any, **kwargs: Any) -> Any:
                __tracebackhide__ = True
                handled = sys.exc_info()[1]
                for number in range(1, self._max_retries + 2):
                    before = observer.observe()
                    try:
                        return await function(*args, **kwargs)
                    except asyncio.CancelledError:
                        raise
                    except BaseException as error:
                        failed = self._failed(error, number, handled, before)
                        if failed is None:
                            raise
                    self._prepare(number, *failed)
                raise AssertionError  # the last attempt returns or raises

            return retried_async

        @functools.wraps(function)
        def retried(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return self.call(function, *args, **kwargs)

        return retried

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function, again if need be, and return its value; that of a coroutine function is to be awaited.

        Raises:
            TypeError: it is a generator function.
            InvalidValueError: it cannot be called.
        """
        __tracebackhide__ = True
        check_function("what is retried", function, "these arguments")
        _refuse_generators(function)
        if _is(inspect.iscoroutinefunction, function):
            return self(function)(*args, **kwargs)
        handled = sys.exc_info()[1]
        for number in range(1, self._max_retries + 2):
            before = observer.observe()
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                failed = self._failed(error, number, handled, before)
                if failed is None:
                    raise
            # Outside of the `except` block: inside, the error and with it the frames of the attempt are alive.
            self._prepare(number, *failed)
        raise AssertionError  # the last attempt returns or raises

    def _failed(
        self, error: BaseException, number: int, handled: BaseException | None, before: OomState | None
    ) -> tuple[OomText, str] | None:
        """Let go of the frames of an attempt, and return what it said; `None` if the error is to be raised again.

        Args:
            error: what ended the attempt.
            number: 1 for the first.
            handled: what the caller was handling already: Python chains the error to it, and it is left as it is.
            before: what the observer had kept before the attempt: an attempt that is made again is no news.
        """
        found = find_oom(error, handled)
        if found is None or found[1].family == "host":
            return None
        cause, text = found
        del found  # or the search would take it for one who holds the error
        if number > self._max_retries:
            explain(error, handled)
            return None
        release_frames(error, handled)
        observer.forget(text, before)
        return text, text_of(cause)

    def _prepare(self, number: int, text: OomText, message: str) -> None:
        __tracebackhide__ = True
        attempt = FailedAttempt(number, message, text.requested, clean())
        if self._on_retry is not None:
            self._on_retry(attempt)


def _refuse_generators(function: Callable[..., Any]) -> None:
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        name = getattr(function, "__qualname__", None) or shown(function)
        raise TypeError(
            f"cannot retry the generator function {name!r}: its body runs between the lines of its caller; retry the "
            "function that consumes it"
        )


def _is(kind: Callable[[Any], bool], function: Any) -> bool:
    """Whether a function is of a kind, or an object whose class makes it callable by such a one."""
    return kind(function) or kind(type(function).__call__)


def release_frames(error: BaseException, handled: BaseException | None) -> None:
    """Let go of the frames of an error and of all that it was raised from, during, or groups.

    Args:
        error: the error.
        handled: what was being handled already when the code began that raised it: that keeps its frames.
    """
    for one in chained(error, handled=handled):
        drop_traceback(one)


def clean() -> int:
    """Collect garbage and give unused memory back; returns the bytes that the driver got."""
    gc.collect()
    return give_back_everywhere()


def explain(error: BaseException, handled: BaseException | None) -> None:
    """Attach the explanation to an out-of-memory error, as an attribute and a note."""
    explanation = explain_error(error, released=errors_are_released(), handled=handled)
    if explanation is None or not hasattr(BaseException, "add_note"):  # Python 3.11
        return
    text = str(explanation)
    # Below one of the errors it may stand already: a function that is retried has called another one.
    if not any(text in getattr(one, "__notes__", ()) for one in chained(error, handled=handled)):
        add_note(error, text)
