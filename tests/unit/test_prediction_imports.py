"""Modules that predicted code imports first: what their import does stays, what the code does with them does not."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import pytest

torch = pytest.importorskip("torch")

from jupyter_gpumem.prediction import predict  # noqa: E402

ROOT = """
MODELS, ORDER, NAMES, LIMITS, COUNT = {"Old": 1}, ["old"], {"old"}, {}, 0

def register(kind):
    global COUNT
    COUNT += 1
    MODELS[kind.__name__] = kind
    ORDER.append(kind.__name__)
    NAMES.add(kind.__name__)
    return kind

class Base:
    kinds = []

    def __init_subclass__(cls):
        Base.kinds.append(cls.__name__)
"""

LATE = """
import os
import sys
import torch
from . import COUNT, LIMITS, Base, register
from . import inner

@register
class Small(torch.nn.Linear, Base):
    pass

LIMITS["late"] = 1
torch.nn.Module.gpumem_late = lambda self: 1
sys.path.append("gpumem-late")
os.environ["GPUMEM_LATE"] = "1"
torch.set_float32_matmul_precision("high")
SEEN, TOTAL = [], 0

def see(x):
    global TOTAL
    SEEN.append(x)
    TOTAL += 1
"""


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """A package of the user's, of which a part registers models."""
    folder = tmp_path / "gpumem_zoo"
    folder.mkdir()
    (folder / "__init__.py").write_text(ROOT)
    (folder / "late.py").write_text(LATE)
    (folder / "inner.py").write_text("from . import register\n@register\nclass Inner: pass\n")
    (folder / "broken.py").write_text("from . import MODELS\nMODELS['broken'] = 1\nraise ValueError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("gpumem_zoo")
    for name in [name for name in sys.modules if name.startswith("gpumem_zoo")]:
        del sys.modules[name]
    vars(torch.nn.Module).get("gpumem_late") and delattr(torch.nn.Module, "gpumem_late")


@pytest.fixture(autouse=True)
def settings_of_others(monkeypatch):
    """What a test's module sets goes with it."""
    monkeypatch.setenv("GPUMEM_LATE", "0")
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def late():
    return importlib.import_module("gpumem_zoo.late")


def state(zoo):
    return list(zoo.MODELS), zoo.ORDER, zoo.NAMES, zoo.LIMITS, zoo.COUNT, zoo.Base.kinds


REGISTERED = (
    ["Old", "Inner", "Small"],
    ["old", "Inner", "Small"],
    {"old", "Inner", "Small"},
    {"late": 1},
    2,
    ["Small"],
)


def test_what_an_import_registers_stays_registered(zoo):
    """In dicts, lists, sets and names of modules, in classes, in PyTorch and in Python, also by a module within."""

    def code():
        late().Small(2, 2).cuda()
        zoo.MODELS["Small"](2, 2).cuda()(torch.ones(2, device="cuda"))

    for _ in range(2):
        predict(code, gpu="T4")
        assert state(zoo) == REGISTERED
        assert torch.nn.Linear(1, 1).gpumem_late() == 1
        assert sys.path.pop() == "gpumem-late"
        sys.path.append("gpumem-late")
    assert zoo.MODELS["Small"] is late().Small


def test_what_code_changes_beside_an_import_is_as_before(zoo):
    """In the same dicts and lists, before the import and after it; and in the module itself."""
    kept = {"a": 1}
    zoo.LIMITS["kept"] = kept

    def code():
        zoo.MODELS["before"], zoo.LIMITS["new"] = 1, 2
        zoo.ORDER.append("before")
        del zoo.MODELS["Old"]
        kept.clear()
        torch.nn.Module.gpumem_mine = zoo.register
        late().see(torch.ones(1, device="cuda"))
        zoo.NAMES.add("after")
        zoo.MODELS["after"] = kept["b"] = 1
        zoo.Base.kinds.clear()

    for _ in range(2):
        predict(code, gpu="T4")
        assert set(zoo.MODELS) == {"Old", "Inner", "Small"}
        assert sorted(zoo.NAMES) == sorted(REGISTERED[2])
        assert zoo.LIMITS == {"kept": {"a": 1}, "late": 1}
        assert zoo.Base.kinds == ["Small"]
        assert (late().SEEN, late().TOTAL) == ([], 0)
        assert not hasattr(torch.nn.Module, "gpumem_mine")


def test_what_an_import_sets_stays_set(zoo):
    """In the environment and in PyTorch; not what the code sets itself."""
    threads = torch.get_num_threads()

    def code():
        os.environ["GPUMEM_MINE"] = "1"
        torch.set_num_threads(threads + 1)
        late()
        torch.set_default_dtype(torch.float64)
        os.environ["GPUMEM_MINE"] = "2"

    predict(code, gpu="T4")
    assert os.environ["GPUMEM_LATE"] == "1"
    assert "GPUMEM_MINE" not in os.environ
    assert torch.get_float32_matmul_precision() == "high"
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, torch.float32)


def test_what_each_of_several_runs_changes_in_a_new_module_is_as_before(zoo):
    """The first run imports it, and the others find it as it was then."""
    seen = []

    def code(batch):
        seen.append((len(late().SEEN), late().TOTAL))
        late().see(torch.ones(batch << 20, device="cuda"))

    predict(code, 8, gpu="1GiB", batch="batch")
    assert (late().SEEN, late().TOTAL, state(zoo)) == ([], 0, REGISTERED)


def test_an_import_that_fails_shows_the_users_lines_alone(zoo):
    """And what it had registered by then stays, as without a prediction."""

    def code():
        from gpumem_zoo import broken  # noqa: F401

    for run in (code, lambda: predict(code, gpu="T4")):
        zoo.MODELS.pop("broken", None)
        with pytest.raises(ValueError, match="broken") as caught:
            run()
        frames = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames[-2:] == [__file__, str(zoo.__path__[0]) + "/broken.py"]
        assert zoo.MODELS["broken"] == 1
