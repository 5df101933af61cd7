"""The peak ledger among random users and random measurements, beside a twin that knows nothing of it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpumem import devices
from jupyter_gpumem.devices.fake import FakeBackend, FakeOutOfMemoryError
from jupyter_gpumem.intervals import UNSEEN_RESET, Interval
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
