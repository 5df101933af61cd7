"""Who holds memory and letting go of it, through a real kernel with a virtual GPU."""

from __future__ import annotations

import sys

import pytest
from client import Kernel, prepared, value

from tests.holding_scenarios import PREPARE, SCENARIOS, MiB, play

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def virtual():
    """A kernel with a virtual GPU of 24 GiB, for all tests of the module."""
    with prepared("%load_ext jupyter_gpumem\n%gpumem_virtual on --gpu 24GiB", PREPARE) as kernel:
        yield kernel


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_scenario(virtual, scenario):
    """The holder is named right, the books close, and what the notebook held comes back."""
    found = play(virtual, scenario)
    assert found.named, found.holder
    assert found.closes, found
    assert found.returned, found


KEEP_THE_TASK = {
    "a name": "import asyncio\nkept = asyncio.current_task()\nawait failing()",
    "a task group": "import asyncio\nasync with asyncio.TaskGroup() as kept:\n    kept.create_task(failing())",
}


@pytest.mark.parametrize("way", KEEP_THE_TASK)
def test_what_keeps_the_task_of_a_failed_cell_does_not_keep_its_error(virtual, way):
    """A `TaskGroup` of Python 3.11 and 3.12 is bound to the task that the cell ran in, and that one to its result."""
    if way == "a task group" and sys.version_info < (3, 11):
        pytest.skip("needs Python 3.11")
    virtual.run("async def failing():\n    batch = take(32)\n    raise ValueError('in the task')")
    before = value(virtual, "torch.cuda.memory_allocated()")
    assert virtual.run(KEEP_THE_TASK[way]).status == "error"
    assert value(virtual, "torch.cuda.memory_allocated()") == before + 32 * MiB
    line = value(virtual, "gm.holders().to_dict()['devices'][0]['holders'][0]")
    assert line["name"].startswith("the last error (ValueError), function failing, line 3: batch")
    assert value(virtual, "gm.free(dry_run=True).to_dict()['steps'][0]['allocated']") == 32 * MiB
    virtual.run("%gpumem_free -q")
    assert value(virtual, "torch.cuda.memory_allocated()") == before
    assert value(virtual, "type(kept).__name__") in {"Task", "TaskGroup"}
    virtual.run("del kept")


def test_the_task_of_an_older_cell_still_keeps_its_error(virtual):
    """Only the last error is the notebook's own; who holds another one is named."""
    virtual.run("async def failing():\n    batch = take(32)\n    raise ValueError('in the task')")
    virtual.run(KEEP_THE_TASK["a name"])
    assert virtual.run("raise KeyError").status == "error"
    names = "{h.name for h in gm.holders().devices[0].holders if h.allocated == 32 * MiB}"
    assert virtual.value(names) == "{'kept'}"
    virtual.run("del kept\n%gpumem_free -q")


DEBUGGED = {
    "at once": ("%debug", ["q"]),
    "in another frame": ("%debug", ["up", "q"]),
    "with values to display": ("%debug", ["display batch", "up", "display other", "q"]),
    "after an error in it": ("%debug", ["1 / 0", "q"]),
    "by an error": ("%debug", []),
    "by an error in Python's own": ("import pdb; pdb.pm()", []),
    "by an error where every error opens it": ("%pdb on\nfails()", []),
}


@pytest.mark.parametrize("end", DEBUGGED)
def test_an_ended_debugger_keeps_nothing(virtual, end):
    """However it ended, and in whatever frame; who holds the memory is named, and the rehearsal is right.

    Where nobody can type, asking for a command is an error. Two modules have frames in it.
    """
    reply = virtual.run(
        "import sys, types; mine = types.ModuleType('mine'); sys.modules['mine'] = mine; mine.take = take\n"
        "exec('def inner():\\n    batch = take(32)\\n    raise ValueError', vars(mine))\n"
        "def fails():\n    other = take(64)\n    mine.inner()"
    )
    assert reply.status == "ok", reply.shown
    before = value(virtual, "torch.cuda.memory_allocated()")
    cell, answers = DEBUGGED[end]
    assert virtual.run("fails()").message == ""
    virtual.run(cell, answers=answers)
    held = value(virtual, "torch.cuda.memory_allocated()") - before
    assert held >= 96 * MiB
    names = value(virtual, "[h.name for h in gm.holders().devices[0].holders if h.allocated in (32 * MiB, 64 * MiB)]")
    assert all(name.startswith(("the last error", "an earlier error", "garbage")) for name in names), names
    foreseen = value(virtual, "sum(step.allocated for step in gm.free(dry_run=True).steps)")
    virtual.run("%gpumem_free -q\n%pdb off")
    assert value(virtual, "torch.cuda.memory_allocated()") == before
    assert foreseen == held
    assert virtual.run("fails()").status == "error"
    assert "mine" in virtual.run("%debug", answers=["p __name__", "q"]).stdout
    virtual.run("%gpumem_free -q\ndel sys.modules['mine'], mine, fails", store_history=False)


