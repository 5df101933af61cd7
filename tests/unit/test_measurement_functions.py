"""`measure` as a decorator: of functions, coroutines and methods, at each call."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import threading
import weakref

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem.units import GiB, MiB
from tests.unit.conftest import spike

pytestmark = pytest.mark.usefixtures("ledger")  # every test here gives it back clean


def test_a_function_is_measured_at_each_call(fake):
    """The decorated function keeps its name, arguments and value, and has the latest result."""

    @gm.measure
    def work(size, *, index=0):
        """Do it."""
        spike(fake, size, index)
        return size + 1

    assert (work.__name__, work.__doc__, work.measurement) == ("work", "Do it.", None)
    assert work(MiB, index=0) == MiB + 1
    assert work.measurement.peak_allocated == MiB
    assert work(GiB) == GiB + 1
    assert work.measurement.peak_allocated == GiB
    assert work.measurement.label.endswith("work")


def test_a_decorator_with_arguments(fake):
    """Label, devices and callback are those of the decorator."""
    shown = []

    @gm.measure("step", devices=["fake:0"], on_result=shown.append)
    def work(size):
        spike(fake, size)

    for size in (MiB, 2 * MiB):
        work(size)
    assert [(one.label, one.peak_allocated) for one in shown] == [("step", MiB), ("step", 2 * MiB)]
    assert work.measurement is shown[-1]


def test_a_raising_function_is_measured(fake):
    """Its error is the caller's, its result stays readable."""

    @gm.measure
    def work():
        spike(fake, MiB)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        work()
    assert (work.measurement.error, work.measurement.peak_allocated) == ("LookupError", MiB)


def test_a_recursive_function_is_measured_at_every_depth(fake):
    """Each call has its own peak, inner calls end first, and the latest result is the outermost one's."""
    shown = []

    @gm.measure(on_result=shown.append)
    def work(depth):
        spike(fake, depth * MiB)
        if depth > 1:
            work(depth - 1)

    work(3)
    assert [one.peak_allocated for one in shown] == [MiB, 2 * MiB, 3 * MiB]
    assert work.measurement is shown[-1]


def test_a_coroutine_function_is_measured_while_it_runs(fake):
    """What happens after an `await` is inside, for each of several at the same time."""
    shown = []

    @gm.measure(on_result=shown.append)
    async def work(name, size, mine, other):
        await mine.wait()
        spike(fake, size)
        other.set()
        return name

    async def both():
        one, two, end = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def begin():
            one.set()

        return await asyncio.gather(work("a", GiB, one, two), work("b", MiB, two, end), begin())

    assert inspect.iscoroutinefunction(work)
    assert asyncio.run(both()) == ["a", "b", None]
    # Both were open from the beginning, so both saw the first one's GiB.
    assert [one.peak_allocated for one in shown] == [GiB, GiB]


def test_a_raising_and_a_cancelled_coroutine(fake):
    """Both end their measurement, and both keep their own error."""

    @gm.measure
    async def work(wait):
        spike(fake, MiB)
        if wait:
            await asyncio.Event().wait()
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        asyncio.run(work(False))
    assert work.measurement.error == "LookupError"

    async def cancelled():
        task = asyncio.create_task(work(True))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert (work.measurement.error, work.measurement.peak_allocated) == ("CancelledError", MiB)


def test_a_decorated_function_in_two_threads(fake):
    """Calls that overlap in threads do not meet, and every call has a result."""
    shown, barrier = [], threading.Barrier(2, timeout=20)

    @gm.measure(on_result=shown.append)
    def work():
        barrier.wait()
        spike(fake, MiB)
        barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(shown) == 2
    assert all(one.peak_allocated in (MiB, 2 * MiB) for one in shown)


def test_methods_can_be_decorated(fake):
    """A decorated function is still a method of its class."""

    class Model:
        size = MiB

        @gm.measure
        def forward(self):
            spike(fake, self.size)
            return self

    model = Model()
    assert model.forward() is model
    assert Model.forward.measurement.peak_allocated == MiB


def test_nothing_of_the_call_is_kept_alive(fake):
    """Neither arguments nor values nor errors of a decorated function live on in its result."""

    class Big:
        pass

    class OwnError(Exception):
        pass

    @gm.measure
    def work(value):
        if value is None:
            raise OwnError
        return Big()

    argument = Big()
    seen = [weakref.ref(argument), weakref.ref(work(argument))]
    del argument
    try:
        work(None)
    except OwnError as error:
        seen.append(weakref.ref(error))
    gc.collect()
    assert [ref() for ref in seen] == [None, None, None]
    assert work.measurement.error == "OwnError"


def test_context_variables_pass_through(fake):
    """A decorated function runs in its caller's context."""
    variable = contextvars.ContextVar("variable", default=0)

    @gm.measure
    def work():
        variable.set(variable.get() + 1)

    work()
    assert variable.get() == 1


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_the_decorator_goes_below_the_kind_of_method(kind):
    """Above it, it would measure the descriptor: that is said when the class is made."""
    with pytest.raises(TypeError, match=r"^measure the function itself: put @gm.measure below"):
        gm.measure(kind(len))


def test_any_callable_can_be_measured(fake):
    """Objects without a name of their own, such as partial functions and modules, are called by their type's."""
    doubled = gm.measure(functools.partial(int, base=2))
    assert doubled("10") == 2
    assert doubled.measurement.label == "partial"
