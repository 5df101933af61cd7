"""Searches with a container that takes more than their budget: what else there is, is found and kept all the same."""

from __future__ import annotations

import functools
import sys
import types

import pytest

from jupyter_gpumem import letting_go
from jupyter_gpumem.holding import survey
from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")

PREPARE = """
import torch
def take(mib): return torch.empty(mib * 2**20, dtype=torch.uint8, device='cuda')
def fail():
    act = take(32)
    raise ValueError('no')
"""
MORE = 20_000
"""So many objects are looked at beyond those that the process of the tests has already: the tests themselves, say."""
KEEP = "try:\n    fail()\nexcept ValueError as error:\n    {}\nraise"


@pytest.fixture
def gpu(on_virtual, monkeypatch):
    """Cells with the extension and a virtual GPU of 8 GiB, and a `budget` with which searches end early."""
    cells = on_virtual("8GiB", PREPARE)
    cells.budget = cells.shell.run_line_magic("gpumem_who", "-o --budget 10000000").visited + MORE
    monkeypatch.setattr(letting_go, "survey", functools.partial(survey, budget=cells.budget))
    return cells


def test_what_a_huge_list_holds_is_found_within_the_budget(gpu):
    """Its elements are looked at in the end, every one."""
    gpu("tokens = [[1, 2] for _ in range(100_000)] + [take(8)]")
    record = gpu.shell.run_line_magic("gpumem_who", "-o")
    assert record.complete
    assert [(h.name, h.detail, h.allocated) for h in record.devices[0].holders] == [
        ("tokens", "tokens[100000]", 8 * MiB)
    ]


def test_a_value_far_down_a_huge_dict_is_no_key_of_it(gpu):
    """However far down, it is named by its key, or by its place."""
    for make, way in (("dict.fromkeys(range(300_000))", "tokens['deep']"), ("[0] * 300_000", "tokens[300000]")):
        add = "tokens['deep'] = take(8)" if "dict" in make else "tokens.append(take(8))"
        gpu(f"tokens = {make}; {add}")
        (line,) = gpu.shell.run_line_magic("gpumem_who", "-o").devices[0].holders
        assert line.detail == way


def test_an_error_of_the_users_is_kept_when_the_search_ends_early(gpu):
    """Behind a huge list the user's own error may be: it keeps its traceback, and that is said."""
    gpu("runs = {'n': [[1, 2] for _ in range(100_000)]}; runs['deep'] = [[[[[]]]]]")
    gpu(KEEP.format("runs['n'].append([error])"))
    rehearsed = gpu.shell.run_line_magic("gpumem_free", "-o --dry-run")
    done = gpu.shell.run_line_magic("gpumem_free", "-o")
    assert gpu["runs"]["n"][-1][0].__traceback__ is not None
    assert torch.cuda.memory_allocated() == 32 * MiB
    for record in (rehearsed, done):
        assert any("The search ended at its budget" in note for note in record.notes)


def test_an_error_of_nobodys_is_released_though_the_search_ends_early(gpu):
    """Nothing of the session's own keeps it, and so it goes; and outputs are found before the list is searched."""
    gpu("tokens = [[1, 2] for _ in range(100_000)]")
    gpu("take(8)")
    gpu("fail()")
    done = {step.step: step.allocated for step in gpu.shell.run_line_magic("gpumem_free", "-o").steps}
    assert (done["last error"], done["outputs"]) == (32 * MiB, 8 * MiB)
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize("memory", ["fail()", "raise ValueError"])
def test_an_error_that_a_module_keeps_is_not_the_sessions(gpu, monkeypatch, memory):
    """A library that collects errors finds them as it left them, whether they hold device memory or not."""
    library = types.ModuleType("mylib")
    monkeypatch.setitem(sys.modules, "mylib", library)
    gpu(f"import mylib\ntry:\n    {memory}\nexcept ValueError as error:\n    mylib.errors = [error]\nraise")
    gpu("%gpumem_free -q")
    (error,) = library.errors
    assert type(error) is ValueError
    assert error.__traceback__ is not None
