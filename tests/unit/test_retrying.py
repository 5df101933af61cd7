"""Trying again after running out of memory, and the largest batch size, on a scripted device."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from jupyter_gpumem import batch_size, devices
from jupyter_gpumem.batch_size import find_batch_size
from jupyter_gpumem.devices.fake import FakeBackend, FakeOutOfMemoryError
from jupyter_gpumem.errors import InvalidValueError, UnavailableError
from jupyter_gpumem.expectation import Expected
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.retrying import retry_on_oom
from jupyter_gpumem.units import GiB, MiB, format_bytes


class Controls:
    """What acts on the scripted device's allocator."""

    def __init__(self, fake):
        self._fake = fake

    def empty_cache(self):
        self._fake.empty_cache()

    def set_fraction(self, index, fraction):
        self._fake.cap(None if fraction >= 1 else int(fraction * self._fake.device(index).total), index)


class ControlledBackend(FakeBackend):
    """A scripted device whose cache can be emptied and whose memory can be capped."""

    def controls(self):
        return Controls(self)


@pytest.fixture(autouse=True)
def few_objects():
    """Keep what other tests left out of the collections that each trial makes: they are many here, and slow then."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fake():
    """A controlled device of 8 GiB."""
    backend = ControlledBackend()
    devices.add_backend(backend)
    yield backend
    LEDGER.detach()  # it rightly watches on while the user's own maximum is above what the counter says
    devices.remove_backend(backend)


class Tensor:
    """An allocation of the scripted device that lives as long as this object."""

    def __init__(self, fake, size):
        self._fake, self._handle = fake, fake.allocate(size)

    def __del__(self):
        if hasattr(self, "_handle"):
            self._fake.free(self._handle)


def test_a_failed_attempt_holds_nothing_in_the_next(fake):
    """The frames of the attempt are gone, and the cache is empty, before it is tried again."""
    seen, attempts = [], []

    @retry_on_oom(max_retries=3, on_retry=attempts.append)
    def step():
        seen.append((fake.stats(0)["allocated_bytes"]["all"]["current"], fake.memory(0).used - fake.context))
        kept = [Tensor(fake, 5 * GiB)]
        if len(seen) < 3:
            kept.append(Tensor(fake, 4 * GiB))
        return len(kept)

    assert step() == 1
    assert seen == [(0, 0)] * 3
    assert [a.number for a in attempts] == [1, 2]
    assert attempts[0].requested == 4 * GiB
    assert attempts[0].returned == 5 * GiB
    assert "Tried to allocate 4.00 GiB" in attempts[0].error


def test_a_cycle_in_the_failed_attempt_is_collected(fake):
    """What the attempt left in a reference cycle does not live into the next one."""
    levels = []

    class Ring:
        def __init__(self):
            self.me, self.data = self, Tensor(fake, 5 * GiB)

    def step():
        levels.append(fake.stats(0)["allocated_bytes"]["all"]["current"])
        Ring()
        return Tensor(fake, (4 if len(levels) == 1 else 1) * GiB)

    retry_on_oom(step)()
    assert levels == [0, 0]


def test_the_last_error_is_raised_with_its_explanation(fake):
    """When it never fits the error is the user's own, with its traceback, an attribute and a note."""
    calls = []

    def step(size, *, more):
        calls.append(size)
        return Tensor(fake, size + more)

    with pytest.raises(FakeOutOfMemoryError) as caught:
        retry_on_oom(max_retries=2).call(step, 8 * GiB, more=MiB)
    assert calls == [8 * GiB] * 3
    explanation = caught.value.gpumem_explanation
    assert explanation.text.requested == pytest.approx(8 * GiB, abs=10 * MiB)
    if sys.version_info >= (3, 11):
        assert "Out of memory" in caught.value.__notes__[0]
    assert caught.traceback[-2].name in {"__init__", "step"}


def test_a_wrapped_error_is_retried(fake):
    """A trainer that raises its own error from ours is tried again too."""
    calls = []

    @retry_on_oom
    def step():
        calls.append(1)
        try:
            return Tensor(fake, (9 if len(calls) == 1 else 1) * GiB)
        except FakeOutOfMemoryError as error:
            raise ValueError("step failed") from error

    step()
    assert len(calls) == 2


