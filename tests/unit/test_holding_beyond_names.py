"""Memory that no name of the notebook leads to: of modules, in garbage, and elsewhere."""

from __future__ import annotations

import functools
import gc
import sys
import types
import warnings
import weakref

import pytest

from jupyter_gpumem.holding import survey, upwards
from jupyter_gpumem.holding.tensors import view_of_torch
from jupyter_gpumem.notebook import Notebook
from jupyter_gpumem.units import MiB
from tests.notebooks import Shell, books, lines, take

torch = pytest.importorskip("torch")


def test_what_no_name_reaches(small_card):
    """Tensors of a module are the module's, and those in garbage are garbage: separate from what is still held."""
    module = types.ModuleType("some_library")
    sys.modules["some_library"] = module
    module.cache = take(16)
    gc.disable()
    try:

        class Ring:
            def __init__(self):
                self.me, self.data = self, take(8)

        Ring()
        found = {(h.kind, h.name): h.allocated for h in books().holders}
        assert found["module", "module some_library"] == 16 * MiB
        assert found["cycle", "garbage: Ring"] == 8 * MiB
        gc.collect()
        assert [h.kind for h in books().holders] == ["module"]
    finally:
        gc.enable()
        del sys.modules["some_library"]


def hide(library):
    """Keep tensors without a name, in every way that leads to one: in a module, in garbage, elsewhere."""
    import numpy as np

    class Cached:
        """Keep something for all of its kind."""

    def objects(*items):
        array = np.empty(len(items), dtype=object)
        for number, item in enumerate(items):
            array[number] = item
        return array

    class Ring:
        def __init__(self, mib):
            self.me, self.data = self, take(mib)

    Cached.cache = {"deep": [take(1)]}
    library.cached = Cached
    library.array = objects(None, [take(2)])
    library.nested = objects(objects(take(3), "text"), 5)
    library.function = functools.partial(len, default := take(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a value of a virtual GPU is none
        library.on_host = (torch.ones(1024, 1024, 5, device="cuda", requires_grad=True) * 2).exp().sum().cpu()
    del default
    ring = Ring(7)
    ring.model = torch.nn.Sequential(torch.nn.Linear(1024, 2048, bias=False, device="cuda"))
    ring.model.register_forward_hook(functools.partial(print, take(9)))
    ring.model.ring = ring
    array = objects(take(10), Ring(12))
    array[1].array = array  # a cycle that the collector does not see: it is never collected
    library.kept = weakref.ref(array[1])


@pytest.mark.parametrize("asked", [0, 256], ids=["from a list of all references", "asking the collector"])
def test_everything_without_a_name_is_found_from_below(small_card, monkeypatch, asked):
    """Only what leads to it is looked at, also what neither names nor the collector show."""
    pytest.importorskip("numpy")
    monkeypatch.setattr(upwards, "_MOST_ASKED", asked)
    library = types.ModuleType("some_library")
    monkeypatch.setitem(sys.modules, "some_library", library)
    gc.collect()
    gc.disable()
    try:
        named = survey(Notebook(Shell())).record().visited  # functions that run, in whatever process this is
        hide(library)
        found = survey(Notebook(Shell())).record()
    finally:
        gc.enable()
        vars(library.kept()).clear()  # or later tests would find it
    (record,) = found.devices
    held = {(h.kind, h.name): h.allocated // MiB for h in record.holders}
    assert held == {
        ("module", "module some_library"): 1 + 2 + 3 + 4,
        ("graph", "module some_library"): 2 * 20,
        ("cycle", "garbage: Sequential"): 7 + 8,
        ("hook", "garbage: Sequential"): 9,
        ("other", "a uint8 tensor of shape (10485760,) that other code holds"): 10,
        ("other", "a uint8 tensor of shape (12582912,) that other code holds"): 12,
    }
    assert record.unattributed == 0
    # A few dozen in a fresh kernel; what else a process has loaded may lead to them, too.
    assert found.visited - named < len(gc.get_objects()) // 2


@pytest.mark.parametrize("asked", [0, 256], ids=["from a list of all references", "asking the collector"])
def test_the_c_half_of_asyncio_is_not_asked(small_card, monkeypatch, asked):
    """Its answer ties freed memory into a ring before Python 3.12.6: the next search or collection never ends."""
    pytest.importorskip("numpy")
    monkeypatch.setattr(upwards, "_MOST_ASKED", asked)
    about = sys.modules["_asyncio"]
    ask, answers = gc.get_referents, []

    def asked_about(*items):
        answers.append(any(item is about for item in items))
        return ask(*items)

    library = types.ModuleType("some_library")
    monkeypatch.setitem(sys.modules, "some_library", library)
    hide(library)
    monkeypatch.setattr(gc, "get_referents", asked_about)
    survey(Notebook(Shell(module=about, nested=[about])))
    vars(library.kept()).clear()
    assert len(answers) > 10
    assert not any(answers)


@pytest.mark.parametrize("asked", [0, 256], ids=["from a list of all references", "asking the collector"])
def test_what_uses_a_class_or_function_does_not_hold_it(small_card, monkeypatch, asked):
    """Half of a process leads to a class such as `Module`: its module holds it, and nothing else is looked at."""
    monkeypatch.setattr(upwards, "_MOST_ASKED", asked)
    library = types.ModuleType("some_library")
    exec("def remember(x): return x\nclass Cached:\n    class Inner: pass", vars(library))
    sys.modules["some_library"] = library
    library.users = [[library.remember, library.Cached] for _ in range(1000)]
    ends = [take(1), take(2), take(4)]
    library.Cached.Inner.cache, library.remember.cache, torch.nn.Module.cache = ends
    try:
        assert len(upwards.leading_to(ends, {id(vars(library))}, view_of_torch(), upwards.Arrays())) < 20
        del ends
        found = lines(books(model=torch.nn.Linear(1, 1)))
    finally:
        del sys.modules["some_library"], torch.nn.Module.cache
    assert {name: line.allocated for (_, name), line in found.items()} == {
        "module some_library": 3 * MiB,
        "module torch.nn.modules.module": 4 * MiB,
    }


def test_a_hidden_class_of_the_notebook_is_found_by_who_uses_it(small_card, monkeypatch):
    """What a startup file defines is no variable of the user's, and its module is the notebook."""
    main, library = types.ModuleType("__main__"), types.ModuleType("some_library")
    exec("class Started: pass", vars(main))
    main.Started.cache, library.users = take(3), [main.Started]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(sys.modules, "some_library", library)
    shell = Shell()
    shell.user_ns, shell.user_ns_hidden = vars(main), dict(vars(main))
    del main, library
    found = lines(survey(Notebook(shell)).record().devices[0])
    assert found["module", "module some_library"].allocated == 3 * MiB
