"""The check that every test ends with: that it sees what it is there to see."""

from __future__ import annotations

import threading

from jupyter_gpumem import devices, magics
from jupyter_gpumem.ledger import LEDGER


def test_a_clean_process_has_no_leftovers(leftovers):
    """Nothing is found where nothing is."""
    assert leftovers() == []


def test_an_added_back_end_is_found(leftovers, fake):
    """A back end that a test adds is seen while it is there."""
    assert [found.split(":")[0] for found in leftovers()] == ["back ends"]


def test_an_open_measurement_is_found(leftovers, fake):
    """An interval that was not closed is seen, and so is the watching that goes with it."""
    interval = LEDGER.open()
    found = leftovers()
    LEDGER.close(interval)
    assert found[:2] == ["1 open interval(s)", "the ledger still watches"]


def test_an_import_watch_is_found(leftovers):
    """A watch for `import torch` is seen."""
    watch = devices.TorchImportWatch(lambda: None)
    watch.install()
    found = leftovers()
    watch.remove()
    assert found == ["a TorchImportWatch in sys.meta_path"]


def test_a_thread_is_found(leftovers):
    """A running thread of ours is seen by its name."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="gpumem-sampler")
    thread.start()
    found = leftovers()
    end.set()
    thread.join()
    assert found == ["thread gpumem-sampler"]


def test_a_session_is_found(leftovers, monkeypatch):
    """A loaded extension is seen."""
    monkeypatch.setitem(magics._sessions, 0, None)
    assert leftovers() == ["1 session(s)"]
    monkeypatch.undo()


def test_a_replaced_binding_is_found(leftovers, monkeypatch):
    """A wrapper of ours in `torch._C` is seen."""
    import torch

    def wrapper():
        """Stand for a wrapped binding."""

    setattr(wrapper, devices.interception.MARK, True)
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", wrapper, raising=False)
    assert leftovers() == ["torch._C._cuda_memoryStats is replaced"]
    monkeypatch.undo()
