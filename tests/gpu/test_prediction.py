"""A prediction beside real tensors: it says what would be needed, and leaves the card and its counters alone."""

from __future__ import annotations

CELL = """%%gpumem_predict --gpu A100-80GB -v need
model = torch.nn.Linear(8192, 8192).cuda()
loss = (model(held.float().cuda().view(-1, 8192)) ** 2).mean()
loss.backward()
"""


def test_real_counters_and_tensors_stay(fresh, results):
    """The allocator's statistics, the values of tensors and the names are the same before and after."""
    for cell in (
        "import torch",
        "%load_ext jupyter_gpumem",
        "held = torch.arange(2**20, device='cuda')",
        "before, names = torch.cuda.memory_stats(), set(dir())",
    ):
        assert fresh.run(cell).status == "ok"
    reply = fresh.run(CELL)
    assert reply.status == "ok", reply.shown
    same = fresh.value("{k for k, v in torch.cuda.memory_stats().items() if before[k] != v}")
    results["prediction beside a real card: counters that changed"] = same
    assert same == "set()"
    assert fresh.value("held.sum().item()") == str(2**20 * (2**20 - 1) // 2)
    assert fresh.value("'model' in globals()") == "False"
    assert int(fresh.value("need.devices[0].peak_allocated")) > 2 * 8192 * 8192 * 4
