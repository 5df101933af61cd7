"""The largest batch size that fits, searched for on a scripted device, with a prediction and without."""

from __future__ import annotations

import pytest
from controlled_device import Tensor

from jupyter_gpumem import batch_size
from jupyter_gpumem.batch_size import find_batch_size
from jupyter_gpumem.devices.fake import FakeOutOfMemoryError
from jupyter_gpumem.errors import InvalidValueError, UnavailableError
from jupyter_gpumem.expectation import Expected
from jupyter_gpumem.units import GiB, MiB, format_bytes

pytestmark = pytest.mark.usefixtures("few_objects")


def runs(controlled, fn, size):
    """Whether a batch size runs twice, found without the search."""
    controlled.empty_cache()
    try:
        for _ in range(2):
            fn(size)
    except FakeOutOfMemoryError:
        return False
    return True


@pytest.mark.parametrize("each", [100, 256, 511, 700, 1023])
@pytest.mark.parametrize("start", [1, 3, 40])
def test_the_largest_that_runs(controlled, each, start):
    """Equals the answer of trying all, wherever the search begins."""

    def fn(n):
        Tensor(controlled, n * each * MiB)

    exhaustive = max(n for n in range(1, 90) if runs(controlled, fn, n))
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
def test_the_answer_is_that_of_trials_whatever_is_predicted(controlled, monkeypatch, expected, start, maximum):
    """A wrong prediction costs trials and nothing else; a right one saves them."""
    foreseen(monkeypatch, Expected(expected))
    found = find_batch_size(
        lambda n: Tensor(controlled, n * 500 * MiB) and None, start, maximum, margin=0, predict=True
    )
    assert (found.batch_size, found.predicted) == (15, expected)
    assert found.at_maximum == (maximum == 15)
    sizes = [trial.batch_size for trial in found.trials]
    assert len(set(sizes)) == len(sizes)
    assert max(sizes) <= (maximum or max(start, expected, 30))
    if expected == 15:
        assert sizes == ([start, 15] if maximum == 15 else [start, 15, 16])


def test_a_prediction_is_made_where_it_is_wanted(controlled, monkeypatch):
    """On a device that is not virtual only when asked for; never when the first trial has the answer."""
    asked = foreseen(monkeypatch, Expected(15))

    def fn(n):
        Tensor(controlled, n * 500 * MiB)

    assert find_batch_size(fn, margin=0).predicted is None
    assert find_batch_size(fn, margin=0, predict=False).predicted is None
    assert find_batch_size(fn, 7, 7, margin=0, predict=True).batch_size == 7
    assert find_batch_size(lambda n: Tensor(controlled, 9 * GiB), margin=0, predict=True).batch_size == 0
    assert asked == []
    assert find_batch_size(fn, 2, 40, margin=0.25, predict=True).predicted == 15
    ((function, _, first, maximum, rooms),) = asked
    assert (function, first, maximum) == (fn, 2, 40)
    assert rooms == {controlled.device(0): 6 * GiB - controlled.context}


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (UnavailableError("a virtual GPU needs torch 2.10 or later"), "a virtual GPU needs torch 2.10 or later"),
        (ValueError("a value\nof several lines"), "ValueError: a value"),
        (ZeroDivisionError(), "ZeroDivisionError: "),
    ],
    ids=lambda entry: type(entry).__name__,
)
def test_without_a_prediction_the_search_goes_on(controlled, monkeypatch, reason, said):
    """One note says why there is none, and the trials are those of a search that did not ask."""
    foreseen(monkeypatch, reason)
    sizes = {}
    for predict in (True, False):
        found = find_batch_size(lambda n: Tensor(controlled, n * 500 * MiB) and None, margin=0, predict=predict)
        assert (found.batch_size, found.predicted) == (15, None)
        assert found.notes == ((f"no prediction to begin with: {said}",) if predict else ())
        sizes[predict] = [trial.batch_size for trial in found.trials]
    assert sizes[True] == sizes[False]


def test_what_a_prediction_leaves_is_said(controlled, monkeypatch):
    """What could not be put back, and what was not written."""
    foreseen(monkeypatch, Expected(15, ("the generator batches was advanced",), ("model.pt", "log.pt")))
    found = find_batch_size(lambda n: Tensor(controlled, n * 500 * MiB) and None, margin=0, predict=True)
    assert found.notes == (
        "the prediction ran fn too, and could not put everything back: the generator batches was advanced",
        "what fn saves was written by the trials only, not by the prediction: model.pt, log.pt",
    )


def test_an_interrupt_of_the_prediction_passes(controlled, monkeypatch):
    """Ctrl-C ends the search, and the cap is back."""
    foreseen(monkeypatch, KeyboardInterrupt())
    controlled.cap(7 * GiB)
    with pytest.raises(KeyboardInterrupt):
        find_batch_size(lambda n: Tensor(controlled, n * 500 * MiB) and None, predict=True)
    assert controlled.limit(0) == 7 * GiB


