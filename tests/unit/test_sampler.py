"""What is read of the devices: the rows, the ring they are kept in, and when a map is read."""

from __future__ import annotations

import math
import tracemalloc

import pytest

from jupyter_gpumem import devices
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.pacing import Clock
from jupyter_gpumem.sampler import MAP_EVERY, ROW, Ring, Sample, Sampler
from tests.model_backend import ModelBackend

MiB = 2**20


class Told(Clock):
    """A clock that is set."""

    def __init__(self):
        self.time = 50.0

    def now(self):
        return self.time


@pytest.fixture
def clock():
    """A clock that is set."""
    return Told()


@pytest.fixture
def sampler(clock, gpu):
    """A sampler of that device, begun at 1,000,000 s."""
    one = Sampler(clock=clock, wall=lambda: 1e6, capacity=100)
    yield one
    one.close()


def test_a_row_holds_what_the_counters_say(sampler, gpu, clock):
    """Allocated and reserved are the counters, the peak is the interval's, others are the driver's."""
    gpu.free(gpu.allocate(30 * MiB))
    gpu.allocate(MiB)
    clock.time += 2
    (sample,) = sampler.read()
    assert sample._replace(external=0.0) == Sample(1e6 + 2, 0, 0, MiB, 32 * MiB, 30 * MiB, gpu.others, 0.0, 0, 0)
    assert math.isnan(sample.external)
    (latest,) = sampler.latest()
    assert latest == pytest.approx(sample, nan_ok=True)


def test_the_peak_is_exact_and_the_users_own_stays(sampler, gpu):
    """A peak between two readings is seen, restarting it takes nothing from the user."""
    gpu.free(gpu.allocate(64 * MiB))
    assert sampler.read()[0].peak == 64 * MiB
    sampler.mark()
    gpu.free(gpu.allocate(8 * MiB))
    assert sampler.read()[0].peak == 8 * MiB
    stats = gpu.stats(0)
    LEDGER.reading(gpu, 0, stats)
    assert stats["allocated_bytes"]["all"]["peak"] == 64 * MiB


def test_errors_and_flushes_are_counted(sampler, gpu):
    """What the allocator counts is in the row."""
    with pytest.raises(Exception, match="out of memory"):
        gpu.allocate(2**40)
    sample = sampler.read()[0]
    assert (sample.retries, sample.ooms) == (1, 1)


def test_a_device_that_comes_later_gets_the_next_slot(sampler, gpu):
    """Slots are given in the order of appearance and stay."""
    sampler.read()
    other = ModelBackend()
    other.kind = "other"
    devices.add_backend(other)
    assert [sample.slot for sample in sampler.read()] == [0, 1]
    assert [device.label for device in sampler.devices] == ["fake:0", "other:0"]
    LEDGER.detach()
    devices.remove_backend(other)


def test_without_a_device_nothing_is_read(clock):
    """A process that uses no device has no rows, and stays without a context."""
    one = Sampler(clock=clock)
    assert one.read() == []
    assert one.latest() == []
    assert one.read_map(0) is None
    one.close()
    LEDGER.detach()


def test_maps_are_read_seldom(sampler, gpu, clock):
    """A map comes at once, then not before two seconds; sooner only if something is known to have changed."""
    gpu.fragment(2)
    sampler.read()
    found = sampler.read_map(0)
    assert found.fragmentation.stranded == 32 * MiB
    assert sampler.read()[0].external == pytest.approx(1 - 8 / 32)
    clock.time += MAP_EVERY - 0.01
    assert sampler.read_map(0) is None
    sampler.want_map()
    assert sampler.read_map(0) is not None
    clock.time += MAP_EVERY
    assert sampler.read_map(0) is not None


def test_a_map_that_takes_long_is_put_off(sampler, gpu, clock):
    """Maps take one per cent of the time at most, whoever wants one."""
    gpu.allocate(MiB)
    sampler.read()
    segments = gpu.segments

    def slow(index):
        clock.time += 0.05
        return segments(index)

    gpu.segments = slow
    assert sampler.read_map(0) is not None
    clock.time += 4.9
    sampler.want_map()
    assert sampler.read_map(0) is None
    clock.time += 0.2
    assert sampler.read_map(0) is not None


def test_a_device_that_is_not_there_has_no_map(sampler):
    """What a browser asks for is not believed: neither a slot beyond the last nor one before the first."""
    sampler.read()
    assert sampler.read_map(1) is None
    assert sampler.read_map(-1) is None
    assert sampler.read_map(0) is not None


def test_a_device_without_a_snapshot_is_asked_seldom(sampler, gpu):
    """Where the allocator tells no segments there is no map."""
    gpu.segments = lambda index: None
    sampler.read()
    assert sampler.read_map(0) is None


def test_cuda_is_not_asked_for_the_card_by_its_runtime(sampler, gpu, monkeypatch):
    """Where the driver does not know, nothing is said: the run-time library must not be called during a capture."""
    gpu.kind = "cuda"
    monkeypatch.setattr(gpu, "memory", lambda index: pytest.fail("the run-time library was asked"))
    assert math.isnan(sampler.read()[0].others)


def rows(samples):
    """Return samples as the ring keeps them."""
    return b"".join(ROW.pack(*sample) for sample in samples)


def test_ring_keeps_the_newest():
    """Whatever was written before, the newest rows come out oldest first."""
    ring = Ring(4)
    samples = [Sample(*[float(n)] * 10) for n in range(11)]
    for n, sample in enumerate(samples):
        ring.append(sample)
        kept = samples[max(0, n - 3) : n + 1]
        assert len(ring) == len(kept)
        assert ring.newest() == rows(kept)
        assert ring.newest(2) == rows(kept[-2:])
    assert ring.newest(0) == b""


def test_an_hour_takes_no_memory_that_stays(clock, gpu):
    """14,400 readings, with a ring of 10 s: the ring does not grow, and nothing else does."""
    one = Sampler(clock=clock, capacity=40)
    for _ in range(100):
        one.read()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(14_400):
        clock.time += 0.25
        one.read()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(one.ring.newest()) == 40 * ROW.size
    assert after - before < 4096
    one.close()
