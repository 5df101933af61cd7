"""The peak ledger: exact peaks for every open interval, and the user's own maximum as it would be without us."""

from __future__ import annotations

import gc
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpumem import devices
from jupyter_gpumem.devices.fake import FakeBackend, FakeOutOfMemoryError, _raise
from jupyter_gpumem.intervals import RACE, UNSEEN_RESET, Interval
from jupyter_gpumem.ledger import PeakLedger
from jupyter_gpumem.units import GiB, MiB


class Twice:
    """A device family that the ledger knows, and a twin that it does not: what the user would see without us."""

    def __init__(self, kind, count, *, started):
        self.real = FakeBackend(kind, GiB, count, started=started)
        self.twin = FakeBackend(kind, GiB, count, started=started)
        self.levels = [[(0, 0)] for _ in range(count)]
        self.totals = [{"retries": 0, "ooms": 0, "allocation_count": 0} for _ in range(count)]

    @property
    def indices(self):
        return range(len(self.levels))

    def note(self, index):
        stats = self.twin.stats(index)
        self.levels[index].append(
            (stats["allocated_bytes"]["all"]["current"], stats["reserved_bytes"]["all"]["current"])
        )


class Story(RuleBasedStateMachine):
    """Random users and random measurements on one to three devices, two of which may start late."""

    @initialize(count=st.integers(1, 2), late=st.integers(0, 1))
    def begin(self, count, late):
        self.ledger = PeakLedger()
        self.families = [Twice("fake", count, started=True), *(Twice("late", 1, started=False) for _ in range(late))]
        for family in self.families:
            devices.add_backend(family.real)
        self.live = []
        self.open = []

    def teardown(self):
        if not hasattr(self, "ledger"):
            return
        try:
            while self.open:
                self.close(0)
            for family in self.families:
                for index in family.real.ready():
                    family.real.user_reset_peaks(index)
            assert not self.ledger.watching
            assert not any(family.real.watched for family in self.families)
        finally:
            self.ledger.detach()
            for family in self.families:
                devices.remove_backend(family.real)

    def pick(self, number):
        """Return one of the devices, as a family and an index."""
        every = [(family, index) for family in self.families for index in family.indices]
        return every[number % len(every)]

    @rule(number=st.integers(0, 2), size=st.one_of(st.integers(1, 4096), st.integers(1, 300 * MiB)))
    def allocate(self, number, size):
        family, index = self.pick(number)
        totals = family.totals[index]
        try:
            handle = family.twin.allocate(size, index)
        except FakeOutOfMemoryError:
            with pytest.raises(FakeOutOfMemoryError):
                family.real.allocate(size, index)
            totals["retries"] += 1
            totals["ooms"] += 1
        else:
            assert family.real.allocate(size, index) == handle
            self.live.append((family, index, handle))
            totals["allocation_count"] += 1
        family.note(index)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 1000))
    def free(self, number):
        family, index, handle = self.live.pop(number % len(self.live))
        family.real.free(handle)
        family.twin.free(handle)
        family.note(index)

    @rule(number=st.integers(0, 2))
    def empty_cache(self, number):
        family, index = self.pick(number)
        family.real.empty_cache(index)
        family.twin.empty_cache(index)
        family.note(index)

    @rule(number=st.integers(0, 2))
    def user_resets_peaks(self, number):
        family, index = self.pick(number)
        family.real.user_reset_peaks(index)
        family.twin.reset_peaks(index)

    @rule(number=st.integers(0, 2))
    def user_resets_totals(self, number):
        family, index = self.pick(number)
        family.real.user_reset_totals(index)
        family.twin.user_reset_totals(index)

    @rule(only=st.sampled_from([None, None, frozenset({"fake:0"}), frozenset({"fake:1", "late:0"})]))
    def begin_interval(self, only):
        interval = self.ledger.open(Interval(only))
        began = {}
        for family in self.families:
            for index in family.indices:
                if only is None or f"{family.real.kind}:{index}" in only:
                    ready = index in family.real.ready()
                    began[family, index] = (ready, len(family.levels[index]) - 1, dict(family.totals[index]))
        self.open.append((interval, began))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 1000))
    def end_interval(self, number):
        self.close(number % len(self.open))

    def close(self, position):
        """End an interval and compare it with what the log of levels says by brute force."""
        interval, began = self.open.pop(position)
        spans = self.ledger.close(interval)
        expected = {(f.real, index) for f, index in began if index in f.real.ready()}
        assert set(spans) == expected
        for (family, index), (was_ready, since, totals) in began.items():
            if (family.real, index) not in spans:
                continue
            span = spans[family.real, index]
            levels = family.levels[index][since:]
            assert (span.start.allocated, span.start.reserved) == levels[0]
            assert (span.end.allocated, span.end.reserved) == levels[-1]
            assert span.peak_allocated == max(allocated for allocated, _ in levels)
            assert span.peak_reserved == max(reserved for _, reserved in levels)
            assert span.first_use == (not was_ready)
            assert span.doubt is None
            for name, before in totals.items():
                assert getattr(span.end, name) - getattr(span.start, name) == family.totals[index][name] - before

    @invariant()
    def the_user_sees_no_difference(self):
        for family in getattr(self, "families", ()):
            for index in family.indices:
                assert family.real.user_stats(index) == family.twin.stats(index)

    @invariant()
    def open_intervals_are_counted(self):
        if hasattr(self, "ledger"):
            assert self.ledger.open_intervals == len(self.open)


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


