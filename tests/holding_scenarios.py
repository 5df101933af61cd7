"""Twenty ways in which notebooks keep GPU memory: cells to run, who must be named, and whether the notebook holds it.

Used by the tests with a virtual GPU, by those on a real one, and by `benchmarks/holders_gpu.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.kernel.client import value

MiB = 2**20

PREPARE = """
%load_ext jupyter_gpumem
import functools, gc, json, signal, threading, weakref
import numpy as np
import torch
import jupyter_gpumem as gm
MiB = 2**20
def take(mib): return torch.empty(mib * MiB, dtype=torch.uint8, device="cuda")
def floats(mib, **options): return torch.ones(mib * MiB // 4, device="cuda", **options)
warm = take(1) ; (floats(1) * 2).sum() ; gc.collect()
"""


@dataclass(frozen=True)
class Scenario:
    """One way of keeping memory.

    Attributes:
        name: what it is.
        cells: what is run; the last one may fail.
        held: MiB that must be named.
        kind, holder: the kind of the holder, and what its name and detail must contain.
        notebook: whether the notebook holds it, so that `%gpumem_free` must return it.
        names: variables to delete afterwards.
    """

    name: str
    cells: tuple[str, ...]
    held: int
    kind: str
    holder: tuple[str, ...]
    notebook: bool = False
    names: tuple[str, ...] = ()


SCENARIOS = (
    Scenario(
        "error deep in a model",
        (
            """
class Block(torch.nn.Module):
    def forward(self, x):
        activation = take(32)
        raise ValueError("deep")
net = torch.nn.Sequential(torch.nn.Identity(), Block())
""",
            "net(torch.zeros(1))",
        ),
        32,
        "error",
        ("ValueError", "forward", "line 4", "activation"),
        notebook=True,
        names=("net",),
    ),
    Scenario(
        "interrupt",
        ("def train():\n    batch = take(32)\n    signal.raise_signal(signal.SIGINT)\n    return batch", "train()"),
        32,
        "error",
        ("KeyboardInterrupt", "train", "batch"),
        notebook=True,
    ),
    Scenario(
        "chained errors",
        (
            """
def load():
    chunk = take(32)
    raise ValueError("inner")
def outer():
    try:
        load()
    except ValueError as error:
        raise RuntimeError("outer") from error
""",
            "outer()",
        ),
        32,
        "error",
        ("ValueError", "load", "chunk"),
        notebook=True,
    ),
    Scenario(
        "exception group",
        (
            """
def part():
    piece = take(32)
    raise ValueError("one of them")
def all_parts():
    errors = []
    try:
        part()
    except ValueError as error:
        errors.append(error)
    raise ExceptionGroup("parts", errors)
""",
            "all_parts()",
        ),
        32,
        "error",
        ("part", "piece"),
        notebook=True,
    ),
    Scenario("displayed tensor", ("shown = take(32)\nshown", "del shown"), 32, "output", ("Out[",), notebook=True),
    Scenario(
        "loop variables of the notebook",
        ("for step in range(3):\n    image = take(32)",),
        32,
        "variable",
        ("image",),
        names=("image", "step"),
    ),
    Scenario(
        "optimizer",
        (
            """
linear = torch.nn.Linear(2048, 2048, bias=False, device="cuda")
opt = torch.optim.Adam(linear.parameters())
linear(torch.ones(1, 2048, device="cuda")).sum().backward()
opt.step()
opt.zero_grad()
""",
        ),
        32,
        "variable",
        ("opt", "opt.state", "exp_avg"),
        names=("opt", "linear"),
    ),
    Scenario(
        "hook that closes over its module",
        (
            """
gc.disable()
class Tap(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4096, 2048, bias=False, device="cuda")
        self.register_forward_hook(lambda *_: self.fc)
Tap()
None
""",
        ),
        32,
        "cycle",
        ("Tap", "fc.weight"),
        notebook=True,
    ),
    Scenario(
        "running sum of losses",
        (
            """
weight = torch.ones(1, device="cuda", requires_grad=True)
total = 0
for _step in range(2):
    sample = floats(16)
    total = total + (sample * weight).sum()
del sample
""",
        ),
        32,
        "graph",
        ("total", "autograd graph", "MulBackward"),
        names=("total", "weight"),
    ),
    Scenario(
        "DataLoader iterator",
        (
            """
from torch.utils.data import DataLoader, TensorDataset
batches = iter(DataLoader(TensorDataset(floats(32)), batch_size=4))
""",
        ),
        32,
        "variable",
        ("batches", "_dataset", "tensors"),
        names=("batches",),
    ),
    Scenario(
        "model built twice",
        (
            """
model = torch.nn.Linear(4096, 2048, bias=False, device="cuda")
adam = torch.optim.SGD(model.parameters())
model = torch.nn.Linear(16, 16, device="cuda")
""",
        ),
        32,
        "variable",
        ("adam", "param_groups"),
        names=("model", "adam"),
    ),
    Scenario(
        "graph kept by retain_graph",
        (
            """
scale = torch.ones(1, device="cuda", requires_grad=True)
loss = (floats(32) * scale).sum()
loss.backward(retain_graph=True)
""",
        ),
        32,
        "graph",
        ("loss", "MulBackward"),
        names=("loss", "scale"),
    ),
    Scenario(
        "list of outputs",
        ("outputs = [take(16) for _n in range(2)]",),
        32,
        "variable",
        ("outputs",),
        names=("outputs",),
    ),
    Scenario(
        "closure",
        ("def make():\n    table = take(32)\n    return lambda: table\nlookup = make()",),
        32,
        "variable",
        ("lookup", "closure variable table"),
        names=("lookup",),
    ),
    Scenario(
        "thread-local",
        (
            """
local = threading.local()
go, there = threading.Event(), threading.Event()
def work():
    local.buffer = take(32)
    there.set()
    go.wait()
thread = threading.Thread(target=work)
thread.start()
there.wait()
None
""",
        ),
        32,
        "variable",
        ("local", "buffer"),
        names=("local",),
    ),
    Scenario(
        "generator",
        ("def stream():\n    window = take(32)\n    yield 1\n    yield window\nsource = stream(); next(source);",),
        32,
        "variable",
        ("source", "local window of stream"),
        names=("source",),
    ),
    Scenario(
        "cached property",
        (
            """
class Grid:
    @functools.cached_property
    def points(self): return take(32)
grid = Grid(); grid.points;
""",
        ),
        32,
        "variable",
        ("grid", "grid.points"),
        names=("grid",),
    ),
    Scenario(
        "weak registry",
        (
            """
class Node: pass
registry = weakref.WeakValueDictionary()
node = Node(); node.data = take(32); registry["first"] = node
owners = {"node": node}
del node
""",
        ),
        32,
        "variable",
        ("owners", "owners['node'].data"),
        names=("owners", "registry"),
    ),
    Scenario(
        "functools.lru_cache",
        ("@functools.lru_cache\ndef positions(n): return take(n)\npositions(32);",),
        32,
        "variable",
        ("positions", "cached result"),
        names=("positions",),
    ),
    Scenario(
        "tensor in a NumPy array of objects",
        ("cells = np.empty((2, 3), dtype=object); cells[1, 2] = take(32)",),
        32,
        "variable",
        ("cells", "cells[1, 2]"),
        names=("cells",),
    ),
)


@dataclass
class Found:
    """What a scenario came to, in bytes.

    Attributes:
        before, held, after: allocated before the scenario, with it, and after `%gpumem_free`.
        reserved: reserved after `%gpumem_free`.
        named: whether the holder was named right.
        holder: the line of the holder.
        closes: whether the books added up to the counter.
        returned: whether everything that the notebook held came back (or nothing else went).
    """

    scenario: str
    before: int
    held: int
    after: int
    reserved: int
    named: bool
    holder: dict | None
    closes: bool
    returned: bool


def play(kernel, scenario: Scenario) -> Found:
    """Run a scenario in a prepared kernel, ask who holds it, let go, and clean up."""
    before = value(kernel, "torch.cuda.memory_allocated()")
    for cell in scenario.cells:
        reply = kernel.run(cell)
    assert (reply.status == "error") == (scenario.kind == "error"), reply.shown
    held = value(kernel, "torch.cuda.memory_allocated()")
    assert kernel.run("%gpumem_who -v who", store_history=False).status == "ok"
    books = value(kernel, "who.to_dict()['devices'][0]")
    total = books["named"] + books["workspaces"] + books["private"] + books["unattributed"]
    lines = [h for h in books["holders"] if h["allocated"] >= scenario.held * MiB and h["kind"] == scenario.kind]
    text = [f"{line['name']} {line['detail']}" for line in lines]
    named = any(all(part in line for part in scenario.holder) for line in text)
    assert kernel.run("%gpumem_free -q\ndel who", store_history=False).status == "ok"
    after, reserved = value(kernel, "[torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]")
    expected = held - scenario.held * MiB if scenario.notebook else held
    kernel.run(f"del {', '.join(scenario.names)}" if scenario.names else "None", store_history=False)
    kernel.run("if 'go' in globals(): go.set(); thread.join()\ngc.enable(); gc.collect();", store_history=False)
    return Found(
        scenario=scenario.name,
        before=before,
        held=held,
        after=after,
        reserved=reserved,
        named=named,
        holder=lines[0] if lines else (books["holders"][0] if books["holders"] else None),
        closes=total == books["allocated"] == held,
        returned=after == expected,
    )
