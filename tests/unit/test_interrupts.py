"""Ctrl-C at the worst moment, while the allocator is acted on: everything is as before, or as it was to be."""

from __future__ import annotations

import threading

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem.control.reservation import RESERVATIONS
from tests.unit.conftest import raising_at
from tests.unit.test_control import level

torch = pytest.importorskip("torch")

CONTROLS = "devices/controls.py"


@pytest.fixture
def two(virtual):
    """Two guard bands, `spare` and `other`; returns what was allocated before."""
    before = level(virtual, "allocated_bytes")
    for name in ("spare", "other"):
        gm.reserve("1GiB", hold=True, name=name)
    return before


def test_an_interrupted_release_is_done(virtual, two, signalled):
    """It is freed and forgotten, once, and the other one can still be released."""
    signalled(torch.cuda, "caching_allocator_delete")
    with pytest.raises(KeyboardInterrupt):
        RESERVATIONS.release("spare")
    assert RESERVATIONS.names() == ("other",)
    assert level(virtual, "allocated_bytes") == two + (1 << 30)
    assert RESERVATIONS.release() == ("other",)
    assert level(virtual, "allocated_bytes") == two


def test_what_was_released_is_never_released_again(virtual, two):
    """Also where the interrupt is none that could wait."""
    with raising_at("free", CONTROLS):
        RESERVATIONS.release("spare")
    assert RESERVATIONS.release() == ("other",)
    assert level(virtual, "allocated_bytes") == two


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_closing_releases_everything(virtual, two, monkeypatch, error):
    """One that fails does not keep the others back, and nothing is listed any more."""
    plain = torch.cuda.caching_allocator_delete

    def free(address):
        monkeypatch.setattr(torch.cuda, "caching_allocator_delete", plain)
        plain(address)
        raise error

    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", free)
    with pytest.raises(error):
        RESERVATIONS.close()
    assert RESERVATIONS.names() == ()
    assert level(virtual, "allocated_bytes") == two


@pytest.mark.parametrize(
    ("hold", "function"),
    [(True, "caching_allocator_alloc"), (False, "caching_allocator_alloc"), (False, "caching_allocator_delete")],
)
def test_an_interrupted_reservation_is_not_made(virtual, signalled, hold, function):
    """It is not listed, nothing is allocated that nobody knows of, and its name is free."""
    before = level(virtual, "allocated_bytes")
    signalled(torch.cuda, function)
    with pytest.raises(KeyboardInterrupt):
        gm.reserve("1GiB", hold=hold, name="spare")
    assert RESERVATIONS.names() == ()
    assert level(virtual, "allocated_bytes") == before
    assert gm.reserve("1GiB", hold=hold, name="spare").record.name == "spare"


@pytest.mark.parametrize("function", ["allocate", "free"])
def test_memory_is_known_as_soon_as_it_is_allocated(virtual, function):
    """Also where the interrupt is none that could wait, nothing leaks and nothing is freed twice."""
    before = level(virtual, "allocated_bytes")
    with raising_at(function, CONTROLS):
        gm.reserve("1GiB")
    assert RESERVATIONS.names() == ()
    assert level(virtual, "allocated_bytes") == before


@pytest.mark.parametrize("begin", [lambda watch: watch.start(), lambda watch: watch.__enter__()])
def test_a_monitor_that_is_interrupted_does_not_watch(virtual, signalled, begin):
    """Its thread has ended, and it can be started."""
    watch = gm.monitor(3600)
    signalled(threading.Thread, "start")
    with pytest.raises(KeyboardInterrupt):
        begin(watch)
    assert not watch.running
    watch.start().stop()


def test_a_block_that_is_interrupted_before_it_begins(virtual):
    """Nobody would end what it watches with."""
    watch = gm.monitor(3600)
    with raising_at("start", "control/monitoring.py"), watch:
        pytest.fail("the block begins")
    assert not watch.running


@pytest.fixture
def told(virtual):
    """Return what PyTorch tells of its settings."""
    return lambda: torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] >> 20


def test_a_change_of_settings_is_made_as_a_whole(told, signalled):
    """It is in force and can be undone, and so is an undo that is interrupted."""
    gm.allocator_config("max_split_size_mb:128")
    signalled(torch._C, "_accelerator_setAllocatorSettings")
    with pytest.raises(KeyboardInterrupt):
        gm.allocator_config("max_split_size_mb:64")
    assert told() == 64
    signalled(torch._C, "_accelerator_setAllocatorSettings")
    with pytest.raises(KeyboardInterrupt):
        gm.allocator_config(undo=True)
    assert told() == 128
    assert gm.allocator_config(undo=True).text == ""


def test_a_change_of_settings_is_not_made_at_all(told):
    """Where the interrupt is none that could wait, what was before is in force again, by our own hand."""
    gm.allocator_config("max_split_size_mb:128")
    with raising_at("apply_settings", CONTROLS):
        gm.allocator_config("max_split_size_mb:64")
    assert told() == 128
    with raising_at("apply_settings", CONTROLS):
        gm.allocator_config(undo=True)
    assert told() == 128
    assert gm.allocator_config(undo=True).text == ""
