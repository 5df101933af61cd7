"""What the search for a batch size says beside the number: why nothing runs, that nothing limits it, how it looks."""

from __future__ import annotations

import re

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem import incidents, report
from jupyter_gpumem.records import BatchSize, Trial
from jupyter_gpumem.units import GiB, MiB
from tests.notebooks import take

torch = pytest.importorskip("torch")


@pytest.fixture
def gpu():
    """A virtual GPU of 24 GiB that nothing has used yet."""
    with gm.virtual_gpu("24GiB"):
        yield
        incidents.forget_oom()


@pytest.mark.parametrize("start", [1, 6])
def test_why_nothing_runs_is_there_to_read(gpu, start):
    """In the result and as the last out-of-memory error, from the state in which the smallest batch failed."""
    held = take(15000)
    found = gm.find_batch_size(lambda n: take(12000 + n).nbytes, start=start)
    assert found.batch_size == 0
    assert found.oom is incidents.last_oom().explanation
    assert (found.oom.verdict, found.oom.seen) == ("too much", "when it happened")
    assert found.oom.text.requested == pytest.approx(12001 * MiB, abs=10 * MiB)
    assert found.notes[-1].endswith("; .oom of this result says why, and so does %gpumem_oom")
    assert f"Why memory ran out: {found.oom.sentence}." in " ".join(str(found).split())
    assert torch.cuda.memory_allocated() == 15000 * MiB
    del held


def test_trials_that_fail_beside_others_that_run_are_no_incident(gpu):
    """They are how the answer is found."""
    found = gm.find_batch_size(lambda n: take(4000 * n).nbytes)
    assert found.batch_size > 0
    assert (found.oom, incidents.last_oom()) == (None, None)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("predict", [False, True])
def test_a_function_that_takes_no_device_memory_is_said_to_be_one(gpu, used, predict):
    """After a few trials, on a device that is in use and on one that is not; it is not run with enormous batches."""
    held, sizes = take(1) if used else None, []
    found = gm.find_batch_size(sizes.append, predict=predict)
    assert sizes == [1, 1, 2, 2, 4, 4]
    assert (found.batch_size, found.at_maximum) == (4, False)
    assert found.notes == (
        "fn allocated no device memory in 3 trials, so that no batch is too large: the search ended with 4",
    )
    del held


def test_a_maximum_of_the_users_is_reached_also_without_device_memory(gpu):
    """It is what was asked for; that nothing limited it is said all the same."""
    found = gm.find_batch_size(lambda n: None, maximum=100)
    assert (found.batch_size, found.at_maximum) == (100, True)
    assert found.notes == ("fn allocated no device memory in 8 trials, so that no batch is too large",)


def test_memory_that_does_not_grow_is_said_not_to(gpu):
    """The search ends with the largest size that is tried at all."""
    found = gm.find_batch_size(lambda n: take(1).nbytes, start=1 << 28, predict=False)
    assert found.batch_size == 1 << 30
    assert found.notes[-1].startswith("fn still runs with 1,073,741,824, and no more are tried")


def test_a_function_that_begins_to_allocate_later_is_searched_to_the_end(gpu):
    """The first trial alone says nothing yet."""
    assert gm.find_batch_size(lambda n: take(1000 * n if n > 2 else 0).nbytes).batch_size > 10


TRIALS = tuple(
    Trial(n, n < 20, n * GiB, n * GiB + 2 * MiB, None if n < 20 else "CUDA out of memory.", 0, 0.25)
    for n in (1, 2, 4, 8, 16, 32, 24, 20, 18, 19)
)


def test_the_result_is_short_and_readable(golden):
    """A line for each trial, the last ones of many, and the same words in HTML."""
    golden("batch_size", str(BatchSize(19, TRIALS, 0.05, at_maximum=False, predicted=17, notes=("fn keeps 1 MiB",))))
    many = BatchSize(19, TRIALS * 10, 0, at_maximum=True)
    assert len(str(many).splitlines()) < 20
    text = re.sub(r"<[^>]+>", " ", report.mimebundle(many)["text/html"])
    assert "largest batch size 19" in text
    assert "It is the maximum that was asked for: a larger one may run too." in text
