"""Who holds memory by way of functions: those that run, those of an error, and their callers."""

from __future__ import annotations

import sys
import threading
import traceback
import types
import weakref

import pytest

from jupyter_gpumem.finishing import collector_paused
from jupyter_gpumem.holding import survey
from jupyter_gpumem.holding.edges import local_names
from jupyter_gpumem.letting_go import free
from jupyter_gpumem.notebook import Notebook, chained
from jupyter_gpumem.units import MiB
from tests.notebooks import Shell, books, lines, take

torch = pytest.importorskip("torch")


def test_the_kernel_is_nobodys(small_card):
    """IPython's frame in a traceback keeps the application, which leads to all that runs: no error holds that."""
    application = types.SimpleNamespace(parent=None, handlers=[take(3)])
    shell = Shell(error=types.SimpleNamespace(old_excepthook=application))
    assert "error" in {h.name for h in survey(Notebook(shell)).record().devices[0].holders}
    shell.parent = types.SimpleNamespace(parent=application)
    assert "error" not in {h.name for h in survey(Notebook(shell)).record().devices[0].holders}


def test_an_error_holds_the_callers_of_the_function_that_caught_it(small_card):
    """A frame that has ended keeps the one that called it, which no traceback shows."""

    def fail():
        raise ValueError

    def catch():
        try:
            fail()
        except ValueError as error:
            return error

    def call():
        big = take(7)
        return catch(), big.numel()

    line = call.__code__.co_firstlineno + 2
    found = lines(books(error=call()[0]))
    assert [(name, h.allocated) for name, h in found.items()] == [(("variable", "error"), 7 * MiB)]
    assert found["variable", "error"].detail == f"error (local big of call, line {line})"


def test_a_variable_in_a_cell_has_its_name(small_card):
    """A local variable that a function inside uses is found through the cell it lies in."""

    def fail():
        big = take(7)

        def inner():
            return big

        raise ValueError(inner().numel())

    try:
        fail()
    except ValueError as error:
        kept = [error]
    line = fail.__code__.co_firstlineno + 6
    assert lines(books(kept=kept))["variable", "kept"].detail == f"kept[0] (local big of fail, line {line})"


def test_searching_again_leaves_frames_as_they_were(small_card):
    """What the first search asked a frame for is not kept by it after the second: its frames can be cleared."""

    def fail():
        big = take(7)
        raise ValueError(big.numel())

    try:
        fail()
    except ValueError as error:
        kept = [error]
    for _ in range(3):
        line = fail.__code__.co_firstlineno + 2
        assert lines(books(kept=kept))["variable", "kept"].detail == f"kept[0] (local big of fail, line {line})"
    before = torch.cuda.memory_allocated()
    traceback.clear_frames(kept[0].__traceback__)
    assert before - torch.cuda.memory_allocated() == 7 * MiB


def test_a_caller_that_runs_is_not_held_by_an_error(small_card):
    """What a function that runs has is its own."""

    def fail():
        raise ValueError

    mine = take(7)
    try:
        fail()
    except ValueError as error:
        kept = [error]
        found = lines(books(kept=kept))
        kept.clear()
    assert [(kind, h.also) for (kind, _), h in found.items()] == [("frame", ())]
    del mine


def test_the_sessions_frames_around_an_error_are_no_other_holders(small_card):
    """A frame in a traceback keeps IPython's frames around it, and these the results of cells, with the error."""
    results = pytest.importorskip("IPython.core.interactiveshell")
    names = {"__name__": "IPython.core.interactiveshell", "Result": results.ExecutionResult}
    source = """
def run_cell(code):
    result = Result(None)
    def fail(error):
        result.error_in_exec = error
    run_code(code, fail)
    return result.error_in_exec

def run_code(code, fail):
    try:
        code()
    except ValueError as error:
        fail(error)
"""
    exec(source, names)

    def step():
        big = take(7)
        raise ValueError(big.numel())

    error = names["run_cell"](step)
    notebook = Notebook(Shell(), error)
    del error
    (held,) = survey(notebook).record().devices[0].holders
    assert (held.kind, held.name.partition(" (")[0], held.also) == ("error", "the last error", ())
    assert held.alone == 7 * MiB
    step = free(dry_run=True, notebook=notebook).steps[0]
    assert (step.step, step.allocated) == ("last error", 7 * MiB)


def test_running_functions(small_card):
    """Local names of functions that run are roots, those of other threads too."""
    go, there = threading.Event(), threading.Event()

    def work():
        batch = take(16)
        there.set()
        go.wait()
        del batch

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    there.wait()
    mine = take(8)
    names = {h.name.partition(", line")[0] + h.name.rpartition(":")[2]: h.allocated for h in books().holders}
    go.set()
    thread.join()
    del mine
    assert names["running function work in thread loader batch"] == 16 * MiB
    assert names["running function test_running_functions mine"] == 8 * MiB


def test_asking_a_frame_keeps_nothing_alive():
    """The local names of a frame that has ended, or still runs, are read without being held from then on."""

    class Thing:
        pass

    def ended():
        thing = Thing()
        alive.append(weakref.ref(thing))
        raise ValueError

    alive = []
    try:
        ended()
    except ValueError as error:
        frame = error.__traceback__.tb_next.tb_frame
        assert type(local_names(frame)["thing"]) is Thing
        error.__traceback__ = None
    del frame
    assert alive[0]() is None
    thing = Thing()
    alive.append(weakref.ref(thing))
    assert local_names(sys._getframe())["thing"] is thing
    del thing
    assert alive[1]() is None


def test_a_users_own_locals_are_not_emptied():
    """A dict that `locals()` has given to somebody stays as it is."""
    mark = 7
    own = locals()
    local_names(sys._getframe())
    assert own["mark"] == mark


def test_the_last_error_is_the_notebooks_not_a_modules(small_card, monkeypatch):
    """Python keeps it in `sys`, which is looked through when some tensor has no name."""

    def fail():
        activation = take(32)
        raise ValueError(f"no use for {activation.shape}")

    with pytest.raises(ValueError, match="no use") as caught:
        fail()
    monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
    monkeypatch.setattr(sys, "last_exc", caught.value, raising=False)
    del caught
    with collector_paused():
        loop = types.SimpleNamespace(data=take(16))
        loop.itself = loop
        del loop
        held = books().holders
    assert {(h.kind, h.allocated) for h in held} == {("error", 32 * MiB), ("cycle", 16 * MiB)}
    assert not any("module sys" in name for h in held for name in h.also)


def test_chained_errors():
    """Causes, contexts and groups are followed, each error once, and cycles come to an end."""
    a, b, c = ValueError("a"), ValueError("b"), ValueError("c")
    a.__cause__, b.__context__, c.__context__ = b, c, a
    assert chained(a) == [a, b, c]
