"""The peak ledger: exact peaks for every open interval, and the user's own maximum as it would be without us."""

from __future__ import annotations

import gc
import threading

import pytest

from jupyter_gpumem import devices
from jupyter_gpumem.devices.fake import FakeBackend, FakeOutOfMemoryError
from jupyter_gpumem.intervals import UNSEEN_RESET, Interval
from jupyter_gpumem.units import GiB, MiB
from tests.unit.conftest import spike


def test_three_deep_nesting_gives_each_its_own_peak(fake, book):
    """Every level of nesting sees the highest point inside itself, not before and not after."""
    spike(fake, 900 * MiB)
    outer = book.open()
    spike(fake, 300 * MiB)
    middle = book.open()
    kept = fake.allocate(10 * MiB)
    inner = book.open()
    spike(fake, 40 * MiB)
    assert book.close(inner)[fake, 0].peak_allocated == 50 * MiB
    spike(fake, 100 * MiB)
    assert book.close(middle)[fake, 0].peak_allocated == 110 * MiB
    fake.free(kept)
    assert book.close(outer)[fake, 0].peak_allocated == 300 * MiB
    assert fake.user_peak() == 900 * MiB


def test_overlapping_intervals_do_not_disturb_each_other(fake, book):
    """An interval that begins inside another and outlives it keeps only what was in its own time."""
    first = book.open()
    spike(fake, 200 * MiB)
    second = book.open()
    spike(fake, 50 * MiB)
    assert book.close(first)[fake, 0].peak_allocated == 200 * MiB
    spike(fake, 70 * MiB)
    assert book.close(second)[fake, 0].peak_allocated == 70 * MiB


def test_two_threads_measure_at_the_same_time(fake, book):
    """Two threads whose intervals interleave in a fixed order each see the peaks of the shared device."""
    steps = {name: threading.Event() for name in ("first open", "second open", "first closed")}
    found = {}

    def first():
        interval = book.open()
        steps["first open"].set()
        steps["second open"].wait(10)
        spike(fake, 64 * MiB)
        found["first"] = book.close(interval)[fake, 0].peak_allocated
        steps["first closed"].set()

    def second():
        steps["first open"].wait(10)
        spike(fake, 128 * MiB)
        interval = book.open()
        steps["second open"].set()
        steps["first closed"].wait(10)
        spike(fake, 96 * MiB)
        found["second"] = book.close(interval)[fake, 0].peak_allocated

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {"first": 128 * MiB, "second": 96 * MiB}


