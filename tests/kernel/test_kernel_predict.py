"""Predictions in a real kernel, as a user of a laptop sees them."""

from __future__ import annotations

import pytest
from client import Kernel, prepared

SETUP = """
%load_ext jupyter_gpumem
import torch
def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 10))
"""

TRAIN = """
net.cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    loss = net(torch.randn(batch, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
loss
"""

SUM = "sum(float(value.double().sum()) for value in net.state_dict().values())"


@pytest.fixture(scope="module")
def shared():
    """A kernel for this module."""
    with prepared(SETUP) as one:
        yield one


@pytest.fixture
def kernel(shared):
    """The kernel, in which no prediction has left a virtual GPU."""
    yield shared
    assert shared.value("torch.cuda.is_available(), torch.cuda.device_count()") == "(False, 0)"


def test_a_training_cell(kernel):
    """The report comes, no output of the cell; the model trains for real afterwards as if nothing had been."""
    kernel.run("torch.manual_seed(1)")
    before = kernel.value(SUM), kernel.value("torch.rand(1).item()")
    kernel.run("torch.manual_seed(1)")
    reply = kernel.run("%%gpumem_predict --gpu T4 --gpu 1GiB -v need\nbatch = 64" + TRAIN)
    assert reply.status == "ok", reply.shown
    assert (reply.stdout, reply.stderr, reply.result) == ("", "", None)
    [text] = reply.reports
    assert text.startswith("cuda:0 · prediction as on a virtual T4 · ")
    assert "Fits on 2 of 2 cards" in text
    assert (kernel.value(SUM), kernel.value("torch.rand(1).item()")) == before
    assert kernel.value("next(net.parameters()).device.type, 'loss' in globals(), 'batch' in globals()") == (
        "('cpu', False, False)"
    )
    assert kernel.value("sum(size for _, size in need.devices[0].parts) == need.devices[0].peak_allocated") == "True"
    reply = kernel.run("net(torch.randn(4, 256)).sum().backward(); torch.optim.SGD(net.parameters(), 0.1).step()")
    assert reply.status == "ok", reply.shown


def test_the_cells_own_number_and_history(kernel):
    """`Out` and `_` are those of the cells that really ran."""
    kernel.run("41")
    kernel.run("%%gpumem_predict -q\ntake(5)")
    assert kernel.run("_").result == "41"


def test_an_error(kernel):
    """Its status is error, its traceback shows the user's line once, and what was printed before it is shown."""
    reply = kernel.run("%%gpumem_predict\nprint('before')\nx = take(3)\nx.nothing()")
    assert (reply.status, reply.error, reply.stdout) == ("error", "AttributeError", "before\n")
    assert reply.traceback.count("----> 4 x.nothing()") == 1
    assert "gpumem" not in reply.traceback.replace("gpumem_predict", "")
    assert kernel.value("'x' in globals()") == "False"


def test_out_of_memory_is_a_result(kernel):
    """What does not fit is said, and nothing stops."""
    reply = kernel.run("%%gpumem_predict --gpu T4\na = take(10 * 2**30)\nb = take(10 * 2**30)")
    assert reply.status == "ok", reply.shown
    assert "Does not fit" in reply.reports[0]
    assert "no, line 3" in reply.reports[0]
    assert "The smallest card known that it fits on is the L4." in reply.reports[0]


def test_validation_without_no_grad(kernel):
    """Cases O3 and O4: what is kept for a backward pass that never comes is seen before it happens."""
    kernel.run("deep = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).eval()")
    body = "deep.cuda()\nfor _ in range(2):\n    out = deep(torch.ones(64, 512, device='cuda'))\n"
    kernel.run("%%gpumem_predict -q --gpu T4 -v kept\n" + body)
    kernel.run("%%gpumem_predict -q --gpu T4 -v freed\ntorch.set_grad_enabled(False)\n" + body)
    kept, freed = (int(kernel.value(f"dict({name}.devices[0].parts)['activations']")) for name in ("kept", "freed"))
    assert kept >= 8 * 64 * 512 * 4
    assert freed <= 3 * 64 * 512 * 4
    assert kernel.value("torch.is_grad_enabled()") == "True"


