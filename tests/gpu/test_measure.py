"""On a real device, through a real kernel: every peak right to the byte, and the user's own counters as without us."""

from __future__ import annotations

import time

import pytest

from tests.kernel.client import Kernel, value

MiB = 2**20


def cost(kernel, code):
    """Run `code` as a measured cell and return the result as plain containers, with the reply."""
    reply = kernel.run(f"%%gpumem -v cost\n{code}")
    return value(kernel, "cost.to_dict()"), reply


def check(results, scenario, usage, *, over_start, stays):
    """Compare a device's usage with the bytes known beforehand, and keep both."""
    measured = {"peak_over_start": usage["peak_over_start"], "delta_allocated": usage["delta_allocated"]}
    expected = {"peak_over_start": over_start, "delta_allocated": stays}
    results[scenario] = {"expected": expected, "measured": measured, "exact": usage["exact"]}
    assert measured == expected
    assert usage["exact"]


def test_plain(loaded, results):
    """A temporary and something that stays."""
    result, reply = cost(loaded, "a = take(100); del a; kept = take(10)")
    assert reply.status == "ok"
    check(results, "plain", result["devices"][0], over_start=100 * MiB, stays=10 * MiB)
    loaded.run("del kept")


def test_odd_sizes_are_rounded_as_the_allocator_does(loaded, results):
    """Three allocations of odd sizes count as multiples of 512 bytes."""
    result, _ = cost(loaded, "odd = [torch.empty(n, dtype=torch.uint8, device='cuda') for n in (1, 513, 70_001)]")
    check(results, "odd sizes", result["devices"][0], over_start=512 + 1024 + 70_144, stays=512 + 1024 + 70_144)
    loaded.run("del odd")


def test_three_deep(loaded, results):
    """Nested measurements each have their own peak, and outer ones contain the inner ones'."""
    result, _ = cost(
        loaded,
        """
a = take(200); del a
with gm.measure() as middle:
    b = take(300); del b
    with gm.measure() as inner:
        c = take(50); del c
    d = take(70); del d
""",
    )
    inner, middle = (value(loaded, f"{name}.result.to_dict()")["devices"][0] for name in ("inner", "middle"))
    check(results, "nested, outer", result["devices"][0], over_start=300 * MiB, stays=0)
    check(results, "nested, middle", middle, over_start=300 * MiB, stays=0)
    check(results, "nested, inner", inner, over_start=50 * MiB, stays=0)


def test_peak_before_an_inner_measurement(loaded, results):
    """What an outer region reached before an inner one began is not lost by the inner one's start."""
    result, _ = cost(loaded, "a = take(400); del a\nwith gm.measure() as inner: b = take(5)\ndel b")
    check(results, "peak before an inner one", result["devices"][0], over_start=400 * MiB, stays=0)


def test_two_threads(loaded, results):
    """Overlapping measurements of two threads see the whole device, each over its own interval."""
    result, _ = cost(
        loaded,
        """
turn = [threading.Event() for _ in range(4)]
def one():
    with gm.measure() as m:
        x = take(100); turn[0].set(); turn[1].wait(); del x
    threads["one"] = m; turn[2].set()
def two():
    turn[0].wait()
    with gm.measure() as m:
        y = take(60); del y; turn[1].set(); turn[2].wait(); z = take(20); del z
    threads["two"] = m
threads = {}
started = [threading.Thread(target=f) for f in (one, two)]
[t.start() for t in started]; [t.join() for t in started]
""",
    )
    one, two = (value(loaded, f"threads[{name!r}].result.to_dict()")["devices"][0] for name in ("one", "two"))
    check(results, "threads, first", one, over_start=160 * MiB, stays=0)
    check(results, "threads, second", two, over_start=60 * MiB, stays=-100 * MiB)
    check(results, "threads, cell", result["devices"][0], over_start=160 * MiB, stays=0)


def test_failing_cell(loaded, results):
    """A cell that raises keeps its status and still gets its report."""
    result, reply = cost(loaded, "e = take(30); f = take(40); del f; 1 / 0")
    assert (reply.status, reply.error) == ("error", "ZeroDivisionError")
    assert "stopped by ZeroDivisionError" in reply.reports[0]
    check(results, "failing cell", result["devices"][0], over_start=70 * MiB, stays=30 * MiB)
    loaded.run("del e")


