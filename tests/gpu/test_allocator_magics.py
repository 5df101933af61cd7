"""On a real device, through a real kernel: every setting by its effect, reservations, caps, and no context of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.allocator_scenarios import ON_A_REAL_GPU, PREPARE, SCENARIOS, run, segment_size
from tests.kernel.client import Kernel, value

CARDS = """
import pynvml; pynvml.nvmlInit()
def cards():
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return {"processes": [len(pynvml.nvmlDeviceGetComputeRunningProcesses(h)) for h in handles],
            "used MiB": [pynvml.nvmlDeviceGetMemoryInfo(h).used // 2**20 for h in handles]}
"""
A_CONTEXT = 100
"""MiB: the smallest context is larger, and nothing else in these tests is that large by itself."""

EVERY_MAGIC = (
    "%gpumem_config",
    "%gpumem_config expandable_segments:True",
    "%gpumem_config --undo",
    "%gpumem_config --reset",
    "%gpumem_empty",
    "%gpumem_reserve",
    "%gpumem_limit",
    "%gpumem_audit",
    "%gpumem",
)
NEEDS_A_DEVICE = ("%gpumem_reserve 1GiB", "%gpumem_limit 10GiB", "%gpumem_audit --compact -d 0")


@pytest.fixture(scope="module")
def kernel():
    """A kernel with the extension and a device in use, shared by the scenarios."""
    with Kernel() as one:
        run(one, "%load_ext jupyter_gpumem\n" + PREPARE)
        yield one


@pytest.mark.parametrize("scenario", [*SCENARIOS, *ON_A_REAL_GPU], ids=lambda scenario: scenario.__name__)
def test_effects(kernel, results, scenario):
    """What a magic must bring about is seen in the allocator."""
    if scenario is segment_size and value(kernel, "tuple(map(int, torch.__version__.split('.')[:2])) < (2, 11)"):
        pytest.skip("large_segment_size_mb came with torch 2.11")
    expected, found = scenario(kernel)
    results[f"allocator: {scenario.__name__}"] = {"expected": expected, "measured": found}
    assert found == expected


def grown(before, after):
    """Return on how many cards a context has appeared, by the memory in use and by the processes that are listed."""
    used = sum(b - a > A_CONTEXT for a, b in zip(before["used MiB"], after["used MiB"], strict=True))
    return used, sum(after["processes"]) - sum(before["processes"])


def test_no_context_is_created(results):
    """No magic of this group creates a context anywhere; the first tensor does, on one card, so it would be seen."""
    with Kernel() as fresh:
        run(fresh, "%load_ext jupyter_gpumem\nimport json, torch\n" + CARDS)
        seen = {"before": value(fresh, "cards()")}
        for line in EVERY_MAGIC:
            run(fresh, line)
        for line in NEEDS_A_DEVICE:
            reply = fresh.run(line)
            assert "not in use by this process" in reply.stderr or "has not used" in reply.shown, reply.shown
        initialised = value(fresh, "torch.cuda.is_initialized()")
        seen["after every magic"] = value(fresh, "cards()")
        run(fresh, "x = torch.ones(1, device='cuda:0'); torch.cuda.synchronize(0)")
        seen["after the first tensor, on cuda:0"] = value(fresh, "cards()")
        for line in (*EVERY_MAGIC, "%gpumem_reserve 1MiB", "%gpumem_limit 10GiB", "%gpumem_audit --compact"):
            run(fresh, line)
        seen["after every magic beside it"] = value(fresh, "cards()")
    results["allocator: contexts at the driver"] = seen | {"initialised by a magic": initialised}
    before, first, tensor, last = seen.values()
    assert not initialised
    assert grown(before, first) == (0, 0)
    used, listed = grown(first, tensor)
    assert used == 1
    assert listed in {0, 1}  # a container may hide the processes; the memory in use cannot be hidden
    assert grown(tensor, last) == (0, 0)


def test_the_hazard(results):
    """Why lowering max_split_size_mb is refused: what happens when it is lowered all the same, in a process apart."""
    script = Path(__file__).with_name("hazard.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    results["allocator: lowering max_split_size_mb below a split segment"] = {
        "steps": steps,
        "exit code": done.returncode,
        "stderr": done.stderr[-500:],
    }
    assert steps, done.stderr
    assert steps[0]["segments"] == [[1000, 3]]
