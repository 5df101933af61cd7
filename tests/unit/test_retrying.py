"""Trying again after running out of memory, on a scripted device."""

from __future__ import annotations

import asyncio
import sys

import pytest
from controlled_device import Tensor

from jupyter_gpumem.devices.fake import FakeOutOfMemoryError
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.retrying import retry_on_oom
from jupyter_gpumem.units import GiB, MiB

pytestmark = pytest.mark.usefixtures("few_objects")


def test_a_failed_attempt_holds_nothing_in_the_next(controlled):
    """The frames of the attempt are gone, and the cache is empty, before it is tried again."""
    seen, attempts = [], []

    @retry_on_oom(max_retries=3, on_retry=attempts.append)
    def step():
        seen.append(
            (controlled.stats(0)["allocated_bytes"]["all"]["current"], controlled.memory(0).used - controlled.context)
        )
        kept = [Tensor(controlled, 5 * GiB)]
        if len(seen) < 3:
            kept.append(Tensor(controlled, 4 * GiB))
        return len(kept)

    assert step() == 1
    assert seen == [(0, 0)] * 3
    assert [a.number for a in attempts] == [1, 2]
    assert attempts[0].requested == 4 * GiB
    assert attempts[0].returned == 5 * GiB
    assert "Tried to allocate 4.00 GiB" in attempts[0].error


def test_a_cycle_in_the_failed_attempt_is_collected(controlled):
    """What the attempt left in a reference cycle does not live into the next one."""
    levels = []

    class Ring:
        def __init__(self):
            self.me, self.data = self, Tensor(controlled, 5 * GiB)

    def step():
        levels.append(controlled.stats(0)["allocated_bytes"]["all"]["current"])
        Ring()
        return Tensor(controlled, (4 if len(levels) == 1 else 1) * GiB)

    retry_on_oom(step)()
    assert levels == [0, 0]


def test_the_last_error_is_raised_with_its_explanation(controlled):
    """When it never fits the error is the user's own, with its traceback, an attribute and a note."""
    calls = []

    def step(size, *, more):
        calls.append(size)
        return Tensor(controlled, size + more)

    with pytest.raises(FakeOutOfMemoryError) as caught:
        retry_on_oom(max_retries=2).call(step, 8 * GiB, more=MiB)
    assert calls == [8 * GiB] * 3
    explanation = caught.value.gpumem_explanation
    assert explanation.text.requested == pytest.approx(8 * GiB, abs=10 * MiB)
    if sys.version_info >= (3, 11):
        assert "Out of memory" in caught.value.__notes__[0]
    assert caught.traceback[-2].name in {"__init__", "step"}


def test_a_wrapped_error_is_retried(controlled):
    """A trainer that raises its own error from ours is tried again too."""
    calls = []

    @retry_on_oom
    def step():
        calls.append(1)
        try:
            return Tensor(controlled, (9 if len(calls) == 1 else 1) * GiB)
        except FakeOutOfMemoryError as error:
            raise ValueError("step failed") from error

    step()
    assert len(calls) == 2


def test_other_errors_pass(controlled):
    """What is not about memory is raised at once, untouched."""
    calls = []

    @retry_on_oom(max_retries=5)
    def step():
        calls.append(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        step()
    assert len(calls) == 1


def test_interrupts_pass(controlled):
    """Ctrl-C is not tried again."""

    @retry_on_oom
    def step():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step()


def test_coroutine_functions(controlled):
    """They are awaited, and tried again in the same way."""
    calls = []

    @retry_on_oom
    async def step():
        calls.append(controlled.stats(0)["allocated_bytes"]["all"]["current"])
        kept = Tensor(controlled, 5 * GiB)
        await asyncio.sleep(0)
        return Tensor(controlled, (5 if len(calls) == 1 else 1) * GiB), kept

    asyncio.run(step())
    assert calls == [0, 0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"function": 3}, r"expected a function, got 3; write gm.retry_on_oom\(max_retries=3\)"),
        ({"max_retries": "3"}, "max_retries must be a whole number of 0 or more, got '3'"),
        ({"max_retries": 1.5}, "max_retries must be a whole number of 0 or more, got 1.5"),
        ({"max_retries": None}, "max_retries must be a whole number of 0 or more, got None"),
        ({"on_retry": 3}, "on_retry must be a function that takes a FailedAttempt, got 3"),
        (
            {"on_retry": lambda: None},
            r"on_retry must be a function that takes a FailedAttempt, got <lambda>\(\)",
        ),
        (
            {"on_retry": lambda number, error: None},
            r"on_retry must be a function that takes a FailedAttempt, got <lambda>\(number, error\)",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_anything_fails(wrong, message):
    """Not first when memory runs out."""
    with pytest.raises(InvalidValueError, match=message):
        retry_on_oom(**wrong)


def test_what_cannot_be_retried_is_refused():
    """Generator functions, and numbers below 0."""

    def generate():
        yield 1

    with pytest.raises(TypeError, match="generator function"):
        retry_on_oom(generate)
    with pytest.raises(InvalidValueError, match="0 or more"):
        retry_on_oom(max_retries=-1)