def test_out_of_memory(loaded, results):
    """A cell that runs out of memory gets its report, with the peak it did reach."""
    result, reply = cost(loaded, "g = take(500); h = torch.empty(2**50, dtype=torch.uint8, device='cuda')")
    assert (reply.status, reply.error) == ("error", "OutOfMemoryError")
    assert "Ran out of memory once." in reply.reports[0]
    usage = result["devices"][0]
    assert usage["end"]["ooms"] - usage["start"]["ooms"] == 1
    check(results, "out of memory", usage, over_start=500 * MiB, stays=500 * MiB)
    loaded.run("del g")


@pytest.mark.parametrize(
    "reset", ["torch.cuda.reset_peak_memory_stats()", "torch.accelerator.reset_peak_memory_stats()"]
)
def test_user_reset_in_the_middle(loaded, results, reset):
    """A reset by the user's code costs the cell's peak nothing, and is honoured for the user."""
    code = f"""
before = torch.cuda.memory_allocated()
a = take(250); del a
{reset}
after_reset = torch.cuda.max_memory_allocated() - before
b = take(20); del b
at_the_end = torch.cuda.max_memory_allocated() - before
accelerator = torch.accelerator.max_memory_allocated() - before
"""
    result, _ = cost(loaded, code)
    check(results, f"user reset, {reset}", result["devices"][0], over_start=250 * MiB, stays=0)
    assert value(loaded, "(after_reset, at_the_end, accelerator)") == [0, 20 * MiB, 20 * MiB]


def test_reset_out_of_sight(loaded, results):
    """A reset that bypasses the bindings makes the result a lower bound, and the report says so."""
    code = (
        "a = take(600); del a\n"
        "reset = torch._C._cuda_resetPeakMemoryStats; getattr(reset, '__wrapped__', reset)(0)\n"
        "b = take(5); del b"
    )
    result, reply = cost(loaded, code)
    usage = result["devices"][0]
    results["reset out of sight"] = {"measured": usage["peak_over_start"], "exact": usage["exact"]}
    assert not usage["exact"]
    assert "lower bounds" in reply.reports[0]


def test_two_streams(loaded, results):
    """Memory that a second stream still uses counts until it is freed."""
    code = """
side = torch.cuda.Stream()
a = take(100)
with torch.cuda.stream(side):
    b = take(50); a.record_stream(side)
    b.add_(1); a.add_(1)
del a, b
torch.cuda.synchronize()
c = take(1); del c
"""
    result, _ = cost(loaded, code)
    check(results, "two streams", result["devices"][0], over_start=150 * MiB, stays=0)


def test_repeats_and_statement(loaded, results):
    """A statement and its repetitions."""
    loaded.run("r = %gpumem -o -r 3 take(64)")
    runs = value(loaded, "r.to_dict()")["runs"]
    for run in runs:
        check(results, "statement, three times", run["devices"][0], over_start=64 * MiB, stays=0)


USER = """
import torch, json
MiB = 2**20
seen = []
first = torch.empty(1, device="cuda")
def take(mib): return torch.empty(mib * MiB, dtype=torch.uint8, device="cuda")
def look():
    stats = torch.cuda.memory_stats()
    seen.append({k: v for k, v in stats.items() if k.endswith(".peak")} | {
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "retries": stats["num_alloc_retries"],
        "accelerator": torch.accelerator.memory_stats()["allocated_bytes.all.peak"]})
"""
CELLS = (
    "look(); a = take(700); look(); del a; look()",
    "b = take(100); look(); c = take(200); look(); del c",
    "torch.cuda.reset_peak_memory_stats(); look(); d = take(50); del d; look()",
    "look(); e = take(20); look()",
    "torch.cuda.empty_cache(); look(); f = take(1000); del f; torch.accelerator.reset_peak_memory_stats(); look()",
    "x = torch.randn(512, 512, device='cuda'); y = (x @ x).sum(); look()",
)


def test_the_users_counters_are_as_without_us(results):
    """All peaks that user code reads, before, during and after measured cells, equal those of a kernel without us."""
    seen = []
    for measured in (False, True):
        with Kernel() as kernel:
            kernel.run(USER)
            if measured:
                kernel.run("%load_ext jupyter_gpumem")
            for cell in CELLS:
                assert kernel.run(("%%gpumem\n" if measured else "") + cell).status == "ok"
                kernel.run("look()")
            kernel.run("look()")
            seen.append(value(kernel, "seen"))
    results["user's counters"] = {
        "readings": len(seen[0]),
        "peaks in each": len(seen[0][0]),
        "equal": seen[0] == seen[1],
    }
    assert seen[0] == seen[1]
    assert len(seen[0]) == 19


