"""Finding the largest batch with few trials, on functions whose answer is known."""

from __future__ import annotations

import pytest

from jupyter_gpumem.batches import Search


def searched(need, first, limit, room):
    search = Search(need, lambda size: size, first, limit)
    return search, search.largest(lambda size: size <= room, room)


@pytest.mark.parametrize("first", [1, 8, 10_000])
@pytest.mark.parametrize("room", [1_000, 5_432, 100_000])
def test_even_growth_takes_few_trials(first, room):
    """Where memory grows evenly, the answer is exact after a handful of trials."""
    search, found = searched(lambda batch: 500 + 7 * batch, first, 12, room)
    assert (found.value, found.exact) == ((room - 500) // 7, True)
    assert search.trials <= 8


@pytest.mark.parametrize(
    "need",
    [
        lambda batch: max(10_000, 3 * batch),
        lambda batch: 100 + batch * batch,
        lambda batch: (100 + 11 * batch) // 512 * 512,
        lambda batch: 20 * batch if batch < 300 else 6_000 + 90 * (batch - 300),
    ],
)
def test_uneven_growth(need):
    """Steps, bends and squares are searched through."""
    room = 20_000
    search, found = searched(need, 4, 40, room)
    assert found.exact
    assert need(found.value) <= room < need(found.value + 1)
    assert search.trials <= 20


@pytest.mark.parametrize("most", [4, 5, 64, 700])
def test_nothing_above_the_largest_is_tried(most):
    """Where all that may be tried fits, the answer is the largest of it."""
    tried = []

    def sample(batch):
        tried.append(batch)
        return 7 * batch

    search = Search(sample, lambda size: size, 4, 12, most)
    assert search.largest(lambda size: size <= 100_000, 100_000).value == most == max(tried)
    assert len(tried) == len(set(tried)) <= 4


def test_nothing_fits():
    """Zero is said where not even one fits."""
    _, found = searched(lambda batch: 10_000 + batch, 64, 20, 5_000)
    assert (found.value, found.exact) == (0, True)


def test_trials_are_shared_and_bounded():
    """The next question begins with what the first one learned; without trials left there is an estimate."""
    search = Search(lambda batch: 1_000 * batch, lambda size: size, 4, 5)
    assert search.largest(lambda size: size <= 20_500, 20_500).value == 20
    trials = search.trials
    assert search.largest(lambda size: size <= 20_900, 20_900).exact
    assert search.trials == trials
    found = search.largest(lambda size: size <= 700_000, 700_000)
    assert (search.trials, found.exact, found.estimate) == (5, False, 700)


def test_memory_that_does_not_depend_on_it():
    """The search ends where a far larger batch needs no more."""
    search, found = searched(lambda batch: 100, 2, 50, 1_000)
    assert (found.exact, found.estimate) == (False, None)
    assert found.value >= 128
    assert search.trials < 8


def test_an_error_with_another_batch_ends_the_search():
    """What only one batch can do is said, and nothing larger is claimed."""

    def need(batch):
        if batch > 10:
            raise ValueError("no more than ten\nreally")
        return batch

    search, found = searched(need, 8, 20, 1_000)
    assert (found.value, found.exact, found.estimate) == (10, False, None)
    assert search.stopped == "with 11 it fails: ValueError: no more than ten"


def test_an_interrupt_is_not_swallowed():
    """Ctrl-C ends it."""

    def need(batch):
        if batch > 8:
            raise KeyboardInterrupt
        return batch

    with pytest.raises(KeyboardInterrupt):
        searched(need, 8, 20, 1_000)