def test_other_errors_pass(fake):
    """What is not about memory is raised at once, untouched."""
    calls = []

    @retry_on_oom(max_retries=5)
    def step():
        calls.append(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        step()
    assert len(calls) == 1


def test_interrupts_pass(fake):
    """Ctrl-C is not tried again."""

    @retry_on_oom
    def step():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step()


def test_coroutine_functions(fake):
    """They are awaited, and tried again in the same way."""
    calls = []

    @retry_on_oom
    async def step():
        calls.append(fake.stats(0)["allocated_bytes"]["all"]["current"])
        kept = Tensor(fake, 5 * GiB)
        await asyncio.sleep(0)
        return Tensor(fake, (5 if len(calls) == 1 else 1) * GiB), kept

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


def runs(fake, fn, size):
    """Whether a batch size runs twice, found without the search."""
    fake.empty_cache()
    try:
        for _ in range(2):
            fn(size)
    except FakeOutOfMemoryError:
        return False
    return True


@pytest.mark.parametrize("each", [100, 256, 511, 700, 1023])
@pytest.mark.parametrize("start", [1, 3, 40])
def test_the_largest_that_runs(fake, each, start):
    """Equals the answer of trying all, wherever the search begins."""

    def fn(n):
        Tensor(fake, n * each * MiB)

    exhaustive = max(n for n in range(1, 90) if runs(fake, fn, n))
    assert int(find_batch_size(fn, start=start, margin=0)) == exhaustive


def foreseen(monkeypatch, answer):
    """Let a prediction say this, or raise it; returns how often it was asked."""
    asked = []

    def predicted(*question):
        asked.append(question)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(batch_size, "largest_batch", predicted)
    return asked


@pytest.mark.parametrize("expected", [0, 1, 2, 11, 14, 15, 16, 17, 30, 31, 10**6])
@pytest.mark.parametrize(
    ("start", "maximum"), [(1, None), (3, None), (40, None), (1, 15), (3, 15), (1, 60), (3, 60), (40, 60)]
)
def test_the_answer_is_that_of_trials_whatever_is_predicted(fake, monkeypatch, expected, start, maximum):
    """A wrong prediction costs trials and nothing else; a right one saves them."""
    foreseen(monkeypatch, Expected(expected))
    found = find_batch_size(lambda n: Tensor(fake, n * 500 * MiB) and None, start, maximum, margin=0, predict=True)
    assert (found.batch_size, found.predicted) == (15, expected)
    assert found.at_maximum == (maximum == 15)
    sizes = [trial.batch_size for trial in found.trials]
    assert len(set(sizes)) == len(sizes)
    assert max(sizes) <= (maximum or max(start, expected, 30))
    if expected == 15:
        assert sizes == ([start, 15] if maximum == 15 else [start, 15, 16])


def test_a_prediction_is_made_where_it_is_wanted(fake, monkeypatch):
    """On a device that is not virtual only when asked for; never when the first trial has the answer."""
    asked = foreseen(monkeypatch, Expected(15))

    def fn(n):
        Tensor(fake, n * 500 * MiB)

    assert find_batch_size(fn, margin=0).predicted is None
    assert find_batch_size(fn, margin=0, predict=False).predicted is None
    assert find_batch_size(fn, 7, 7, margin=0, predict=True).batch_size == 7
    assert find_batch_size(lambda n: Tensor(fake, 9 * GiB), margin=0, predict=True).batch_size == 0
    assert asked == []
    assert find_batch_size(fn, 2, 40, margin=0.25, predict=True).predicted == 15
    ((function, _, first, maximum, rooms),) = asked
    assert (function, first, maximum) == (fn, 2, 40)
    assert rooms == {fake.device(0): 6 * GiB - fake.context}


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (UnavailableError("a virtual GPU needs torch 2.10 or later"), "a virtual GPU needs torch 2.10 or later"),
        (ValueError("a value\nof several lines"), "ValueError: a value"),
        (ZeroDivisionError(), "ZeroDivisionError: "),
    ],
    ids=lambda entry: type(entry).__name__,
)
def test_without_a_prediction_the_search_goes_on(fake, monkeypatch, reason, said):
    """One note says why there is none, and the trials are those of a search that did not ask."""
    foreseen(monkeypatch, reason)
    sizes = {}
    for predict in (True, False):
        found = find_batch_size(lambda n: Tensor(fake, n * 500 * MiB) and None, margin=0, predict=predict)
        assert (found.batch_size, found.predicted) == (15, None)
        assert found.notes == ((f"no prediction to begin with: {said}",) if predict else ())
        sizes[predict] = [trial.batch_size for trial in found.trials]
    assert sizes[True] == sizes[False]


def test_what_a_prediction_leaves_is_said(fake, monkeypatch):
    """What could not be put back, and what was not written."""
    foreseen(monkeypatch, Expected(15, ("the generator batches was advanced",), ("model.pt", "log.pt")))
    found = find_batch_size(lambda n: Tensor(fake, n * 500 * MiB) and None, margin=0, predict=True)
    assert found.notes == (
        "the prediction ran fn too, and could not put everything back: the generator batches was advanced",
        "what fn saves was written by the trials only, not by the prediction: model.pt, log.pt",
    )


def test_an_interrupt_of_the_prediction_passes(fake, monkeypatch):
    """Ctrl-C ends the search, and the cap is back."""
    foreseen(monkeypatch, KeyboardInterrupt())
    fake.cap(7 * GiB)
    with pytest.raises(KeyboardInterrupt):
        find_batch_size(lambda n: Tensor(fake, n * 500 * MiB) and None, predict=True)
    assert fake.limit(0) == 7 * GiB