def test_import_and_reset_inside_the_first_cell(fresh, results):
    """Even the cell that imports torch can reset its peak: the reset is seen, the peak exact, the context named."""
    fresh.run("%load_ext jupyter_gpumem\nimport json")
    code = (
        "import torch\na = torch.empty(300 * 2**20, dtype=torch.uint8, device='cuda'); del a\n"
        "torch.cuda.reset_peak_memory_stats()\nb = torch.empty(2**20, dtype=torch.uint8, device='cuda')"
    )
    result, reply = cost(fresh, code)
    usage = result["devices"][0]
    check(results, "import and reset in the first cell", usage, over_start=300 * MiB, stays=MiB)
    assert usage["first_use"]
    assert usage["outside_delta"] > 100 * MiB
    assert "CUDA context" in reply.reports[0]


def test_nothing_is_initialised(fresh):
    """Loading, the status and measured cells that use no GPU leave CUDA alone: no context, no process at the driver."""
    fresh.run("%load_ext jupyter_gpumem")
    fresh.run("%gpumem")
    fresh.run("%%gpumem\nimport torch\nx = torch.zeros(10)")
    status = fresh.run("%gpumem")
    assert "has not used a GPU yet" in status.reports[0]
    assert fresh.value("torch.cuda.is_initialized()") == "False"
    fresh.run(
        "import pynvml, os; pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "mine = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h) if p.pid == os.getpid()]"
    )
    assert fresh.value("mine") == "[]"


def test_status_adds_up_to_the_card(loaded, results):
    """The layers sum to the driver's total, and free memory is what CUDA says."""
    loaded.run("held = take(128); gone = take(64); del gone\ns = %gpumem -o\nfree, total = torch.cuda.mem_get_info()")
    one = value(loaded, "s.to_dict()")["devices"][0]
    layers = dict(map(tuple, one["layers"]))
    results["status"] = {"layers": layers, "total": one["driver"]["total"], "source": one["driver"]["source"]}
    assert sum(layers.values()) == one["driver"]["total"]
    assert one["driver"]["source"] == "nvml"
    assert [one["driver"]["total"], layers["free"]] == value(loaded, "(total, free)")
    assert all(size >= 0 for size in layers.values())
    loaded.run("del held")


def test_workspaces_are_named_once(fresh, results):
    """The first training cell names its cuBLAS workspaces, the second has none; a tensor of that size is none."""
    fresh.run("%load_ext jupyter_gpumem\nimport torch, json\nfirst = torch.empty(1, device='cuda')")
    train = "w = torch.randn(2048, 2048, device='cuda', requires_grad=True)\n(w @ w).sum().backward()\n"
    kept = "mine = torch.empty(32 * 2**20, dtype=torch.uint8, device='cuda')"
    one, reply = cost(fresh, train + kept)
    two, _ = cost(fresh, train + "again = mine.clone()")
    found = one["devices"][0]["workspaces"]
    results["workspaces of a first training cell"] = {"bytes": found}
    assert found == 2 * 32 * MiB, reply.reports
    assert "cuBLAS workspace" in reply.reports[0]
    assert two["devices"][0]["workspaces"] is None


def test_ten_thousand_measured_cells(loaded, results):
    """Measuring keeps nothing: resident memory does not grow over 10,000 cells."""
    code = """
import asyncio, psutil
shell, process = get_ipython(), psutil.Process()
def many(n):
    for _ in range(n): shell.run_cell("%%gpumem\\npass", store_history=False)
    return process.memory_info().rss
shell.display_pub.publish = lambda *args, **kwargs: None
def both():
    global grown
    warm = many(2000)
    grown = many(10_000) - warm
grown = None
asyncio.get_event_loop().call_later(0.2, both)  # outside any cell, so that the cells are outermost ones
"""
    loaded.run(code)
    while (grown := value(loaded, "grown")) is None:
        time.sleep(0.2)
    results["10,000 measured cells"] = {"rss_growth": grown}
    assert grown < 2 * MiB
