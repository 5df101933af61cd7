"""A virtual GPU in a real kernel, as a user of a laptop sees it."""

from __future__ import annotations

import pytest
from client import Kernel, prepared

MiB = 2**20
GiB = 2**30

SETUP = """
%load_ext jupyter_gpumem
import torch, torch._dynamo, types
MiB = 2**20
def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
def everything():
    cuda = torch.cuda
    owners = (torch, torch._C, torch._C._CudaEventBase, torch._C._CudaStreamBase, torch._tensor_str, torch.accelerator,
              torch.amp, torch.autograd, torch.autograd.graph, torch.backends.cuda, torch.backends.cudnn,
              torch.nn.functional, torch.nn.Module, torch.optim.Adam, torch.optim.Optimizer, torch.optim.SGD,
              torch.Tensor, torch.UntypedStorage, torch.version, cuda, cuda.CUDAGraph, cuda.Event, cuda.MemPool,
              cuda.Stream, cuda.graphs, cuda.memory, cuda.nvtx, cuda.streams)
    return [(owner, dict(vars(owner))) for owner in owners]
before = everything()
names = {*globals(), "names"}
"""

CLEAR = """
for name in {*globals()} - names:
    if not name.startswith("_"):
        del globals()[name]
%gpumem_free
%gpumem_virtual off
"""

TRAIN = """
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    loss = net(torch.randn(32, 256, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

DIFFERENT = """[
    (getattr(owner, "__name__", owner), key)
    for owner, was in before
    for now in [dict(vars(owner))]
    for key in now.keys() | was.keys()
    if now.get(key) is not was.get(key) and not (key not in was and type(now[key]) is types.ModuleType)
]"""


@pytest.fixture(scope="module")
def shared():
    """A kernel for this module."""
    with prepared(SETUP) as one:
        yield one


@pytest.fixture
def kernel(shared):
    """The kernel with a virtual T4, which is off again afterwards, with everything as it was."""
    reply = shared.run("%gpumem_virtual on --gpu T4")
    assert reply.status == "ok", reply.shown
    yield shared
    shared.run(CLEAR, store_history=False)  # a check stays in storages as long as tensors are left
    assert shared.value("torch.cuda.is_available(), torch.cuda.device_count()") == "(False, 0)"
    assert shared.value(DIFFERENT) == "[]"


def test_status(kernel):
    """`%gpumem` shows the card in layers that add up, and that it is virtual."""
    kernel.run("x = take(3 * MiB)")
    [text] = kernel.run("%gpumem").reports
    lines = text.splitlines()
    assert lines[0] == "cuda:0 · virtual T4 · 14.74 GiB"
    assert "  A virtual GPU: nothing is computed on it; its memory is modelled." in lines
    assert [line.split("  ")[1] for line in lines[1:7]] == [
        "allocated by tensors",
        "reserved, returnable",
        "reserved, stranded",
        "this process outside PyTorch",
        "other processes",
        "free",
    ]


def test_a_cell_is_measured_to_the_byte(kernel):
    """The peak and what stays are exact, and the user's own maximum is what it would be without us."""
    kernel.run("y = take(50 * MiB); y = None; x = take(1000)")
    maximum = kernel.value("torch.cuda.max_memory_allocated()")
    reply = kernel.run("%%gpumem -v cost\ny = take(10 * MiB + 1); z = take(7 * MiB); del y\n'last'")
    assert reply.result == "'last'"
    assert reply.reports[0].startswith("cuda:0 · virtual T4 · ")
    peak = 17 * MiB + 512
    assert kernel.value("[(u.peak_over_start, u.delta_allocated, u.doubt) for u in cost.devices]") == (
        f"[({peak}, {7 * MiB}, None)]"
    )
    assert kernel.value("torch.cuda.max_memory_allocated()") == maximum == str(50 * MiB)
    kernel.run("del z; torch.cuda.reset_peak_memory_stats()")
    assert kernel.value("torch.cuda.max_memory_allocated()") == "1024"


