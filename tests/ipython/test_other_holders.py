"""`%gpumem_who NAME`: who else holds what a name holds - modules, tasks, garbage, and code that shows nothing of it."""

from __future__ import annotations

import atexit
import gc
import sys
import types

import pytest

from jupyter_gpumem.units import MiB
from jupyter_gpumem.virtual import session

torch = pytest.importorskip("torch")

PREPARE = """
import atexit, asyncio, functools, gc, types
import numpy as np, torch
import mylib
def take(mib): return torch.empty(mib * 2**20, dtype=torch.uint8, device='cuda')
"""
MODULE = """
import functools
CACHE = {}
class Registry: pass
given = []
@functools.lru_cache
def load(n): return given.pop()
"""


@pytest.fixture
def gpu(bare, monkeypatch):
    """Cells with the extension, a virtual GPU of 8 GiB, and a module `mylib` that has been imported."""
    library = types.ModuleType("mylib")
    exec(MODULE, vars(library))
    monkeypatch.setitem(sys.modules, "mylib", library)
    gc.collect()
    assert bare("%load_ext jupyter_gpumem\n%gpumem_virtual on --gpu 8GiB").error is None
    assert bare(PREPARE).error is None
    yield bare
    bare.shell.reset(new_session=False)
    vars(library).clear()
    gc.collect()
    session.stop()


def asked(gpu, name):
    """Return the record of `%gpumem_who NAME`."""
    return gpu.shell.run_line_magic("gpumem_who", f"{name} -o")


@pytest.mark.parametrize(
    ("keep", "way"),
    [
        ("mylib.CACHE['a'] = x", "mylib.CACHE['a']"),
        ("mylib.kept = x", "mylib.kept"),
        ("mylib.given.append(x); mylib.load(1);", "mylib.load (a cached result)"),
        ("mylib.Registry.last = x", "mylib.Registry.last"),
        ("mylib.array = np.empty(2, dtype=object); mylib.array[1] = x", "mylib.array[1]"),
        ("mylib.view = x[5:]", "mylib.view"),
        ("mylib.storage = x.untyped_storage()", "mylib.storage"),
        (
            "mylib.loss = (torch.ones(1, device='cuda', requires_grad=True) * x).sum()",
            "the autograd graph of mylib.loss",
        ),
        ("atexit.register(len, x);", "a tuple of 1 that other code holds[0]"),
    ],
)
def test_what_code_outside_the_notebook_keeps_is_no_names_alone(gpu, keep, way):
    """Who keeps it is named with the way to it, and deleting the name is said to return nothing."""
    gpu("x = take(16)")
    assert gpu(keep).error is None
    record = asked(gpu, "x")
    atexit.unregister(len)
    assert record.alone == 0
    (said,) = record.chains
    assert said.startswith(f"16.00 MiB of it are also held by {way}")


def test_what_only_the_notebook_keeps_is_its_own(gpu):
    """Lists, closures, models, optimizers, graphs, views and outputs are found by name, and nobody else is."""
    gpu("model = torch.nn.Linear(1024, 1024, bias=False, device='cuda'); opt = torch.optim.Adam(model.parameters())")
    gpu("loss = model(torch.ones(2, 1024, device='cuda')).relu().sum(); loss.backward(retain_graph=True); opt.step()")
    gpu("x = take(8); nested = {'a': [(take(4), x)]}; part = x[5:]; function = functools.partial(len, take(2))")
    gpu("array = np.empty(2, dtype=object); array[1] = take(1)\nclass Own:\n    kept = take(1)\n")
    gpu("def stream(y=take(1)):\n    z = take(1)\n    yield y\nsource = stream(); next(source);")
    books = gpu.shell.run_line_magic("gpumem_who", "-o").devices[0]
    names = {"model", "opt", "loss", "x", "nested", "part", "function", "array", "Own", "source", "stream"}
    assert {h.kind for h in books.holders} <= {"variable", "graph"}
    assert names.issuperset(name for h in books.holders for name in (h.name, *h.also))
    assert books.unattributed == 0


