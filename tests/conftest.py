"""What every test is held to: nothing of the package is left behind in the process that ran it."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest

from jupyter_gpumem import devices, incidents
from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.devices.interception import MARK
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.recorder import RECORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEFAULT_BACKENDS = devices.backends()


def _leftovers() -> list[str]:
    """Return what the package has left behind in this process, in words."""
    found = []
    if LEDGER.open_intervals:
        found.append(f"{LEDGER.open_intervals} open interval(s)")
    if LEDGER.watching:
        found.append("the ledger still watches")
    if "torch" in sys.modules:
        found += [
            f"torch._C.{name} is replaced" for name, item in vars(sys.modules["torch"]._C).items() if _marked(item)
        ]
    if any(type(finder) is devices.TorchImportWatch for finder in sys.meta_path):
        found.append("a TorchImportWatch in sys.meta_path")
    if devices.backends() != _DEFAULT_BACKENDS:
        found.append(f"back ends: {[backend.kind for backend in devices.backends()]}")
    reservation = sys.modules.get("jupyter_gpumem.control.reservation")
    if reservation is not None:
        found += [f"memory put aside as {name!r}" for name in reservation.RESERVATIONS.names()]
    if RECORDER.running:
        found.append("a recording that runs")
    found += [f"thread {thread.name}" for thread in threading.enumerate() if "gpumem" in thread.name]
    magics = sys.modules.get("jupyter_gpumem.magics")  # only where a test loaded them: this must not import IPython
    if magics is not None and magics._sessions:
        found.append(f"{len(magics._sessions)} session(s)")
    return found


def _marked(item: object) -> bool:
    """Whether a binding is a wrapper of ours."""
    return getattr(item, MARK, False) is True


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Assert after every test that the process is as it was."""
    yield
    devices.find_context_again()  # a test that lost it did so on purpose, and the process goes on
    # What the process remembers for the user, and the next test must not find.
    incidents.forget_oom()
    if observer := sys.modules.get("jupyter_gpumem.oom.observer"):
        observer.stop_waiting()
    RECORDER.last = None
    assert _leftovers() == []


@pytest.fixture
def leftovers() -> Callable[[], list[str]]:
    """The function that finds what the package has left behind, for the test of it."""
    return _leftovers


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    """A scripted device of 8 GiB, `fake:0`, that the process uses already."""
    backend = FakeBackend()
    devices.add_backend(backend)
    yield backend
    if not LEDGER.open_intervals:
        LEDGER.detach()  # it rightly watches on while the user's own maximum is above what the counter says
    devices.remove_backend(backend)
