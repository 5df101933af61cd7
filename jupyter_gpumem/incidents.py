"""The last out-of-memory error of this process that was explained: numbers and names, kept for whoever shows them.

Explaining one takes a search through the process, so it is done once, when somebody asks. Results of measurements that
it ended are told then: they wait with the error, which goes when they are of no use any more.
"""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .notebook import chained
from .records import OomExplanation, OomIncident

if TYPE_CHECKING:
    from collections.abc import Callable

EXPLANATION = "gpumem_explanation"
"""The attribute of an error that is its explanation."""

_WAITING = "gpumem_waiting"
_OF_MEMORY = (RuntimeError, MemoryError)
"""What errors about memory are, the ones that something else may be raised from."""

_NUMBER = "gpumem_number"
"""The attribute of an error by which it is known again without being kept, which would keep its frames."""

_numbers = itertools.count(1)
_last: list[OomIncident] = []
_releasing: list[bool] = []


def note_oom(explanation: OomExplanation, cell: int | None = None) -> None:
    """Keep an explanation as the last one; of the one that is kept already, only which cell it was."""
    known = last_oom()
    if known is None or known.explanation is not explanation:
        _last[:] = [OomIncident(explanation, time.time(), cell)]
    elif known.cell is None:
        _last[:] = [replace(known, cell=cell)]


def last_oom() -> OomIncident | None:
    """Return the last one, or `None`."""
    return _last[-1] if _last else None


def forget_oom() -> None:
    """Drop it (`%unload_ext`)."""
    _last.clear()


def number_of_last() -> int | None:
    """Return what the error that the session showed last is known by, or `None` if there was none."""
    error = getattr(sys, "last_value", None)
    return vars(error).setdefault(_NUMBER, next(_numbers)) if isinstance(error, BaseException) else None


def release_errors(*, on: bool) -> None:
    """Note whether the session lets go of the frames of every cell that fails (`%gpumem_auto --free-errors`)."""
    _releasing[:] = [True] if on else []


def errors_are_released() -> bool:
    """Whether it does: whoever explains an error in a cell that it will end need not advise it."""
    return bool(_releasing)


class _Waiting(list):  # type: ignore[type-arg]
    """Who is to be told. An error that goes to another process, as those of a pool's workers do, takes nobody along."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


def wait_for_reason(
    error: BaseException, tell: Callable[[OomExplanation], object], handled: BaseException | None = None
) -> None:
    """Have a function called with the explanation of an error, at once if there is one, else if there ever will be.

    Args:
        error: the error.
        tell: what is called.
        handled: what was being handled already when the code began that raised it: that is none of its reasons.
    """
    errors = chained(error, handled=handled)
    known = next((vars(one)[EXPLANATION] for one in errors if EXPLANATION in vars(one)), None)
    if known is not None:
        tell(known)
    elif any(isinstance(one, _OF_MEMORY) for one in errors):
        vars(error).setdefault(_WAITING, _Waiting()).append((tell, handled))


def tell_reason(error: BaseException, explanation: OomExplanation, handled: BaseException | None = None) -> None:
    """Call everybody who waits for the explanation of an error, or of what it was raised from, once."""
    for one in chained(error, handled=handled):
        for tell, before in vars(one).pop(_WAITING, ()):
            if any(vars(reason).get(EXPLANATION) is explanation for reason in chained(one, handled=before)):
                tell(explanation)
