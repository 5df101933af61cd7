"""The virtual GPU on a machine that has a real one: which is left alone."""

from __future__ import annotations

import ast

MiB = 2**20

TRAIN = """
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(64, 4096, device="cuda")).sum().backward()
optimizer.step()
name, peak = torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()
where = str(model.weight.device)
del model, optimizer
"""

DRIVER = """
def at_the_driver():
    import pynvml
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    listed = len(pynvml.nvmlDeviceGetComputeRunningProcesses(card))
    return listed, pynvml.nvmlDeviceGetMemoryInfo(card).used
"""


def test_no_context_is_created_on_the_real_card(fresh, results):
    """Code for CUDA runs on the virtual card, and NVIDIA's driver sees no process of ours."""
    for cell in ("import torch", DRIVER, "%load_ext jupyter_gpumem", "before = at_the_driver()"):
        assert fresh.run(cell).status == "ok"
    assert fresh.run("%gpumem_virtual on --gpu A100-80GB").status == "ok"
    reply = fresh.run(TRAIN)
    assert reply.status == "ok", reply.shown
    name, peak, where = ast.literal_eval(fresh.value("(name, peak, where)"))
    assert "A100" in name
    assert where == "cuda:0"
    assert peak > 3 * 4096 * 4096 * 4
    before, after = ast.literal_eval(fresh.value("(before, at_the_driver())"))
    results["virtual GPU: the real card before and after"] = {"before": before, "after": after}
    # The runtime's own start, without a context, takes 3 MiB at the driver; a context would take hundreds.
    assert after[0] == before[0]
    assert after[1] - before[1] < 16 * MiB
    assert fresh.run("%gpumem_virtual off").status == "ok"
    assert fresh.value("torch.cuda.is_initialized()") == "False"
    assert "H200" in fresh.value("torch.cuda.get_device_name()") or fresh.value("torch.cuda.is_available()") == "True"
    assert fresh.value("torch.ones(3, device='cuda').sum().item()") == "3.0"


def test_beside_real_tensors_it_is_refused(fresh):
    """Two meanings of `cuda` in one session would mix: with real tensors alive the answer is one line."""
    for cell in ("import torch", "%load_ext jupyter_gpumem", "x = torch.ones(1000, device='cuda')"):
        assert fresh.run(cell).status == "ok"
    reply = fresh.run("%gpumem_virtual on --gpu T4")
    assert reply.status == "error"
    assert "UsageError" in reply.stderr
    assert fresh.value("x.sum().item()") == "1000.0"


def test_real_counters_stay_as_they_were(fresh):
    """An initialised real card keeps its counters, and is there again afterwards."""
    for cell in (
        "import torch",
        "%load_ext jupyter_gpumem",
        "x = torch.ones(2**28, device='cuda'); del x",
        "real_peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()",
    ):
        assert fresh.run(cell).status == "ok"
    assert fresh.run("%gpumem_virtual on --gpu T4").status == "ok"
    reply = fresh.run(TRAIN)
    assert reply.status == "ok", reply.shown
    assert "T4" in fresh.value("name")
    assert fresh.run("%gpumem_virtual off").status == "ok"
    assert (
        fresh.value("torch.cuda.max_memory_allocated() == real_peak, torch.cuda.memory_reserved() == held")
        == "(True, True)"
    )
    assert fresh.value("torch.ones(3, device='cuda').sum().item()") == "3.0"


def test_training_goes_on_afterwards(fresh):
    """A backward pass on the real card works once the virtual one is off, also the first of the process."""
    for cell in ("import torch", "%load_ext jupyter_gpumem", "%gpumem_virtual on --gpu T4", TRAIN):
        assert fresh.run(cell).status == "ok"
    assert fresh.run("%gpumem_virtual off").status == "ok"
    reply = fresh.run(TRAIN)
    assert reply.status == "ok", reply.shown
    assert "T4" not in fresh.value("name")
