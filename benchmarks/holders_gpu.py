"""Who holds memory, why it runs out and what helps, on a real card: everything that is claimed, measured once.

    python benchmarks/holders_gpu.py --json benchmarks/results/holders-h200.json

Runs the scenarios of `tests/holding_scenarios.py` and the errors of `tests/oom_cases.py` in real kernels, applies the
recommended settings in fresh processes, and compares batch sizes with trying all. About a minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import oom_cases
from tests.gpu.test_oom import runs_with
from tests.holding_scenarios import PREPARE, SCENARIOS, play
from tests.kernel.client import Kernel, value

NEIGHBOUR = (
    "import torch; x = torch.empty(int(torch.cuda.mem_get_info()[1] * .7), dtype=torch.uint8, device='cuda'); "
    "print('there', flush=True); input()"
)
MANY = """
import time
many = {f"name_{i}": [i] for i in range(50_000)}
globals().update(many)
unit, row, chain = torch.ones(1, device="cuda", requires_grad=True), torch.ones(100, device="cuda"), 0
for _i in range(10_000): chain = chain + (row * unit).sum()
took = []
for _i in range(3):
    began = time.perf_counter(); books = gm.holders(); took.append(time.perf_counter() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True, metavar="FILE")
    options = parser.parse_args()
    began = time.perf_counter()
    results: dict = {}
    with Kernel() as kernel:
        assert kernel.run(PREPARE, store_history=False).status == "ok"
        results["scenarios"] = [asdict(play(kernel, scenario)) for scenario in SCENARIOS]
        assert kernel.run(MANY, store_history=False).status == "ok"
        results["many"] = value(
            kernel, "{'seconds': took, 'objects': books.visited, 'complete': books.complete, 'graph steps': 10_000}"
        )
        device, versions = value(kernel, "[torch.cuda.get_device_name(0), torch.version.cuda]")
    with Kernel() as kernel:
        assert kernel.run(PREPARE + oom_cases.PREPARE, store_history=False).status == "ok"
        results["oom"] = [asdict(_provoke(kernel, case)) for case in oom_cases.CASES]
        assert kernel.run(oom_cases.RETRY, store_history=False).status == "ok"
        results["retry peaks"] = value(kernel, "peaks")
        results["batch sizes"] = [
            {"function": name, "margin": margin} | oom_cases.compare_batch_sizes(kernel, name, margin)._asdict()
            for name, margin in (("activations", 0.0), ("training step", 0.0), ("quadratic", 0.0))
        ]
    results["settings in a fresh process"] = {
        settings or "defaults": runs_with(settings) for settings in ("", "expandable_segments:True")
    }
    head = {
        "what": "holders named and released, errors explained, advice applied: bytes before and after",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": device,
        "command": "python benchmarks/holders_gpu.py --json ...",
        "versions": {name: metadata.version(name) for name in ("torch", "ipython", "ipykernel")}
        | {"python": sys.version.split()[0], "cuda": versions},
        "seconds": round(time.perf_counter() - began, 1),
    }
    Path(options.json).write_text(json.dumps(head | results, indent=1) + "\n", encoding="utf-8")
    print(_summary(results))


def _provoke(kernel: Kernel, case: oom_cases.Oom) -> oom_cases.Explained:
    if case.verdict != "others":
        return oom_cases.provoke(kernel, case)
    command = [sys.executable, "-c", NEIGHBOUR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as neighbour:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "there\n"
        try:
            return oom_cases.provoke(kernel, case)
        finally:
            neighbour.communicate("\n", timeout=60)


def _summary(results: dict) -> str:
    scenarios, errors = results["scenarios"], results["oom"]
    lines = [
        f"{sum(s['named'] for s in scenarios)} of {len(scenarios)} holders named",
        f"{sum(s['returned'] for s in scenarios)} released as they should be",
        f"{sum(s['closes'] for s in scenarios)} times the books closed",
        *(f"  not: {s}" for s in scenarios if not (s["named"] and s["returned"] and s["closes"])),
        f"{sum(e['right'] for e in errors)} of {len(errors)} errors explained right",
        *(f"  not: {e}" for e in errors if not e["right"]),
        f"settings applied: {results['settings in a fresh process']}",
        f"retry peaks: {results['retry peaks']}",
        f"batch sizes: {results['batch sizes']}",
        f"50,000 names and 10,000 steps: {results['many']}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
