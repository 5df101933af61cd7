"""What is tried again: every kind of function that can be, every kind of out-of-memory error, explained once."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import sys

import pytest

import jupyter_gpumem as gm

torch = pytest.importorskip("torch")


def fail(size=90 << 30):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


class Steps:
    """Functions and objects that run out of memory once and then return how often they ran."""

    def __init__(self):
        self.calls = 0

    def step(self):
        self.calls += 1
        if self.calls == 1:
            fail()
        return self.calls

    async def step_later(self, _=0):
        await asyncio.sleep(0)
        return self.step()


class Later(Steps):
    """An object whose calls are awaited."""

    async def __call__(self):
        return await self.step_later()


@pytest.mark.parametrize("decorate", [False, True])
@pytest.mark.parametrize(
    "make",
    [lambda: Steps().step_later, lambda: functools.partial(Steps().step_later, 1), Later],
    ids=["method", "partial", "object"],
)
def test_coroutine_functions_are_tried_again_however_they_are_called(virtual, make, decorate):
    """As a call as well as decorated."""
    again, function = gm.retry_on_oom(), make()
    assert asyncio.run(again(function)() if decorate else again.call(function)) == 2


def generate():
    yield 1


async def generate_later():
    yield 1


class Generating:
    """An object whose calls make generators."""

    def __call__(self):
        yield 1


@pytest.mark.parametrize("function", [generate, generate_later, functools.partial(generate), Generating()])
def test_generator_functions_are_refused_however_they_are_called(function):
    """They would seem to be retried, and never be."""
    for use in (gm.retry_on_oom(), gm.retry_on_oom().call):
        with pytest.raises(TypeError, match=r"cannot retry the generator function .*; retry the function that"):
            use(function)


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("CUDA out of memory."), torch.OutOfMemoryError()])
def test_an_error_raised_by_hand_is_tried_again(virtual, error):
    """Whoever raises it means it, numbers or not; the last one is explained as far as it says anything."""
    calls = []

    def step():
        calls.append(1)
        raise error

    with pytest.raises(torch.OutOfMemoryError) as caught:
        gm.retry_on_oom(max_retries=2).call(step)
    assert len(calls) == 3
    assert caught.value.gpumem_explanation.verdict == "unclear"


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """An error that lets no attribute be set."""

    step: int


class SpeechlessError(Exception):
    """An error whose own text fails."""

    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("kind", [FrozenError, SpeechlessError])
def test_an_error_whose_class_is_unwilling_is_the_users_own(virtual, kind):
    """Raised from one about memory it is tried again, and the last one is raised as it is, with its explanation."""
    made = []

    def step():
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        made.append(kind(len(made)))
        try:
            fail()
        except RuntimeError as error:
            raise made[-1] from error

    with pytest.raises(kind) as caught:
        gm.retry_on_oom(max_retries=1).call(step)
    assert [error.__traceback__ is None for error in made] == [True, False]
    assert caught.value is made[-1]
    assert caught.value.__cause__.gpumem_explanation.verdict == "absurd request"
    if sys.version_info >= (3, 11):
        assert [note.splitlines()[0] for note in caught.value.__notes__] == ["Out of memory · cuda:0"]


@pytest.mark.parametrize("kind", [FrozenError, SpeechlessError])
def test_other_errors_of_unwilling_classes_pass(virtual, kind):
    """Of a function that is retried, and of one of which the largest batch is looked for."""
    error = kind(0)

    def step(_=0):
        raise error

    for call in (gm.retry_on_oom(step), lambda: gm.find_batch_size(step, start=1, predict=True)):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value is error


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have notes since Python 3.11")
@pytest.mark.parametrize("wrapped", [False, True])
def test_functions_that_call_each_other_explain_an_error_once(virtual, wrapped):
    """Each is retried; the explanation stands below the error, and not below it and the one that was raised from it."""

    @gm.retry_on_oom(max_retries=1)
    def inner():
        fail()

    @gm.retry_on_oom(max_retries=1)
    def outer():
        try:
            inner()
        except torch.OutOfMemoryError as error:
            if wrapped:
                raise ValueError("step 3 failed") from error
            raise

    with pytest.raises((ValueError, torch.OutOfMemoryError)) as caught:
        outer()
    errors = [caught.value, *([caught.value.__cause__] if wrapped else [])]
    assert [len(getattr(error, "__notes__", ())) for error in errors] == ([0, 1] if wrapped else [1])


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
@pytest.mark.parametrize("decorate", [gm.retry_on_oom, gm.retry_on_oom(max_retries=1)])
def test_class_and_static_methods_are_refused_with_what_to_do(kind, decorate):
    """What is retried would be a plain function, which a call through an instance hands that instance."""
    with pytest.raises(TypeError, match=r"put @gm\.retry_on_oom below @classmethod or @staticmethod"):
        decorate(kind(lambda *_: None))


@pytest.mark.parametrize(
    "make",
    [
        lambda listener: gm.find_batch_size(lambda n: pytest.fail("it ran"), on_trial=listener),
        lambda listener: gm.measure(on_result=listener),
        lambda listener: gm.monitor(on_exceed=listener),
    ],
)
@pytest.mark.parametrize("listener", [lambda: None, lambda one, two: None])
def test_who_is_told_with_another_number_of_arguments_is_refused_at_once(virtual, make, listener):
    """Not when there is something to tell, which may be after hours; one that could take it is believed."""
    with pytest.raises(gm.InvalidValueError, match="<lambda>"):
        make(listener)