def test_an_interrupt(kernel):
    """Ctrl-C in the middle of a step leaves a session that works."""
    request = kernel.send(
        "%%gpumem_predict\nimport os, signal, time\nnet.cuda()\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
    )
    reply = kernel.wait(request)
    assert (reply.status, reply.error) == ("error", "KeyboardInterrupt")
    assert kernel.value("next(net.parameters()).device.type") == "'cpu'"
    assert kernel.run("%%gpumem_predict -q\ntake(3)").status == "ok"


def test_files(kernel, tmp_path):
    """A cell that keeps checkpoints, with functions that an earlier cell has imported, changes nothing on the disk."""
    reply = kernel.run(
        f"%cd -q {tmp_path}\nfrom os import makedirs, remove, rename\nfrom shutil import rmtree\n"
        "makedirs('old')\nopen('old/1.txt', 'w').write('1')\ntorch.save(net.state_dict(), 'best.pt')"
    )
    assert reply.status == "ok", reply.shown
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    reply = kernel.run(
        "%%gpumem_predict --gpu T4\nnet.cuda()\nmakedirs('new/a')\nrmtree('old')\n"
        "with open('new/log.txt', 'w') as file:\n    file.write('x')\n"
        "torch.save(net.state_dict(), 'new/tmp.pt')\nrename('new/tmp.pt', 'best.pt')\n"
        "net.load_state_dict(torch.load('best.pt'))\nremove('best.pt')\nassert open('new/log.txt').read() == 'x'"
    )
    assert reply.status == "ok", reply.shown
    assert "Not written: best.pt." in reply.reports[0]
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
    assert kernel.value("remove is __import__('os').remove, open('old/1.txt').read()") == "(True, '1')"


def test_the_kernel_survives_and_ends_well():
    """Case O22: predictions that fail in every phase, then a shutdown, without a crash."""
    with Kernel() as one:
        one.run(SETUP)
        for line in ("net(5)", "net(torch.ones(3, 3, device='cuda'))", "net(x).sum().backward(); 1 / 0"):
            reply = one.run(f"%%gpumem_predict\nnet.cuda(); x = torch.ones(4, 256, device='cuda')\n{line}")
            assert reply.status == "error"
        assert one.run("%%gpumem_predict --gpu 2xT4\nbatch = 8" + TRAIN).status == "ok"
        one.client.shutdown()
        assert one.manager.provisioner.process.wait(timeout=60) == 0


def test_under_a_cap_of_the_sessions_virtual_gpu(fresh_kernel):
    """Memory has no end in a prediction, whatever the session may reserve; afterwards the cap is there again."""
    reply = fresh_kernel.run(f"{SETUP}\n%gpumem_virtual on --gpu T4\nkept = take(2**20)")
    assert reply.status == "ok", reply.shown
    reply = fresh_kernel.run("%gpumem_limit 64MiB -q\n%gpumem_predict -q -v need more = take(2**30)")
    assert reply.status == "ok", reply.shown
    assert fresh_kernel.value("need.devices[0].peak_allocated") == str(2**20 + 2**30)
    assert fresh_kernel.value("torch.cuda.memory_allocated(), 'more' in globals()") == f"({2**20}, False)"
    assert fresh_kernel.run("take(2**30)").error == "OutOfMemoryError"


@pytest.mark.parametrize(
    "line",
    [
        "%gpumem_virtual off",
        "%gpumem_virtual on --gpu L4",
        "%unload_ext jupyter_gpumem",
        "%reload_ext jupyter_gpumem",
    ],
)
@pytest.mark.parametrize("on", [False, True])
def test_the_virtual_gpu_cannot_be_taken_from_under_a_prediction(kernel, line, on):
    """That is refused in one line, without a traceback, and what comes later works as before."""
    if on:
        assert kernel.run("%gpumem_virtual on --gpu T4").status == "ok"
    reply = kernel.run(f"%%gpumem_predict --gpu T4\n{line}")
    assert reply.status == "error", reply.shown
    [refusal] = reply.stderr.strip().splitlines()
    assert refusal.startswith("UsageError: ")
    assert (
        "a prediction is running on the virtual GPU; leave that out of the cell, or do it when it has ended" in refusal
    )
    assert (reply.traceback, reply.reports) == ("", [])
    reply = kernel.run("%%gpumem_predict --gpu T4\ny = take(1024)")
    assert reply.status == "ok", reply.shown
    assert kernel.run("%gpumem_virtual off").status == "ok"