class Unseen(RuleBasedStateMachine):
    """The same with resets out of sight: bounds must hold, whether or not a reset could be noticed."""

    def __init__(self):
        super().__init__()
        self.ledger = PeakLedger()
        self.fake = FakeBackend(total=64 * GiB)
        devices.add_backend(self.fake)
        self.levels = [0]
        self.live = []
        self.open = []

    def teardown(self):
        while self.open:
            self.end_interval(0)
        self.ledger.detach()
        devices.remove_backend(self.fake)

    @rule(size=st.integers(1, 300 * MiB))
    def allocate(self, size):
        self.live.append(self.fake.allocate(size))
        self.levels.append(self.fake.stats(0)["allocated_bytes"]["all"]["current"])

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 1000))
    def free(self, number):
        self.fake.free(self.live.pop(number % len(self.live)))
        self.levels.append(self.fake.stats(0)["allocated_bytes"]["all"]["current"])

    @rule()
    def reset_out_of_sight(self):
        self.fake.reset_peaks(0)

    @rule()
    def begin_interval(self):
        self.open.append((self.ledger.open(), len(self.levels) - 1))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 1000))
    def end_interval(self, number):
        interval, since = self.open.pop(number % len(self.open))
        span = self.ledger.close(interval)[self.fake, 0]
        true = max(self.levels[since:])
        assert max(self.levels[since], self.levels[-1]) <= span.peak_allocated <= true
        if span.doubt is not None:
            assert span.doubt == UNSEEN_RESET

    @invariant()
    def the_user_never_sees_less_than_is_there(self):
        assert self.fake.user_peak() >= self.levels[-1]


TestUnseen = Unseen.TestCase
TestUnseen.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


@pytest.fixture
def book():
    """A ledger of its own, that must be given back clean."""
    ledger = PeakLedger()
    yield ledger
    ledger.detach()
    assert not ledger.open_intervals
    assert not ledger.watching


def spike(backend, size, index=0):
    """Allocate and free."""
    backend.free(backend.allocate(size, index))


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


class Racing(FakeBackend):
    """A device on which another thread runs `between` just before each reset of the peaks, which `resets` counts."""

    between = None
    resets = 0

    def reset_peaks(self, index):
        self.resets += 1
        if self.between is not None:
            self.between()
        super().reset_peaks(index)


@pytest.fixture
def racing():
    """A started device with a race that tests switch on."""
    backend = Racing("race")
    devices.add_backend(backend)
    yield backend
    devices.remove_backend(backend)


