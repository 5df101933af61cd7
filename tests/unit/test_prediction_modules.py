"""What a prediction changes in modules of the user's own: as before afterwards, as what it changes in the notebook."""

from __future__ import annotations

import functools
import importlib
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from jupyter_gpumem.prediction import predict  # noqa: E402

HELPER = """
import os
HISTORY, COUNT, BEST = [], 0, None

class Registry:
    items, count = {}, 0

def log(x):
    global COUNT, BEST, NEW
    HISTORY.append(x)
    COUNT += 1
    BEST = NEW = x
    Registry.items[COUNT] = x
    Registry.count += 1

def state():
    return list(HISTORY), COUNT, BEST, dict(Registry.items), Registry.count, "NEW" in globals()
"""


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A package of the user's."""
    (tmp_path / "gpumem_project").mkdir()
    (tmp_path / "gpumem_project" / "__init__.py").write_text(HELPER)
    (tmp_path / "gpumem_project" / "late.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("gpumem_project")
    for name in [name for name in sys.modules if name.startswith("gpumem_project")]:
        del sys.modules[name]


def test_globals_and_classes_of_a_module_are_as_before(helper):
    """A later cell finds no tensors of a virtual GPU there, which could not be used any more."""
    before = helper.state()

    def code(call):
        call(torch.ones(3, device="cuda"))

    def by_the_module(x):
        helper.log(x)
        assert helper.state() != before

    for call in (helper.log, by_the_module):
        predict(code, call)
        assert helper.state() == before


def test_a_part_of_a_package_that_is_imported_meanwhile_stays_imported(helper):
    """It is not imported again, so that its package would miss it."""

    def code():
        importlib.import_module("gpumem_project.late")

    predict(code)
    assert importlib.import_module("gpumem_project.late") is helper.late


def test_modules_of_python_and_of_packages_keep_what_they_remember():
    """They have caches, threads and the like, which are not the code's."""
    marker = object()

    def code():
        importlib.marker = torch.gpumem_marker = marker

    predict(code)
    assert importlib.marker is marker is torch.gpumem_marker
    del importlib.marker, torch.gpumem_marker


def test_functions_that_replace_those_of_others_are_gone():
    """In modules and classes of PyTorch and of Python, whatever the kind: their own names would be gone, too."""
    linear, relu, step = torch.nn.functional.linear, torch.relu, torch.optim.SGD.step
    forward, sleep = torch.nn.Linear.forward, time.sleep

    def code():
        torch.nn.functional.linear = lambda *args: linear(*args)
        torch.relu = functools.partial(lambda factor, tensor: tensor * factor, 2)
        torch.nn.Linear.forward = lambda self, x: forward(self, x)
        torch.nn.Linear.doubled = property(lambda self: 2)
        torch.optim.SGD.step = staticmethod(lambda *_: None)
        torch.Tensor.more = lambda self: self
        time.sleep = lambda _: None
        model = torch.nn.Linear(2, 2).cuda()
        assert model(torch.ones(2, device="cuda")).more().numel() == model.doubled

    for _ in range(2):
        predict(code)
    assert (torch.nn.functional.linear, torch.relu, torch.optim.SGD.step) == (linear, relu, step)
    assert (torch.nn.Linear.forward, time.sleep) == (forward, sleep)
    assert not hasattr(torch.nn.Linear, "doubled")
    assert not hasattr(torch.Tensor, "more")