def test_many_threads_keep_the_users_maximum(book):
    """Threads that measure without any order never lose the user's maximum or a peak of their own."""
    fakes = [FakeBackend(f"lane{number}") for number in range(4)]
    for one in fakes:
        devices.add_backend(one)
    failures = []

    def work(one):
        label = frozenset({f"{one.kind}:0"})
        for round_ in range(1, 40):
            interval = book.open(Interval(label))
            spike(one, round_ * MiB)
            span = book.close(interval)[one, 0]
            if (span.peak_allocated, span.doubt, one.user_peak()) != (round_ * MiB, None, round_ * MiB):
                failures.append((one.kind, round_, span))

    threads = [threading.Thread(target=work, args=(one,)) for one in fakes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
    finally:
        for one in fakes:
            devices.remove_backend(one)


def test_a_failing_block_is_measured_up_to_its_failure(fake, book):
    """Memory that a failed allocation did not get is not in the peak, and the failure is counted."""
    interval = book.open()
    spike(fake, GiB)
    with pytest.raises(FakeOutOfMemoryError):
        fake.allocate(100 * GiB)
    span = book.close(interval)[fake, 0]
    assert span.peak_allocated == GiB
    assert span.end.ooms - span.start.ooms == 1


def test_a_reset_by_the_user_is_folded_and_honoured(fake, book):
    """A reset inside an interval takes nothing from its peak, and the user sees the counter start anew."""
    spike(fake, 4 * GiB)
    interval = book.open()
    spike(fake, GiB)
    fake.user_reset_peaks()
    spike(fake, MiB)
    assert fake.user_peak() == MiB
    assert book.close(interval)[fake, 0].peak_allocated == GiB
    assert fake.user_peak() == MiB


def test_after_a_reset_by_the_user_nothing_is_watched(fake, book):
    """Once the user resets the peak outside any interval, the counter alone is right and the bindings go back."""
    spike(fake, GiB)
    book.close(book.open())
    assert fake.watched
    assert fake.user_peak() == GiB
    fake.user_reset_peaks()
    assert not fake.watched
    assert not book.watching
    assert fake.user_peak() == 0


def test_nothing_is_watched_when_the_counter_shows_the_maximum_again(fake, book):
    """An interval that reaches the user's maximum leaves nothing to add back, so nothing stays replaced."""
    interval = book.open()
    spike(fake, GiB)
    book.close(interval)
    assert not book.watching
    assert fake.user_peak() == GiB


def test_counts_survive_a_reset_of_the_totals(fake, book):
    """Retries, failures and allocations inside an interval are right although the user set their counts to zero."""
    interval = book.open()
    spike(fake, MiB)
    with pytest.raises(FakeOutOfMemoryError):
        fake.allocate(100 * GiB)
    fake.user_reset_totals()
    spike(fake, MiB)
    span = book.close(interval)[fake, 0]
    assert span.end.ooms - span.start.ooms == 1
    assert span.end.retries - span.start.retries == 1
    assert span.end.allocation_count - span.start.allocation_count == 2
    assert span.end.allocation_bytes - span.start.allocation_bytes == 2 * MiB


def test_a_reset_out_of_sight_makes_a_lower_bound(fake, book):
    """A peak that fell below its last reading is noticed, and the user's reset is honoured."""
    outer = book.open()
    spike(fake, GiB)
    book.close(book.open())  # reads 1 GiB for the outer one and resets
    spike(fake, 512 * MiB)
    inner = book.open()
    kept = fake.allocate(256 * MiB)
    book.close(book.open())
    fake.free(kept)
    fake.reset_peaks(0)
    assert fake.user_peak() == 0
    span = book.close(inner)[fake, 0]
    assert span.doubt == UNSEEN_RESET
    assert span.peak_allocated == 256 * MiB
    assert book.close(outer)[fake, 0].doubt == UNSEEN_RESET
    assert fake.user_peak() == 0


def test_a_reset_out_of_sight_is_noticed_by_what_was_allocated(fake, book):
    """A peak below the average allocation cannot be the true one, although no reading fell."""
    interval = book.open()
    spike(fake, GiB)
    fake.reset_peaks(0)
    span = book.close(interval)[fake, 0]
    assert span.doubt == UNSEEN_RESET
    assert span.peak_allocated == 0


def test_the_users_reading_honours_a_reset_out_of_sight(fake, book):
    """The user's next reading already shows that reset, before any measurement begins or ends."""
    spike(fake, GiB)
    interval = book.open()
    kept = fake.allocate(64 * MiB)
    book.close(book.open())
    fake.free(kept)
    assert fake.user_peak() == GiB
    fake.reset_peaks(0)
    assert fake.user_peak() == 0
    assert book.close(interval)[fake, 0].doubt == UNSEEN_RESET


def test_totals_reset_out_of_sight_are_unknown_not_negative(fake, book):
    """Counts that fell are shown as unknown: a negative number of allocations would be nonsense."""
    for _ in range(5):
        spike(fake, MiB)
    interval = book.open()
    fake._reset_totals(0)
    span = book.close(interval)[fake, 0]
    assert span.start.allocation_count is None
    assert span.start.ooms is None
    assert span.start.allocated == 0


def test_resetting_a_card_that_is_not_in_use_says_nothing_of_it(book):
    """A loop over all cards resets those without a context too, which does not make them part of a measurement."""
    late = FakeBackend("late", started=False)
    devices.add_backend(late)
    try:
        interval = book.open()
        late.user_reset_peaks()
        assert book.close(interval) == {}
    finally:
        devices.remove_backend(late)


def test_a_device_that_starts_inside_an_interval_began_with_nothing(book):
    """Its first use is marked, and everything it holds is a change."""
    late = FakeBackend("late", started=False)
    devices.add_backend(late)
    try:
        interval = book.open()
        spike(late, 2 * GiB)
        kept = late.allocate(MiB)
        span = book.close(interval)[late, 0]
        assert span.first_use
        assert (span.start.allocated, span.end.allocated, span.peak_allocated) == (0, MiB, 2 * GiB)
        late.free(kept)
    finally:
        devices.remove_backend(late)


def test_only_the_named_devices_are_measured(book):
    """An interval with a filter has spans for the devices in it and leaves the counters of others alone."""
    two = FakeBackend("pair", devices=2)
    devices.add_backend(two)
    try:
        spike(two, GiB, 0)
        interval = book.open(Interval(frozenset({"pair:1"})))
        spike(two, MiB, 1)
        assert two.stats(0)["allocated_bytes"]["all"]["peak"] == GiB
        spans = book.close(interval)
        assert [index for _, index in spans] == [1]
    finally:
        devices.remove_backend(two)


def test_an_interval_cannot_be_closed_twice(fake, book):
    """The second attempt is refused and changes nothing."""
    interval = book.open()
    book.close(interval)
    with pytest.raises(ValueError, match="closed already"):
        book.close(interval)
    assert book.open_intervals == 0


def test_detach_gives_every_binding_back_at_once(fake, book):
    """After it, nothing is watched although an interval is open, which can still be closed."""
    spike(fake, GiB)
    interval = book.open()
    assert fake.watched
    book.detach()
    assert not fake.watched
    assert not book.watching
    assert fake.user_peak() == 0  # what the counter itself says
    spike(fake, MiB)
    assert book.close(interval)[fake, 0].peak_allocated == MiB
    book.detach()


def test_after_detach_no_old_maximum_comes_back(fake, book):
    """What the user could no longer see after unloading does not reappear when the next measurement begins."""
    spike(fake, GiB)
    book.close(book.open())
    assert fake.user_peak() == GiB
    book.detach()
    assert fake.user_peak() == 0
    interval = book.open()
    assert fake.user_peak() == 0
    book.close(interval)
    assert not book.watching


def test_an_interval_that_nobody_holds_is_closed(fake, book):
    """A measurement that was dropped without an end does not stay open for the life of the process."""
    kept = book.open()
    book.open()
    gc.collect()
    assert book.open_intervals == 1
    book.close(kept)
    assert not book.watching


def test_a_user_reset_that_fails_changes_nothing(fake, book):
    """If the user's own reset raises, the error is theirs and both maxima stay."""
    spike(fake, GiB)
    interval = book.open()
    spike(fake, MiB)
    with pytest.raises(ZeroDivisionError), book.peak_reset(fake, 0):
        raise ZeroDivisionError
    assert fake.user_peak() == GiB
    span = book.close(interval)[fake, 0]
    assert (span.peak_allocated, span.doubt) == (MiB, None)


def test_the_users_maximum_covers_every_counter(fake, book):
    """Not only allocated bytes but each counter that has a peak is as it would be without us."""
    twin = FakeBackend()
    for one in (fake, twin):
        spike(one, 3 * MiB + 1)
        one.empty_cache()
    book.close(book.open())
    assert fake.user_stats() == twin.stats(0)
    assert fake.stats(0) != twin.stats(0)
