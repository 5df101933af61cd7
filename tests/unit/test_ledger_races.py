"""The peak ledger while other threads allocate, and when an interrupt comes in between."""

from __future__ import annotations

import pytest

from jupyter_gpumem import devices
from jupyter_gpumem.devices.fake import FakeBackend, _raise
from jupyter_gpumem.intervals import RACE
from jupyter_gpumem.units import GiB, MiB
from tests.unit.conftest import spike


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
