"""Fixtures for the tests of single modules."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import warnings
from pathlib import Path

import pytest
from command_line import Call
from controlled_device import ControlledBackend
from hypothesis import HealthCheck, settings
from panel_steps import Driven

from jupyter_gpumem import cli, devices, recorder
from jupyter_gpumem.ledger import LEDGER, PeakLedger
from tests.model_backend import ModelBackend
from tests.recording_torch import RecordingTorch, own_recorder

settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/unit/golden/*.txt from what is shown now"
    )


@pytest.fixture
def golden(request):
    """Return a function that compares a text with `golden/NAME.txt`, or rewrites the file if asked to."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden", default=False):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8"), f"differs from golden/{name}.txt; see --update-golden"

    return check


@pytest.fixture
def command(capsys):
    """Return a function that runs a command in this process."""

    def run(*arguments):
        capsys.readouterr()
        try:
            code = cli.main(list(arguments))
        except SystemExit as end:
            code = end.code
        return Call(code, *capsys.readouterr())

    return run


@pytest.fixture
def virtual(monkeypatch):
    """A virtual A100 of 80 GB that is in use, with settings that come from nowhere."""
    pytest.importorskip("torch")
    import jupyter_gpumem as gm
    from jupyter_gpumem.allocator.environment import VARIABLES
    from jupyter_gpumem.control.reservation import RESERVATIONS
    from tests.notebooks import take

    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with gm.virtual_gpu("A100-80GB") as gpu:
        first = take(1)
        yield gpu
        RESERVATIONS.release()
        del first


@pytest.fixture
def small_card():
    """A virtual GPU of 8 GiB, on which nothing is yet."""
    pytest.importorskip("torch")
    from jupyter_gpumem.virtual import session

    gc.collect()
    session.start("8GiB")
    yield
    gc.collect()
    session.stop()


@pytest.fixture
def no_gpu_is_left():
    """No prediction leaves a virtual GPU."""
    torch = pytest.importorskip("torch")
    from jupyter_gpumem.virtual import session

    yield
    assert session.active() is None
    assert not torch.cuda.is_available()


@pytest.fixture
def before():
    """Everything of PyTorch that virtual cards could replace, as it was."""
    pytest.importorskip("torch")
    from cards_alone import OWNERS

    return [dict(vars(owner)) for owner in OWNERS]


@pytest.fixture
def machine(before):
    """An A100 of 80 GB and a T4 with nothing but their memory; undone afterwards, attribute by attribute."""
    from cards_alone import OWNERS, Machine

    made = Machine("A100-80GB,T4")
    yield made
    assert made.patches.undo() == []
    for owner, was in zip(OWNERS, before, strict=True):
        now = dict(vars(owner))
        assert [key for key in now.keys() | was.keys() if now.get(key) is not was.get(key)] == [], owner
    assert made.memory.observers == []


@pytest.fixture
def h200():
    """A virtual H200, whose values nobody is warned of."""
    pytest.importorskip("torch")
    from jupyter_gpumem.virtual import session
    from jupyter_gpumem.virtual.notes import VirtualValueWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VirtualValueWarning)
        started = session.start("H200")
        yield started
        left = session.stop()
    assert left == []


def level(gpu, key="reserved_bytes"):
    """Return a counter of the allocator model of a virtual GPU."""
    return gpu.memory.allocators[0].stats()[key]["all"]["current"]


def spike(backend, size, index=0):
    """Allocate and free on a scripted device."""
    backend.free(backend.allocate(size, index))


@pytest.fixture
def book():
    """A ledger of its own, that must be given back clean."""
    found = PeakLedger()
    yield found
    found.detach()
    assert not found.open_intervals
    assert not found.watching


@pytest.fixture
def ledger():
    """The process's ledger, which a test must give back clean; a leak is its own failure and nobody else's."""
    yield LEDGER
    LEDGER.detach()
    leaked, watching = list(LEDGER._open), LEDGER.watching
    LEDGER._open.clear()
    assert leaked == []
    assert not watching


@pytest.fixture
def become(monkeypatch):
    """Return a function that makes a stand-in the process's torch, and the recorder that of it; checked afterwards."""
    made = []

    def use(torch):
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(recorder, "RECORDER", own_recorder())
        made.append((torch, recorder.RECORDER))
        return torch

    yield use
    for torch, ours in made:
        ours.close()
        assert torch.memory._record_memory_history == torch.original, "PyTorch's function stays replaced"


@pytest.fixture
def torch(become):
    """A stand-in with one device in use."""
    return become(RecordingTorch())


@pytest.fixture
def ours(torch):
    """The recorder of the stand-in."""
    return recorder.RECORDER


@pytest.fixture
def controlled():
    """A scripted device of 8 GiB whose cache and cap can be controlled, and that the process uses already."""
    backend = ControlledBackend()
    devices.add_backend(backend)
    yield backend
    LEDGER.detach()  # it rightly watches on while the user's own maximum is above what the counter says
    devices.remove_backend(backend)


@pytest.fixture
def few_objects():
    """Keep what other tests left out of the collections that each trial makes: they are many here, and slow then."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def gpu():
    """A modelled device that the process uses."""
    backend = ModelBackend()
    devices.add_backend(backend)
    yield backend
    LEDGER.detach()
    devices.remove_backend(backend)


@pytest.fixture
def driven(gpu):
    """A panel on that device."""
    one = Driven()
    yield one
    one.close()


@pytest.fixture
def ctrl_c():
    """SIGINT does in this process what it does in a notebook: raise a `KeyboardInterrupt`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def signalled(ctrl_c, monkeypatch):
    """Return a function that has Ctrl-C come once when a function that is called by name has done its work."""

    def arrange(home, name):
        plain = getattr(home, name)

        def and_then(*args):
            result = plain(*args)
            monkeypatch.setattr(home, name, plain)
            signal.raise_signal(signal.SIGINT)
            return result

        monkeypatch.setattr(home, name, and_then)

    return arrange


@contextlib.contextmanager
def raising_at(name, file):
    """Raise a `KeyboardInterrupt` where a function of a file returns, as no handler of a signal could hold back."""

    def profile(frame, event, _):
        if event == "return" and frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file):
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        yield
        pytest.fail(f"{name} was not called")
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