def test_other_devices_have_no_virtual_counterpart(controlled):
    """That is said, once."""
    found = find_batch_size(lambda n: Tensor(controlled, n * 500 * MiB) and None, margin=0, predict=True)
    (note,) = found.notes
    assert "only code that uses CUDA devices" in note
    assert found.batch_size == 15


def test_the_second_iteration_counts(controlled):
    """Optimizer state that arrives at the end of the first iteration takes its part."""
    state = []

    def fn(n):
        Tensor(controlled, n * 512 * MiB)
        if not state:
            state.append(Tensor(controlled, 3 * GiB))

    found = find_batch_size(fn, margin=0)
    assert found.batch_size == 9  # 4.5 of the 8 GiB, beside 3 of state and half of the context
    assert "keeps 3.00 GiB from its first run on" in found.notes[0]
    assert found.leaks is None


def test_what_grows_is_not_called_state(controlled):
    """In so few trials that no leak can be told, what they leave behind is compared with what the first one left."""
    kept = []

    def fn(n):
        kept.append(Tensor(controlled, n * 64 * MiB))

    found = find_batch_size(fn, margin=0, start=30)
    assert found.leaks is None
    first, last = (format_bytes(trial.left) for trial in (found.trials[0], found.trials[-1]))
    assert found.notes[0].startswith(f"fn keeps {first} after its first run, and {last} after the last")


def test_the_margin_stays_free(controlled):
    """What is found runs with that share of the device kept free, and the user's cap is back afterwards."""
    controlled.cap(7 * GiB)
    peaks = []

    def fn(n):
        kept = Tensor(controlled, n * 64 * MiB)
        peaks.append(controlled.memory(0).used)
        return kept

    found = find_batch_size(fn, margin=0.25)
    assert max(peaks) <= 6 * GiB
    assert found.batch_size == (6 * GiB - controlled.context) // (64 * MiB)
    assert controlled.limit(0) == 7 * GiB


def test_a_maximum_is_kept(controlled):
    """Nothing above it is tried, and the result says that more may fit."""
    tried = []
    found = find_batch_size(tried.append, start=3, maximum=20, margin=0)
    assert (found.batch_size, found.at_maximum, max(tried)) == (20, True, 20)


def test_nothing_fits(controlled):
    """0, with a reason, and a start that is too large is halved down."""

    def fn(n):
        Tensor(controlled, (8 + n) * GiB)

    found = find_batch_size(fn, start=16)
    assert found.batch_size == 0
    assert "not even the smallest" in found.notes[-1]
    assert [trial.batch_size for trial in found.trials] == [16, 8, 4, 2, 1]
    assert not any(trial.fits for trial in found.trials)


def test_a_leak_is_recognised(controlled):
    """A function that leaves more behind at each trial is said to leak."""
    kept = []

    def fn(n):
        kept.append(Tensor(controlled, 64 * MiB))
        Tensor(controlled, n * 256 * MiB)

    found = find_batch_size(fn, margin=0)
    assert found.leaks is not None
    assert found.leaks >= 64 * MiB
    assert "leaks" in found.notes[0]


def test_generators_are_run_to_their_end(controlled):
    """A generator function is consumed."""
    done = []

    def fn(n):
        kept = Tensor(controlled, n * 300 * MiB)
        yield kept
        done.append(n)

    assert find_batch_size(fn, margin=0).batch_size == 25
    assert done


def test_every_trial_is_reported(controlled):
    """Peaks and texts are there, and a callback sees each trial as it comes."""
    seen = []
    found = find_batch_size(lambda n: Tensor(controlled, n * GiB) and None, margin=0, on_trial=seen.append)
    assert list(found.trials) == seen
    assert [(t.batch_size, t.fits) for t in seen] == [(1, True), (2, True), (4, True), (8, False), (6, True), (7, True)]
    assert seen[0].peak_allocated == GiB
    assert "Tried to allocate 8.00 GiB" in seen[3].error


def test_other_errors_of_the_function_pass(controlled):
    """They are raised at once, and the cap is back."""

    def fn(n):
        raise KeyError(n)

    with pytest.raises(KeyError):
        find_batch_size(fn)
    assert controlled.limit(0) is None


@pytest.mark.parametrize(
    "options", [{"start": 0}, {"start": 4, "maximum": 3}, {"margin": 1}, {"margin": -0.1}], ids=lambda o: str(o)
)
def test_impossible_options(controlled, options):
    """They are refused in one line before anything runs."""
    with pytest.raises(InvalidValueError):
        find_batch_size(pytest.fail, **options)


def test_coroutine_functions_are_refused(controlled):
    """With what to do instead."""

    async def fn(n):
        """Do nothing."""

    with pytest.raises(InvalidValueError, match=r"asyncio\.run"):
        find_batch_size(fn)