def test_a_task_that_waits_is_named(gpu):
    """What a coroutine holds between its steps is the task's; the event loop behind it is not named."""
    gpu("async def work(tensor):\n    await asyncio.sleep(100)")
    gpu("loop = asyncio.new_event_loop(); x = take(8)")
    gpu("loop.create_task(work(x), name='loader')\nloop.call_soon(loop.stop); loop.run_forever()")
    gpu("mylib.loop = loop; del loop; Out.clear()")
    record = asked(gpu, "x")
    mylib = sys.modules["mylib"]
    for task in sys.modules["asyncio"].all_tasks(mylib.loop):
        task.cancel()
    mylib.loop.call_soon(mylib.loop.stop)
    mylib.loop.run_forever()
    mylib.loop.close()
    assert record.alone == 0
    (said,) = record.chains
    assert said == "8.00 MiB of it are also held by the waiting task loader (local tensor of work, line 2)"


def test_an_event_loop_leads_from_no_task_to_the_others(gpu):
    """Every task leads to its loop, and that one to all of them: a task holds its own, and the loop holds each."""
    gpu("async def work(mib):\n    tensor = take(mib)\n    await asyncio.sleep(100)")
    gpu("loop = asyncio.new_event_loop(); one, two, none = map(loop.create_task, (work(8), work(16), work(0)))")
    gpu("loop.call_soon(loop.stop); loop.run_forever(); mylib.loop = loop; other = asyncio.Event(); other.loop = loop")
    books = gpu.shell.run_line_magic("gpumem_who", "-o").devices[0]
    record = asked(gpu, "one")
    refused = gpu("%gpumem_who none").error
    gpu("for task in (one, two, none): task.cancel()\nloop.call_soon(loop.stop); loop.run_forever(); loop.close()")
    assert {h.name: (h.allocated // MiB, h.also) for h in books.holders} == {
        "one": (8, ("the event loop",)),
        "two": (16, ("the event loop",)),
    }
    assert record.alone == 0
    (said,) = record.chains
    assert said.startswith("8.00 MiB of it are also held by the event loop._scheduled[")
    assert said.endswith("(local tensor of work, line 3)")
    assert "holds no device memory" in str(refused)


def test_what_an_event_loop_is_to_call_later_is_the_loops(gpu):
    """A callback that waits has no name of its own; the loop that will run it has none of it elsewhere."""
    gpu("loop = asyncio.new_event_loop(); x = take(8); loop.call_later(100, len, x); mylib.loop = loop")
    record = asked(gpu, "x")
    gpu("loop.close()")
    assert record.alone == 0
    assert record.chains == ("8.00 MiB of it are also held by the event loop._scheduled[0]._args[0]",)


def test_what_garbage_holds_besides_is_free_only_when_it_is_collected(gpu):
    """An object that waits for the collector keeps what a name holds, too."""
    gc.disable()
    try:
        gpu("x, loop = take(8), types.SimpleNamespace(); loop.itself, loop.data = loop, x; del loop")
        record = asked(gpu, "x")
    finally:
        gc.enable()
    assert record.alone == 0
    assert record.chains == ("8.00 MiB of it are also held by garbage: SimpleNamespace.data",)


def test_a_total_is_not_given_with_the_way_to_a_part_of_it(gpu):
    """Of several storages the largest is named, with its own bytes, and how many others there are."""
    gpu("model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 512, bias=False)).cuda()")
    gpu("opt = torch.optim.SGD(model.parameters())")
    (said,) = asked(gpu, "opt").chains
    assert said == "6.00 MiB of it are also held by model: model.0.weight (4.00 MiB) and 2 others"


def test_the_books_name_what_a_module_keeps_as_code_does(gpu):
    """What only a module holds has its way from the module on."""
    gpu("mylib.CACHE['a'] = take(16)")
    (line,) = gpu.shell.run_line_magic("gpumem_who", "-o").devices[0].holders
    assert (line.name, line.detail, line.allocated) == ("module mylib", "mylib.CACHE['a']", 16 * MiB)