def test_other_devices_have_no_virtual_counterpart(fake):
    """That is said, once."""
    found = find_batch_size(lambda n: Tensor(fake, n * 500 * MiB) and None, margin=0, predict=True)
    (note,) = found.notes
    assert "only code that uses CUDA devices" in note
    assert found.batch_size == 15


def test_the_second_iteration_counts(fake):
    """Optimizer state that arrives at the end of the first iteration takes its part."""
    state = []

    def fn(n):
        Tensor(fake, n * 512 * MiB)
        if not state:
            state.append(Tensor(fake, 3 * GiB))

    found = find_batch_size(fn, margin=0)
    assert found.batch_size == 9  # 4.5 of the 8 GiB, beside 3 of state and half of the context
    assert "keeps 3.00 GiB from its first run on" in found.notes[0]
    assert found.leaks is None


def test_what_grows_is_not_called_state(fake):
    """In so few trials that no leak can be told, what they leave behind is compared with what the first one left."""
    kept = []

    def fn(n):
        kept.append(Tensor(fake, n * 64 * MiB))

    found = find_batch_size(fn, margin=0, start=30)
    assert found.leaks is None
    first, last = (format_bytes(trial.left) for trial in (found.trials[0], found.trials[-1]))
    assert found.notes[0].startswith(f"fn keeps {first} after its first run, and {last} after the last")


def test_the_margin_stays_free(fake):
    """What is found runs with that share of the device kept free, and the user's cap is back afterwards."""
    fake.cap(7 * GiB)
    peaks = []

    def fn(n):
        kept = Tensor(fake, n * 64 * MiB)
        peaks.append(fake.memory(0).used)
        return kept

    found = find_batch_size(fn, margin=0.25)
    assert max(peaks) <= 6 * GiB
    assert found.batch_size == (6 * GiB - fake.context) // (64 * MiB)
    assert fake.limit(0) == 7 * GiB


def test_a_maximum_is_kept(fake):
    """Nothing above it is tried, and the result says that more may fit."""
    tried = []
    found = find_batch_size(tried.append, start=3, maximum=20, margin=0)
    assert (found.batch_size, found.at_maximum, max(tried)) == (20, True, 20)


def test_nothing_fits(fake):
    """0, with a reason, and a start that is too large is halved down."""

    def fn(n):
        Tensor(fake, (8 + n) * GiB)

    found = find_batch_size(fn, start=16)
    assert found.batch_size == 0
    assert "not even the smallest" in found.notes[-1]
    assert [trial.batch_size for trial in found.trials] == [16, 8, 4, 2, 1]
    assert not any(trial.fits for trial in found.trials)


def test_a_leak_is_recognised(fake):
    """A function that leaves more behind at each trial is said to leak."""
    kept = []

    def fn(n):
        kept.append(Tensor(fake, 64 * MiB))
        Tensor(fake, n * 256 * MiB)

    found = find_batch_size(fn, margin=0)
    assert found.leaks is not None
    assert found.leaks >= 64 * MiB
    assert "leaks" in found.notes[0]


def test_generators_are_run_to_their_end(fake):
    """A generator function is consumed."""
    done = []

    def fn(n):
        kept = Tensor(fake, n * 300 * MiB)
        yield kept
        done.append(n)

    assert find_batch_size(fn, margin=0).batch_size == 25
    assert done


def test_every_trial_is_reported(fake):
    """Peaks and texts are there, and a callback sees each trial as it comes."""
    seen = []
    found = find_batch_size(lambda n: Tensor(fake, n * GiB) and None, margin=0, on_trial=seen.append)
    assert list(found.trials) == seen
    assert [(t.batch_size, t.fits) for t in seen] == [(1, True), (2, True), (4, True), (8, False), (6, True), (7, True)]
    assert seen[0].peak_allocated == GiB
    assert "Tried to allocate 8.00 GiB" in seen[3].error


def test_other_errors_of_the_function_pass(fake):
    """They are raised at once, and the cap is back."""

    def fn(n):
        raise KeyError(n)

    with pytest.raises(KeyError):
        find_batch_size(fn)
    assert fake.limit(0) is None


@pytest.mark.parametrize(
    "options", [{"start": 0}, {"start": 4, "maximum": 3}, {"margin": 1}, {"margin": -0.1}], ids=lambda o: str(o)
)
def test_impossible_options(fake, options):
    """They are refused in one line before anything runs."""
    with pytest.raises(InvalidValueError):
        find_batch_size(pytest.fail, **options)


def test_coroutine_functions_are_refused(fake):
    """With what to do instead."""

    async def fn(n):
        """Do nothing."""

    with pytest.raises(InvalidValueError, match=r"asyncio\.run"):
        find_batch_size(fn)
