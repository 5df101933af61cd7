"""What the live panel costs the kernel: a refresh, its message, a cell of 100,000 allocations, a map of 20,000 blocks.

Runs in one real kernel, with the panel open and closed in turn, and reports medians and ratios within that run:

    python benchmarks/panel.py --json benchmarks/results/panel-h200.json

Without a GPU the device is the allocator's model, and the allocations are made on the CPU.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.kernel.client import Kernel  # noqa: E402 - found from the line above

PREPARE = """
%load_ext jupyter_gpumem
import json, statistics, time, torch
from jupyter_gpumem import devices, live
from jupyter_gpumem.live import wire
CUDA = torch.cuda.is_available()
if CUDA:
    torch.ones(1, device="cuda")
    backend = next(b for b in devices.backends() if b.kind == "cuda")
    take = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
else:
    from tests.model_backend import ModelBackend
    backend = ModelBackend()
    devices.add_backend(backend)
    take = backend.allocate
def f():
    for _ in range(100_000):
        torch.empty(1000, device="cuda" if CUDA else "cpu")
f()
def looked_at(panel):
    # What a view in a browser says: somebody looks at the first device.
    panel.received({"kind": "hello", "view": "benchmark", "slot": 0})
"""

REFRESH = """
import os
class Meter:
    def __init__(self, panel):
        self.beats, self.sizes, self.beat, self.send = [], [], panel._heart._beat, panel._channel.send
        panel._heart._beat, panel._channel.send = self.timed, self.weighed
    def timed(self):
        began = time.thread_time()
        self.beat()
        self.beats.append(time.thread_time() - began)
    def weighed(self, message):
        if message.content["kind"] == "samples" and not message.content.get("history"):
            self.sizes.append(message.size + len(json.dumps(message.content)))
        self.send(message)
def process_share(seconds):
    began = time.process_time()
    time.sleep(seconds)
    return (time.process_time() - began) / seconds
idle = process_share(SECONDS)
panel = live.panel(inline=True)
looked_at(panel)
time.sleep(1)
panel._sampler.read_map = lambda slot: None  # maps are measured apart
meter = Meter(panel)
busy = process_share(SECONDS)
live.close()
refreshes = len(meter.sizes)
json.dumps({
    "refreshes": refreshes,
    "thread_ms": 1e3 * statistics.median(meter.beats),
    "process_ms": 1e3 * (busy - idle) * SECONDS / refreshes,
    "message_bytes": max(meter.sizes),
})
"""

MAPS = """
kept = [take(4096) for _ in range(BLOCKS)]
if CUDA:
    for n in range(0, BLOCKS, 2): kept[n] = None
else:
    for n in range(0, BLOCKS, 2): backend.free(kept[n])
panel = live.panel(inline=True)
sampler = panel._sampler
sampler.read()
times, packs = [], []
for _ in range(20):
    sampler._next_map = 0
    began = time.perf_counter()
    found = sampler.read_map(0)
    read = time.perf_counter()
    message = wire.pack_map(found)
    times.append(read - began)
    packs.append(time.perf_counter() - read)
live.close()
json.dumps({
    "blocks": found.fragmentation.blocks,
    "read_ms": 1e3 * statistics.median(times),
    "pack_ms": 1e3 * statistics.median(packs),
    "message_bytes": message.size,
})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--rounds", type=int, default=40, help="runs of the allocating cell, open and closed each")
    parser.add_argument("--seconds", type=int, default=20, help="how long refreshes are watched")
    options = parser.parse_args()
    with Kernel() as kernel:
        done = kernel.run(PREPARE)
        assert done.status == "ok", done.shown
        refresh = answer(kernel, REFRESH.replace("SECONDS", str(options.seconds)))
        heavy = allocations(kernel, options.rounds)
        maps = answer(kernel, MAPS.replace("BLOCKS", "20_000"))
        device = ast.literal_eval(kernel.value("torch.cuda.get_device_name(0) if CUDA else 'the allocator model'"))
    results = {
        "what": "cost of the open live panel at 4 Hz, with a view that looks; medians within one kernel",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "device": device,
        "versions": {
            name: metadata.version(name) for name in ("torch", "ipython", "ipykernel", "ipywidgets", "anywidget")
        }
        | {"python": sys.version.split()[0]},
        "refresh": refresh,
        "allocations": heavy,
        "map": maps,
    }
    print(json.dumps(results, indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def answer(kernel: Kernel, code: str) -> Any:
    """Run a cell and return the JSON that is its value."""
    reply = kernel.run(code)
    assert reply.status == "ok", reply.shown
    return json.loads(ast.literal_eval(reply.result))


def allocations(kernel: Kernel, rounds: int) -> dict[str, float]:
    """Time the allocating cell with the panel open and closed in turn, hooks included."""
    times: dict[str, list[float]] = {"closed": [], "open": []}
    for number in range(2 * rounds):
        # In pairs of changing order, so that a drift of the machine meets both alike.
        state = ("closed", "open")[(number + number // 2) % 2]
        kernel.run(
            "panel = live.panel(inline=True); looked_at(panel); time.sleep(0.6)"
            if state == "open"
            else "time.sleep(0.6)"
        )
        reply = kernel.run("f()")
        times[state].append(reply.seconds)
        kernel.run("live.close()")
    ratios = [a / b for a, b in zip(times["open"], times["closed"], strict=True)]
    return {
        "rounds": rounds,
        "closed_ms": 1e3 * statistics.median(times["closed"]),
        "open_ms": 1e3 * statistics.median(times["open"]),
        "slower_percent": 100 * (statistics.median(ratios) - 1),
        "standard_error_percent": 100 * statistics.stdev(ratios) / len(ratios) ** 0.5,
    }


if __name__ == "__main__":
    main()
