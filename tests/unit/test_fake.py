"""The scripted device: it counts as PyTorch's allocator does, which every other test builds on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpumem.devices.base import counters
from jupyter_gpumem.devices.fake import FakeBackend, FakeOutOfMemoryError
from jupyter_gpumem.units import GiB, MiB


def test_allocations_are_rounded_and_counted():
    """Allocated bytes are rounded to 512, requested bytes are not, and each allocation counts once."""
    fake = FakeBackend()
    handle = fake.allocate(700)
    fake.allocate(512)
    fake.free(handle)
    found = counters(fake.stats(0))
    assert (found.allocated, found.requested, found.live, found.reserved) == (512, 512, 1, 2 * MiB)
    assert (found.peak_allocated, found.allocation_count, found.allocation_bytes) == (1536, 2, 1536)


def test_the_cache_is_kept_until_it_is_emptied():
    """Freed memory stays reserved, serves the next request, and goes back in whole segments."""
    fake = FakeBackend()
    fake.free(fake.allocate(9 * MiB))
    fake.allocate(3 * MiB)
    assert counters(fake.stats(0)).reserved == 10 * MiB
    fake.empty_cache()
    found = counters(fake.stats(0))
    assert (found.reserved, found.peak_reserved) == (4 * MiB, 10 * MiB)


def test_too_much_is_refused_as_pytorch_does():
    """The error is worded like PyTorch's, counted, and changes no level."""
    fake = FakeBackend(total=GiB)
    before = counters(fake.stats(0))
    with pytest.raises(FakeOutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate 1.00 GiB.$"):
        fake.allocate(GiB)
    after = counters(fake.stats(0))
    assert (after.retries, after.ooms) == (1, 1)
    assert (after.allocated, after.reserved, after.allocation_count) == (before.allocated, before.reserved, 0)


def test_a_device_starts_with_its_first_allocation():
    """Before that nothing is ready and the number of devices is not known."""
    fake = FakeBackend(devices=2, started=False)
    assert (list(fake.ready()), fake.count()) == ([], None)
    fake.allocate(1, index=1)
    assert (list(fake.ready()), fake.count()) == ([0, 1], 2)
    assert counters(fake.stats(0)).allocated == 0
    assert fake.device(1).label == "fake:1"


def test_resets_set_peaks_to_levels_and_counts_to_zero():
    """Resetting peaks keeps the counts, resetting the counts keeps the peaks."""
    fake = FakeBackend()
    kept = fake.allocate(MiB)
    fake.free(fake.allocate(MiB))
    fake.user_reset_totals()
    found = counters(fake.stats(0))
    assert (found.peak_allocated, found.allocation_count, found.allocated) == (2 * MiB, 0, MiB)
    fake.user_reset_peaks()
    assert fake.user_peak() == MiB
    fake.free(kept)
    assert fake.user_peak() == MiB


def test_a_reading_is_a_copy():
    """What a caller does to a reading does not reach the counters."""
    fake = FakeBackend()
    fake.stats(0)["allocated_bytes"]["all"]["peak"] = 5
    assert fake.user_peak() == 0


@given(st.lists(st.integers(-5, 4 * MiB), max_size=30))
def test_levels_are_sums_and_peaks_are_maxima(steps):
    """For any history the counters are what one would add up by hand; negative steps free the oldest."""
    fake, live, levels = FakeBackend(), [], [0]
    for step in steps:
        if step > 0:
            live.append((fake.allocate(step), -(-step // 512) * 512))
        elif live:
            fake.free(live.pop(0)[0])
        levels.append(sum(size for _, size in live))
    found = counters(fake.stats(0))
    assert (found.allocated, found.active, found.live) == (levels[-1], levels[-1], len(live))
    assert found.peak_allocated == max(levels)
    assert found.allocated <= found.reserved == found.peak_reserved
    memory = fake.memory(0)
    assert memory.used + memory.free == memory.total
    assert memory.process == found.reserved + fake.context
