"""The live panel beside a real device: its messages arrive while the GPU works, and it disturbs nothing."""

from __future__ import annotations

import ast
import time

import pytest

OPEN = "%gpumem_panel --inline"
LOOK = "from jupyter_gpumem import live\nlive.opened().received({'kind': 'hello', 'view': 'test', 'slot': 0})"

BUSY = {
    "sleeping": "import time; time.sleep(5)",
    "python": "import time; end = time.monotonic() + 5\nwhile time.monotonic() < end: sum(range(50))",
    "GPU-bound": """
import time
x = torch.randn(8192, 8192, device="cuda")
end = time.monotonic() + 5
while time.monotonic() < end:
    for _ in range(20): y = x @ x
    torch.cuda.synchronize()
del x, y
""",
    "one long wait": """
x = torch.randn(16384, 16384, device="cuda")
for _ in range(40): y = x @ x
torch.cuda.synchronize()
del x, y
""",
}


@pytest.fixture(scope="module")
def opened(loaded):
    """The kernel with the panel open and looked at."""
    reply = loaded.run(f"{OPEN}\n{LOOK}")
    assert reply.status == "ok", reply.shown
    yield loaded
    loaded.run("%gpumem_panel off")


def value(kernel, expression):
    """Return the value of an expression in the kernel."""
    return ast.literal_eval(kernel.value(expression))


@pytest.mark.parametrize("kind", BUSY)
def test_samples_arrive_while_the_gpu_works(opened, results, kind):
    """At least 60 % of the samples that are due arrive between busy and idle."""
    began = time.monotonic()
    reply = opened.run(BUSY[kind])
    assert reply.status == "ok", reply.shown
    due = (time.monotonic() - began) / 0.25
    arrived = sum(comm.get("content", {}).get("kind") == "samples" for comm in reply.comms)
    results[f"panel, {kind}"] = {"due": due, "arrived": arrived, "share": arrived / due}
    assert arrived >= 0.6 * (due - 1)


def test_numbers_are_pytorchs_own(opened):
    """What the panel's newest row says is what PyTorch says."""
    opened.run("kept = take(123)\nlive.opened()._heart.poke()\nimport time; time.sleep(0.6)")
    row = value(opened, "tuple(int(x) for x in live.opened()._sampler.latest()[0][3:6])")
    mine = value(opened, "(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())")
    assert row[:2] == mine
    assert row[2] >= mine[0]
    opened.run("del kept")


def test_the_users_peak_stays(opened):
    """`max_memory_allocated` says what it would have said without a panel."""
    opened.run("torch.cuda.reset_peak_memory_stats(); base = torch.cuda.memory_allocated(); a = take(300); del a")
    opened.run("import time; time.sleep(0.6)")
    assert value(opened, "torch.cuda.max_memory_allocated() - base") == 300 * 2**20


def test_a_graph_can_be_captured(opened, results):
    """Captures in the strictest mode succeed while the panel reads at 200 Hz, maps too; their replays are right."""
    code = """
heart, sampler = live.opened()._heart, live.opened()._sampler
heart.interval = 0.005; heart.poke()
x = torch.zeros(1024, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3): y = x * 2 + 1
torch.cuda.current_stream().wait_stream(side)
before = len(sampler.ring)
sums = []
while len(sums) < 30 or (len(sampler.ring) - before <= 5 and len(sums) < 3000):
    n = len(sums)
    sampler._next_map = 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        for _ in range(200): y = x * 2 + 1
    x.fill_(n)
    graph.replay()
    sums.append(int(y[0]))
heart.interval = 0.25
(sums == [2 * n + 1 for n in range(len(sums))], len(sampler.ring) - before, live.opened().failed, len(sums))
"""
    reply = opened.run(code)
    assert reply.status == "ok", reply.shown
    right, readings, failed, captures = ast.literal_eval(reply.result)
    results["panel, graph capture"] = {"captures": captures, "readings meanwhile": readings}
    assert right
    assert not failed
    assert readings > 5


def test_no_other_device_gets_a_context(fresh):
    """Opening the panel before and after `import torch` initialises nothing."""
    fresh.run("%load_ext jupyter_gpumem\n%gpumem_panel --inline\nimport time; time.sleep(0.6)")
    fresh.run("import torch; time.sleep(0.6)")
    assert value(fresh, "torch.cuda.is_initialized()") is False
    fresh.run("torch.ones(1, device='cuda'); time.sleep(0.6)")
    contexts = "[torch._C._cuda_hasPrimaryContext(i) for i in range(torch.cuda.device_count())]"
    assert value(fresh, contexts).count(True) == 1
    assert value(fresh, "len(__import__('jupyter_gpumem.live').live.opened()._sampler.devices)") == 1
    fresh.run("%gpumem_panel off")


def test_data_loaders_fork_beside_it(opened):
    """Four forked workers feed the GPU while the panel is open."""
    reply = opened.run(
        "from torch.utils.data import DataLoader\nrounds = []\n"
        "for _ in range(3):\n"
        "    loader = DataLoader(list(range(64)), batch_size=4, num_workers=4, multiprocessing_context='fork')\n"
        "    rounds.append(sum(int(batch.cuda().sum()) for batch in loader))\n"
        "rounds, live.opened().failed"
    )
    assert reply.result == "([2016, 2016, 2016], False)", reply.shown


def test_a_lost_context_stops_it(fresh):
    """After a device-side assert the panel says what to do, and the next magic does once."""
    fresh.run(f"%load_ext jupyter_gpumem\nimport torch; torch.ones(1, device='cuda')\n{OPEN}")
    fresh.run(LOOK)
    reply = fresh.run("torch.nn.Embedding(8, 4).cuda()(torch.tensor([9], device='cuda')); torch.cuda.synchronize()")
    assert reply.status == "error"
    assert value(fresh, "live.opened().failed") is True
    assert "restart the kernel" in fresh.run("%gpumem_panel off").stderr