def test_nothing_is_reset_where_the_peaks_are_at_their_levels(racing, book):
    """Then a reset would change nothing, and could only lose what another thread does at that moment."""
    spike(racing, GiB)
    book.close(book.open())
    assert racing.resets == 1
    kept = racing.allocate(MiB)
    interval = book.open()
    assert racing.resets == 1
    spike(racing, 64 * MiB)
    span = book.close(interval)[racing, 0]
    assert (span.start.allocated, span.peak_allocated, span.doubt) == (MiB, 65 * MiB, None)
    assert racing.user_peak() == GiB
    racing.free(kept)


def test_a_spike_between_reading_and_reset_is_labelled(racing, book):
    """Only intervals that were open can have lost that peak: the one that just begins has not."""
    outer = book.open()
    spike(racing, MiB)
    racing.between = lambda: spike(racing, GiB)
    inner = book.open()
    racing.between = None
    assert book.close(inner)[racing, 0].doubt is None
    assert book.close(outer)[racing, 0].doubt == RACE


def test_a_spike_during_the_users_reset_is_labelled(racing, book):
    """The user's own reset has the same gap, and what was open then says so."""
    interval = book.open()
    racing.between = lambda: spike(racing, GiB)
    racing.user_reset_peaks()
    racing.between = None
    assert book.close(interval)[racing, 0].doubt == RACE


def test_growth_between_reading_and_reset_loses_nothing(racing, book):
    """Memory that only grew there has its maximum after the reset, so the peak is exact and not labelled."""
    outer = book.open()
    spike(racing, MiB)
    racing.between = lambda: racing.allocate(GiB)
    inner = book.open()
    racing.between = None
    assert book.close(inner)[racing, 0].peak_allocated == GiB
    span = book.close(outer)[racing, 0]
    assert (span.peak_allocated, span.doubt) == (GiB, None)


def test_reserved_memory_that_comes_and_goes_in_the_gap_is_labelled(racing, book):
    """A cache that grew and was emptied there takes the reserved peak along, although no tensor was freed."""
    outer = book.open()
    spike(racing, MiB)

    def grow_and_give_back():
        stats = racing._stats[0]
        _raise(stats, "reserved_bytes", 64 * MiB)
        _raise(stats, "reserved_bytes", -64 * MiB)

    racing.between = grow_and_give_back
    inner = book.open()
    racing.between = None
    assert book.close(inner)[racing, 0].doubt is None
    assert book.close(outer)[racing, 0].doubt == RACE


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


class Interrupting(FakeBackend):
    """A device on which Ctrl-C arrives right after a reset of the peaks."""

    armed = False

    def reset_peaks(self, index):
        super().reset_peaks(index)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def test_an_interrupt_right_after_the_reset_loses_nothing(book):
    """Ctrl-C between the reset and the reading leaves the user's maximum and the open intervals exact."""
    one = Interrupting("stop")
    devices.add_backend(one)
    try:
        spike(one, 2 * GiB)
        outer = book.open()
        spike(one, GiB)
        one.armed = True
        with pytest.raises(KeyboardInterrupt):
            book.open()
        assert book.open_intervals == 1
        assert one.user_peak() == 2 * GiB
        spike(one, MiB)
        span = book.close(outer)[one, 0]
        assert (span.peak_allocated, span.doubt) == (GiB, None)
        assert one.user_peak() == 2 * GiB
    finally:
        book.detach()
        devices.remove_backend(one)


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


def test_a_reading_while_the_last_interval_closes_gets_no_error(fake, book):
    """The user's maximum may be dropped by another thread in the middle of a user's reading."""
    spike(fake, GiB)
    interval = book.open()
    spike(fake, 2 * GiB)

    class Leaf(dict):
        """A counter whose reading lets the other thread run."""

        def __contains__(self, key):
            if book.open_intervals:
                book.close(interval)
            return super().__contains__(key)

    stats = fake.stats(0)
    stats = {key: {"all": Leaf(value["all"])} if isinstance(value, dict) else value for key, value in stats.items()}
    book.reading(fake, 0, stats)
    assert stats["allocated_bytes"]["all"]["peak"] == 2 * GiB
