"""Recording on a real device: beside the user's own recording, without a context of its own, and replayed exactly."""

from __future__ import annotations

from tests.kernel.client import value

MiB = 2**20


WORK = """
kept = []
for n in range(1, 40):
    x = take(n); y = take(2 * n); del x
    kept.append(take(1)); del y
del kept
"""


def test_a_recording_is_replayed_to_the_byte(loaded, results, tmp_path):
    """Start, work, save, what-if: the model repeats every driver call and every address of this very device."""
    loaded.run("first = None; torch.cuda.empty_cache()")
    assert "recording" in loaded.run("%gpumem_record start").reports[0]
    loaded.run(WORK)
    path = tmp_path / "run.pickle.gz"
    assert loaded.run(f"%gpumem_record save {path}").status == "ok"
    stopped = loaded.run("%gpumem_record stop")
    assert stopped.status == "ok", stopped.shown
    reply = loaded.run("result = %gpumem_whatif -o")
    assert reply.status == "ok", reply.shown
    check = value(loaded, "{'exact': result.check.exact, 'events': result.check.segment_events}")
    results["a live recording, replayed"] = check
    assert check["exact"]
    assert check["events"] > 10
    shown = loaded.run("%gpumem_whatif").reports[-1]
    assert "Checked: a replay under the recorded settings makes all" in shown
    assert value(loaded, f"gm.read_recording({str(path)!r}).extra['device_name']").startswith("NVIDIA")
    frames = value(loaded, "sum('frames' in e for e in gm.read_recording(" + repr(str(path)) + ").events(0))")
    assert frames > 0


def test_the_users_own_recording_is_left_alone(loaded):
    """While the user records, ours does not start; what is saved is theirs; their recording goes on."""
    loaded.run("torch.cuda.memory._record_memory_history(max_entries=5000)")
    refused = loaded.run("%gpumem_record start")
    assert refused.status == "error"
    assert "not ours is running and is left alone" in refused.stderr
    loaded.run("x = take(3); del x")
    assert value(loaded, "torch._C._cuda_isHistoryEnabled()")
    assert value(loaded, "len(torch.cuda.memory._snapshot()['device_traces'][0])") > 2
    loaded.run("torch.cuda.memory._record_memory_history(None)")


def test_a_recording_that_the_user_takes_over_is_theirs(loaded):
    """If the user starts a recording while ours runs, ours ends without stopping theirs."""
    loaded.run("%gpumem_record start")
    loaded.run("torch.cuda.memory._record_memory_history(max_entries=5000)")
    refused = loaded.run("%gpumem_record stop")
    assert refused.status == "error"
    assert value(loaded, "torch._C._cuda_isHistoryEnabled()")
    loaded.run("torch.cuda.memory._record_memory_history(None)")


def test_unloading_ends_our_recording(loaded):
    """`%unload_ext` stops what we started, and gives PyTorch's function back."""
    loaded.run("%gpumem_record start")
    loaded.run("%unload_ext jupyter_gpumem")
    assert not value(loaded, "torch._C._cuda_isHistoryEnabled()")
    assert not value(loaded, "hasattr(torch.cuda.memory._record_memory_history, '__wrapped__')")
    loaded.run("%load_ext jupyter_gpumem")


def test_starting_to_record_creates_no_context(fresh, results):
    """A recording can begin before the first allocation; the driver lists no process of ours for it."""
    fresh.run("%load_ext jupyter_gpumem\nimport torch, json, os, pynvml")
    assert fresh.run("%gpumem_record start").status == "ok"
    fresh.run(
        "pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "mine = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h) if p.pid == os.getpid()]"
    )
    listed = value(fresh, "len(mine)")
    results["processes listed after starting to record"] = {"measured": listed, "expected": 0}
    assert listed == 0
    assert not value(fresh, "torch._C._cuda_hasPrimaryContext(0)")


def test_private_pools_are_not_called_stranded(loaded, results):
    """Memory of a CUDA graph shows as a private pool, neither returnable nor stranded (O18)."""
    loaded.run(
        "torch.cuda.empty_cache(); static = torch.randn(1024, 1024, device='cuda'); graph = torch.cuda.CUDAGraph()\n"
        "side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(side):\n    y = (static * 2).sum()\n"
        "torch.cuda.current_stream().wait_stream(side)\n"
        "with torch.cuda.graph(graph):\n    big = static.repeat(32, 1); out = big.sum(); del big\n"
        "graph.replay(); torch.cuda.empty_cache(); s = %gpumem -o"
    )
    private = value(loaded, "s.devices[0].fragmentation.private")
    results["private pool of a graph"] = {"bytes": private}
    assert private >= 100 * MiB
    layers = dict(map(tuple, value(loaded, "s.to_dict()")["devices"][0]["layers"]))
    assert layers["reserved, private pools"] == private
    assert sum(layers.values()) == value(loaded, "s.devices[0].driver.total")