def test_training(kernel):
    """A training cell runs, and what stays is explained."""
    reply = kernel.run("%%gpumem\n" + TRAIN)
    assert reply.status == "ok", reply.shown
    assert "of what stays is cuBLAS workspace" in reply.reports[0]
    assert kernel.value("next(net.parameters()).device, loss.shape") == "(device(type='cuda', index=0), torch.Size([]))"


def test_out_of_memory(kernel):
    """Beyond the card's memory PyTorch's own error is raised; it can be caught, and the cell's report appears."""
    reply = kernel.run("%%gpumem\nx = take(20 * 2**30)")
    assert (reply.status, reply.error) == ("error", "OutOfMemoryError")
    assert reply.message.startswith(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 14.74 GiB of which "
    )
    assert "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation." in reply.message
    assert "Ran out of memory once." in reply.reports[0]
    assert "gpumem" not in reply.traceback.replace("jupyter_gpumem/virtual", "")
    reply = kernel.run(
        "size = 64 * 2**30\n"
        "while True:\n"
        "    try:\n        x = take(size); break\n"
        "    except torch.cuda.OutOfMemoryError:\n        size //= 2\n"
        "size"
    )
    assert reply.result == str(8 * GiB)


def test_validation_without_no_grad(kernel):
    """Cases O3 and O4: graphs that are kept hold activations, which no_grad does not make."""
    kernel.run("net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda().eval()")
    kernel.run("%gpumem -q net(take(512 * 4).view(torch.float32).view(1, 512))")  # the workspaces
    kernel.run(
        "%%gpumem -q -v kept\nx = 0\nfor _ in range(4):\n    x = x + net(torch.randn(64, 512, device='cuda')).sum()"
    )
    kernel.run("x = None")
    kernel.run(
        "%%gpumem -q -v freed\nx = 0\nwith torch.no_grad():\n    for _ in range(4):\n"
        "        x = x + net(torch.randn(64, 512, device='cuda')).sum()"
    )
    batch = 64 * 512 * 4
    kept, freed = (int(kernel.value(f"{name}.devices[0].delta_allocated")) for name in ("kept", "freed"))
    assert 4 * 8 * batch <= kept < 4 * 9 * batch
    assert freed <= 1024


def test_recording(kernel):
    """Allocations are recorded where the cell made them, and replayed exactly."""
    kernel.run("%gpumem_record start")
    kernel.run("for size in (5, 30, 60):\n    x = take(size * MiB)")
    assert "not recording" in kernel.run("%gpumem_record stop").reports[0]
    reply = kernel.run("r = %gpumem_whatif --set expandable_segments:True -j 1 -o")
    assert reply.status == "ok", reply.shown
    assert kernel.value("r.check.exact") == "True"
    shown = kernel.run("%gpumem_whatif --set expandable_segments:True -j 1")
    assert "virtual T4" in (shown.reports + [one["text/plain"] for one in shown.updates])[-1]


def test_placeholders_are_noted(kernel):
    """A value that does not exist is said once, at the user's line, and again by the status."""
    reply = kernel.run("x = torch.ones(3, device='cuda')\nfor _ in range(3):\n    x.sum().item()")
    assert reply.stderr.count("has no value on a virtual GPU; it was given 0.0") == 1
    assert ":3: a tensor has no value on a virtual GPU; it was given 0.0" in kernel.run("%gpumem_virtual").reports[0]


def test_interrupted_and_failing_cells(kernel):
    """An error in the middle of a backward pass leaves a session that works."""
    kernel.run(TRAIN)
    reply = kernel.run(
        "class Fails(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x.clone()\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        raise KeyboardInterrupt\n"
        "Fails.apply(net(torch.randn(2, 256, device='cuda'))).sum().backward()"
    )
    assert reply.status == "error"
    assert kernel.run(TRAIN).status == "ok"
    assert kernel.run("%%gpumem\nx = take(MiB)").status == "ok"


def test_the_kernel_ends_well():
    """Shutting down with a virtual GPU on, after a training step, is no crash."""
    with Kernel() as one:
        one.run(SETUP + "\n%gpumem_virtual on --gpu A100-80GB\n" + TRAIN)
        one.client.shutdown()
        assert one.manager.provisioner.process.wait(timeout=60) == 0
