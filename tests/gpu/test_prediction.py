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


TRAINING = """
def train():
    optimizer.zero_grad()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        extra = model[0](data).mean()
    torch.cuda.current_stream().wait_stream(side)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(data).pow(2).mean() + extra
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return float(loss)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
data = torch.ones(32, 256, device="cuda")
"""

AFTERWARDS = {
    "a graph from before": "graph.backward()",
    "training with two streams and a scaler": "train(), train()\nassert model[0].weight.grad.isfinite().all()",
    "pinned memory": "assert torch.ones(4).pin_memory().is_pinned()",
    "a loader that pins": """
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), 4, pin_memory=True)
assert all(batch.is_pinned() for (batch,) in loader)
""",
    "the accelerator": "assert str(torch.accelerator.current_accelerator()) == 'cuda'",
    "a generic stream and event": """
with torch.Stream(device="cuda") as stream:
    event = torch.Event(); event.record(stream)
event.synchronize()
""",
    "a captured graph": """
captured, static = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
with torch.cuda.graph(captured): static += 1
captured.replay(); captured.replay()
assert static.tolist() == [2.0] * 4
""",
}


def test_the_card_works_as_before(fresh, results):
    """What PyTorch does on the real card it still does after predictions (pytorch/pytorch#161129)."""
    for cell in (
        "import torch, jupyter_gpumem as gm",
        "%load_ext jupyter_gpumem",
        TRAINING,
        "train(); graph = model(data).sum()",
        "gm.predict(train, gpu='T4')",
        "%%gpumem_predict\ntrain()",
    ):
        reply = fresh.run(cell)
        assert reply.status == "ok", reply.shown
    replies = {name: fresh.run(cell) for name, cell in AFTERWARDS.items()}
    results["the real card after predictions"] = {name: reply.status for name, reply in replies.items()}
    assert all(reply.status == "ok" for reply in replies.values()), [reply.shown for reply in replies.values()]


def test_beside_everything_that_is_on(fresh, tmp_path):
    """With a recording, the panel, automatic measuring and reserved memory on, a prediction leaves no trace in them."""
    path = tmp_path / "run.pickle.gz"
    for cell in (
        "import torch, jupyter_gpumem as gm",
        "%load_ext jupyter_gpumem",
        "held = torch.arange(2**20, device='cuda')",
        "%gpumem_panel --inline",
        "%gpumem_auto on",
        "%gpumem_reserve 1GiB --hold --name spare",
        "%gpumem_record start",
    ):
        reply = fresh.run(cell)
        assert reply.status == "ok", reply.shown
    before = fresh.value("(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())")
    reply = fresh.run(CELL)
    assert reply.status == "ok", reply.shown
    assert fresh.value("(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())") == before
    for cell in (
        "x = torch.ones(2**28, device='cuda'); del x",
        f"%gpumem_record save {path}",
        "%gpumem_record stop",
    ):
        reply = fresh.run(cell)
        assert reply.status == "ok", reply.shown
    events = f"gm.read_recording({str(path)!r}).events(0)"
    assert fresh.value(f"[e['size'] for e in {events} if e['action'] == 'alloc']") == str([2**30])
    result = fresh.run("found = %gpumem_whatif -o " + str(path))
    assert result.status == "ok", result.shown
    assert fresh.value("found.check.exact") == "True"
    assert fresh.run("%gpumem_reserve --release spare").status == "ok"
    assert fresh.run("%gpumem_panel off").status == "ok"
