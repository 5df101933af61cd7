"""Code that runs out of memory while its caller handles an error: that one is the caller's, and no reason of ours."""

from __future__ import annotations

import asyncio
import sys
import traceback

import pytest

import jupyter_gpumem as gm

torch = pytest.importorskip("torch")


def out_of_memory():
    return torch.empty(90 << 30, dtype=torch.uint8, device="cuda")


def while_handling_one_about_memory(work):
    try:
        out_of_memory()
    except torch.OutOfMemoryError:
        work()


def fail_once():
    """Return a function that runs out of memory the first time, and an asynchronous one."""
    calls = []

    def step(_=1):
        calls.append(1)
        if len(calls) == 1:
            out_of_memory()

    async def step_later():
        step()

    return step, step_later


def retried():
    gm.retry_on_oom(fail_once()[0])()


def retried_later():
    asyncio.run(gm.retry_on_oom(fail_once()[1])())


def searched():
    gm.find_batch_size(lambda n: torch.empty(n << 34, dtype=torch.uint8, device="cuda").nbytes, predict=False)


def searched_with_a_prediction():
    def fn(n):
        torch.empty(n << 34, dtype=torch.uint8, device="cuda")
        raise_where_it_is_predicted()

    gm.find_batch_size(fn, predict=True)


def raise_where_it_is_predicted():
    from jupyter_gpumem.virtual import session

    if session.active().memory.allocators[0].driver.free is None:
        raise NotImplementedError("not in memory without end")


@pytest.mark.parametrize("work", [retried, retried_later, searched, searched_with_a_prediction])
def test_an_error_that_the_caller_handles_keeps_its_frames(virtual, work):
    """What is released is what the attempts left, and nothing of the error during which they were made."""

    def load():
        raise ValueError("no such data")

    try:
        load()
    except ValueError as error:
        work()
        assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1] == "load"
        assert "in load" in traceback.format_exc()


@pytest.mark.parametrize("later", [False, True])
def test_an_error_raised_while_the_caller_handles_one_about_memory_passes(virtual, later):
    """It is about something else: it is raised at once, without a note."""
    calls = []

    @gm.retry_on_oom
    def save():
        calls.append(1)
        raise FileNotFoundError("model.pt")

    @gm.retry_on_oom
    async def save_later():
        calls.append(1)
        raise FileNotFoundError("model.pt")

    with pytest.raises(FileNotFoundError) as caught:
        while_handling_one_about_memory(lambda: asyncio.run(save_later()) if later else save())
    assert len(calls) == 1
    assert not hasattr(caught.value, "__notes__")
    if not later:
        assert isinstance(caught.value.__context__, torch.OutOfMemoryError)


def test_a_search_passes_what_is_raised_while_the_caller_handles_one_about_memory(virtual):
    """It is no batch size that does not fit."""

    def fn(n):
        raise FileNotFoundError("data")

    with pytest.raises(FileNotFoundError):
        while_handling_one_about_memory(lambda: gm.find_batch_size(fn))


def test_the_last_of_several_attempts_is_explained_and_not_what_was_handled(virtual):
    """Both are about memory: the note is about the error that is raised."""
    try:
        out_of_memory()
    except torch.OutOfMemoryError as handled:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            gm.retry_on_oom(max_retries=0).call(torch.empty, 95 << 30, dtype=torch.uint8, device="cuda")
        assert caught.value.gpumem_explanation.text.requested == 95 << 30
        assert not hasattr(handled, "gpumem_explanation")
        assert sys.exc_info()[1] is handled


def test_a_measurement_inside_a_handler_has_reasons_of_its_own(virtual):
    """What was measured there failed for another reason than the error during which it ran."""

    @gm.measure
    def decorated():
        raise RuntimeError("disk full")

    block, tracker = gm.measure(), gm.Tracker()

    def blocks():
        with block, tracker:
            decorated()

    with pytest.raises(RuntimeError) as caught, gm.measure() as whole:
        while_handling_one_about_memory(blocks)
    found = gm.explain_oom(caught.value)
    assert whole.result.oom is found is not None
    assert (block.result.oom, decorated.measurement.oom, tracker.steps[-1].oom) == (None, None, None)
