"""An interrupt loses no memory of a virtual card: what was taken is given back with what it was taken for."""

from __future__ import annotations

import signal
import warnings

import pytest

from jupyter_gpumem.virtual import session

torch = pytest.importorskip("torch")


@pytest.fixture
def gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield session.start("T4")
        session.stop()


@pytest.fixture
def interrupted(monkeypatch):
    """Switch on interrupts that come each time when they are let through again after an allocation."""
    plain = signal.pthread_sigmask

    def let_through(how, signals):
        found = plain(how, signals)
        if how == signal.SIG_SETMASK:
            raise KeyboardInterrupt
        return found

    return lambda: monkeypatch.setattr(signal, "pthread_sigmask", let_through)


WORK = {
    "a new tensor": lambda x: torch.ones(1000, device="cuda"),
    "what a kernel needs meanwhile": lambda x: x.sort(),
    "a workspace": lambda x: x @ x,
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_an_interrupt_after_an_allocation_leaves_nothing_that_nobody_knows(gpu, interrupted, monkeypatch, work):
    x = torch.ones(1000, device="cuda")
    interrupted()
    with pytest.raises(KeyboardInterrupt):
        work(x)
    monkeypatch.undo()
    gpu.kernels.clear_workspaces()
    del x
    assert torch.cuda.memory_allocated() == 0
