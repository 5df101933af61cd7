"""What is put aside for a moment is in nobody's peak: not the user's, and not that of an open measurement."""

from __future__ import annotations

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem.control.reservation import RESERVATIONS
from jupyter_gpumem.units import GiB, MiB


@pytest.mark.parametrize("level", [0, 300 * MiB])
def test_the_users_maximum_is_as_without_it(fake, book, level):
    """Before and after a reset of the user's, and whatever was reached before."""
    fake.free(fake.allocate(level))
    assert book.keep_out(fake, 0, lambda: fake.free(fake.allocate(200 * MiB)))
    assert fake.user_peak() == level
    assert fake.user_stats()["reserved_bytes"]["all"]["peak"] == max(200 * MiB, level)
    fake.free(fake.allocate(400 * MiB))
    assert fake.user_peak() == 400 * MiB
    fake.user_reset_peaks()
    assert fake.user_peak() == 0
    assert not fake.watched


def test_nothing_is_reset_below_the_peak(fake, book):
    """What shows nowhere is left alone, and nothing is watched for it."""
    fake.free(fake.allocate(300 * MiB))
    assert book.keep_out(fake, 0, lambda: fake.free(fake.allocate(200 * MiB)))
    assert fake.stats(0)["allocated_bytes"]["all"]["peak"] == 300 * MiB
    assert not fake.watched


def test_open_intervals_do_not_count_it(fake, book):
    """Their peaks are exact, of allocated memory without it and of reserved memory with it, and nothing is doubted."""
    outer = book.open()
    fake.free(fake.allocate(100 * MiB))
    inner = book.open()
    fake.allocate(MiB)
    assert book.keep_out(fake, 0, lambda: fake.free(fake.allocate(200 * MiB)))
    (inside,), (outside,) = book.close(inner).values(), book.close(outer).values()
    assert (inside.peak_allocated, inside.peak_reserved, inside.doubt) == (MiB, 202 * MiB, None)
    assert (outside.peak_allocated, outside.peak_reserved, outside.doubt) == (100 * MiB, 202 * MiB, None)
    assert inside.end.allocation_count - inside.start.allocation_count == 1
    assert fake.user_peak() == 100 * MiB


def test_what_another_thread_does_meanwhile_is_not_lost(fake, book):
    """A peak that may be its own stays, and it is said that it could not be told apart."""
    interval = book.open()

    def both():
        mine, other = fake.allocate(200 * MiB), fake.allocate(100 * MiB)
        fake.free(other)
        fake.free(mine)

    assert not book.keep_out(fake, 0, both)
    assert fake.user_peak() == 300 * MiB
    (span,) = book.close(interval).values()
    assert span.peak_allocated == 300 * MiB


def test_a_reservation_is_kept_out(virtual):
    """`max_memory_allocated()` says what it would have said; what is held is allocated, and counts."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    with gm.measure() as measured:
        assert gm.reserve("8GiB").record.warnings == ()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.cuda.max_memory_reserved() >= 8 * GiB
    assert measured.result[0].peak_allocated == before
    gm.reserve("1GiB", hold=True)
    assert torch.cuda.max_memory_allocated() == before + GiB == torch.cuda.memory_allocated()
    RESERVATIONS.release()
    torch.cuda.reset_peak_memory_stats()


def test_what_could_not_be_kept_out_is_said(virtual, monkeypatch):
    """The report does not stay silent about it."""
    import torch

    plain = torch.cuda.caching_allocator_delete

    def and_somebody_else(address):
        plain(torch.cuda.caching_allocator_alloc(512, 0))
        plain(address)

    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", and_somebody_else)
    said = str(gm.reserve("8GiB"))
    assert "another thread allocated or freed at the same moment" in " ".join(said.split())