def test_a_huge_list_hides_no_other_variable():
    """Names before and after it, and what is nested in them, are found before the budget goes to its elements."""
    with Kernel() as kernel:
        kernel.run("%load_ext jupyter_gpumem\n%gpumem_virtual on --gpu 8GiB\nimport torch, numpy as np")
        kernel.run("def take(mib): return torch.empty(mib * 2**20, dtype=torch.uint8, device='cuda')")
        kernel.run("first = {'a': [take(1)]}")
        kernel.run("array = np.empty(100_000, dtype=object); array[:] = [[] for _ in range(100_000)]")
        kernel.run("tokens = [[1, 2] for _ in range(100_000)]; more = {n: [n] for n in range(100_000)}")
        kernel.run(
            "model = torch.nn.Sequential(torch.nn.Linear(1024, 1024, bias=False, device='cuda')); x = take(8)\n"
            "books = %gpumem_who -o --budget 20000"
        )
        assert kernel.value("books.complete") == "False"
        found = kernel.value("{h.name: h.allocated // 2**20 for h in books.devices[0].holders}")
        assert found == "{'x': 8, 'model': 4, 'first': 1}"
        assert kernel.value("'The search ended after' in str(books)") == "True"


@pytest.mark.parametrize("name", ["_", "__", "___"])
def test_what_was_displayed_cells_ago(virtual, name):
    """It is its `Out`, not one of IPython's other names for it; without its `Out` it is called by one of those."""
    virtual.run("take(32)")
    number = virtual.value("max(Out)")
    for _ in name[1:]:
        virtual.run("'displayed meanwhile'")
    holders = "{h.name: h.allocated for h in gm.holders().devices[0].holders if h.allocated >= 32 * MiB}"
    assert virtual.value(holders) == f"{{'Out[{number}]': {32 * MiB}}}"
    assert virtual.value(f"{name} is Out[{number}]") == "True"
    virtual.run(f"del Out[{number}]", store_history=False)
    assert virtual.value(holders) == f"{{'{name}': {32 * MiB}}}"
    before = int(virtual.value("torch.cuda.memory_allocated()"))
    virtual.run("%gpumem_free -q --outputs", store_history=False)
    assert int(virtual.value("torch.cuda.memory_allocated()")) == before - 32 * MiB
    virtual.run("4 + 4")
    assert virtual.value("_") == "8"  # IPython goes on with its names


@pytest.mark.parametrize("name", ["_", "__", "___"])
def test_a_name_of_ipythons_that_the_user_took(virtual, name):
    """It is a variable like any other, and stays."""
    virtual.run(f"{name} = take(32)\n'displayed'")
    holders = "{(h.kind, h.name) for h in gm.holders().devices[0].holders if h.allocated >= 32 * MiB}"
    assert virtual.value(holders) == f"{{('variable', '{name}')}}"
    virtual.run("%gpumem_free -q", store_history=False)
    assert virtual.value(f"{name}.nbytes // MiB") == "32"
    virtual.run(f"del {name}", store_history=False)
    assert virtual.value(holders) == "set()"


def test_an_output_that_the_user_named_as_ipython_does(virtual):
    """A name that the user gave it holds it, whatever name that is: nothing of it is promised, nor taken away."""
    virtual.run("take(32)")
    number = virtual.value("max(Out)")
    virtual.run(f"___ = Out[{number}]", store_history=False)
    holders = "{(h.kind, h.name, h.also) for h in gm.holders().devices[0].holders if h.allocated >= 32 * MiB}"
    assert virtual.value(holders) == f"{{('variable', '___', ('Out[{number}]',))}}"
    assert virtual.value("gm.free(dry_run=True).steps[0].allocated") == "0"
    virtual.run("%gpumem_free -q --outputs", store_history=False)
    assert virtual.value("___.nbytes // MiB") == "32"
    virtual.run("del ___", store_history=False)
    assert virtual.value("[h.name for h in gm.holders().devices[0].holders if h.allocated >= 32 * MiB]") == "[]"
