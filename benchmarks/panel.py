"""What the live panel costs the kernel: a refresh, its message, a cell of 100,000 allocations, a map of 20,000 blocks.

Runs in one real kernel and reports medians and ratios within that run, 95 % intervals beside those. What allocations
lose is measured from inside a cell, at each refresh, and for comparison on whole cells, with the panel open and closed
in turn. One minute and a half on an H200:

    python benchmarks/panel.py --json benchmarks/results/panel-h200.json

Without a GPU the device is the allocator's model, and the allocations are made on the CPU.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import random
import statistics
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jupyter_gpumem.sampler import INTERVAL  # noqa: E402 - found from the line above
from tests.kernel.client import Kernel  # noqa: E402

DRAWN = 4000
"""Samples of a bootstrap."""

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
        self.beats, self.sent, self.beat, self.send = [], [], panel._heart._beat, panel._channel.send
        panel._heart._beat, panel._channel.send = self.timed, self.weighed
    def timed(self):
        began = time.thread_time()
        self.beat()
        self.beats.append(time.thread_time() - began)
    def weighed(self, message):
        if message.content["kind"] == "samples" and not message.content.get("history"):
            self.sent.append(message)
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
refreshes = len(meter.sent)
json.dumps({
    "refreshes": refreshes,
    "thread_ms": 1e3 * statistics.median(meter.beats),
    "process_ms": 1e3 * (busy - idle) * SECONDS / refreshes,
    "message_bytes": max(message.size + len(json.dumps(message.content)) for message in meter.sent),
})
"""

INSIDE = """
def steps():
    at = [time.perf_counter()]
    for _ in range(2000):
        for _ in range(250):
            torch.empty(1000, device="cuda" if CUDA else "cpu")
        at.append(time.perf_counter())
    return at
def watch_beats():
    panel, beats = live.panel(inline=True), []
    looked_at(panel)
    beat = panel._heart._beat
    def timed():
        began = time.perf_counter()
        beat()
        beats.append((began, time.perf_counter()))
    panel._heart._beat = timed
    return beats
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
    parser.add_argument(
        "--rounds", type=int, default=30, help="cells that allocate with it open, and of each kind that are compared"
    )
    parser.add_argument("--seconds", type=int, default=20, help="how long refreshes are watched")
    options = parser.parse_args()
    with Kernel() as kernel:
        done = kernel.run(PREPARE)
        assert done.status == "ok", done.shown
        refresh = answer(kernel, REFRESH.replace("SECONDS", str(options.seconds)))
        heavy = inside(kernel, options.rounds) | {"whole_cells": allocations(kernel, max(1, options.rounds // 3))}
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


def inside(kernel: Kernel, cells: int) -> dict[str, Any]:
    """Return what the open panel takes from a cell: around it, and at each refresh inside it.

    A machine on which others work is never twice as fast as before, but within 50 ms it mostly is: the steps of a cell
    during which a refresh ran are compared with those shortly before and after them. What that comes to halfway between
    two refreshes, where there is nothing, is taken off.
    """
    kernel.run(INSIDE)
    kernel.run("beats = watch_beats(); time.sleep(0.3)")
    taken, lengths = [], []
    for _ in range(cells):
        kernel.run("at = steps()")
        at, beats = answer(kernel, "json.dumps([at, beats[-9:]])")
        for began, ended in beats:
            here, elsewhere = (excess(at, began + later, ended + later) for later in (0, INTERVAL / 2))
            if here is not None and elsewhere is not None:
                taken.append(here - elsewhere)
        lengths.append(at[-1] - at[0])
    empty: dict[str, list[float]] = {"open": [], "closed": []}
    for number in range(2 * cells):
        state = ("open", "closed")[number % 2]
        kernel.run(f"{TOGGLES[state]}; time.sleep(0.1)")
        empty[state] += [kernel.run("pass").seconds for _ in range(5)]
    kernel.run(TOGGLES["closed"])
    around = statistics.median(empty["open"]) - statistics.median(empty["closed"])
    refresh, length = middle(taken), statistics.median(lengths) / 5  # five times 100,000
    return {
        "refreshes": len(taken),
        "100_000_allocations_ms": 1e3 * length,
        "a_refresh_takes_ms": {name: 1e3 * value for name, value in refresh.items()},
        "around_a_cell_ms": 1e3 * around,
        "slower_percent": {name: 100 * (value / INTERVAL + around / length) for name, value in refresh.items()},
    }


def excess(at: list[float], began: float, ended: float) -> float | None:
    """Return by how many seconds the steps around a refresh are longer than their neighbours; `None` too near an end.

    Args:
        at: when each step ended, the first number when the first one began.
        began: when the refresh did; it may have waited 5 ms for the cell.
        ended: when it did; its message goes out a little later.
    """
    first, last = began - 0.006, ended + 0.006
    if at[0] > first - 0.03 or at[-1] < last + 0.03:
        return None
    steps = list(itertools.pairwise(at))
    during = [end - start for start, end in steps if end > first and start < last]
    beside = [
        end - start
        for start, end in steps
        if first - 0.03 < start and end < last + 0.03 and (end <= first or start >= last)
    ]
    return sum(during) - len(during) * statistics.median(beside)


def allocations(kernel: Kernel, rounds: int) -> dict[str, Any]:
    """Time the allocating cell with the panel open and closed in turn, hooks included.

    A round is two cells of each, and its order is turned around from round to round: a drift of the machine meets both
    alike, and the panel is opened once for two rounds. A cell begins anywhere between two refreshes.
    """
    chance = random.Random(0)
    wall: dict[str, list[float]] = {"closed": [], "open": []}
    cpu: dict[str, list[float]] = {"closed": [], "open": []}
    now = "closed"
    for number in range(rounds):
        for state in ("closed", "open") if number % 2 else ("open", "closed"):
            if state != now:
                kernel.run(f"{TOGGLES[state]}; time.sleep(0.3)")
                now = state
            times = [allocate(kernel, wait=chance.uniform(0, INTERVAL)) for _ in range(2)]
            wall[state] += [seconds for seconds, _ in times]
            cpu[state] += [seconds for _, seconds in times]
    kernel.run(TOGGLES["closed"])
    return {
        "rounds": rounds,
        "closed_ms": 1e3 * statistics.median(wall["closed"]),
        "open_ms": 1e3 * statistics.median(wall["open"]),
        "slower_percent": more(wall),
        "more_cpu_of_all_threads_percent": more(cpu),
    }


TOGGLES = {"open": "panel = live.panel(inline=True); looked_at(panel)", "closed": "live.close()"}


def allocate(kernel: Kernel, *, wait: float) -> tuple[float, float]:
    """Run the cell of 100,000 allocations; return how long the kernel was busy and what its threads took meanwhile."""
    kernel.run(f"time.sleep({wait})")
    reply = kernel.run("spent = time.process_time(); f(); spent = time.process_time() - spent")
    return reply.seconds, float(kernel.value("spent"))


def more(times: dict[str, list[float]]) -> dict[str, float]:
    """Return by how many per cent the rounds took longer with the panel open."""
    rounds = {
        state: [sum(pair) for pair in zip(cells[::2], cells[1::2], strict=True)] for state, cells in times.items()
    }
    return middle([100 * (a / b - 1) for a, b in zip(rounds["open"], rounds["closed"], strict=True)])


def middle(numbers: list[float]) -> dict[str, float]:
    """Return the median and its 95 % interval, a bootstrap's: of the medians of numbers drawn again and again."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(numbers, k=len(numbers))) for _ in range(DRAWN))
    return {
        "median": statistics.median(numbers),
        "low": medians[round(0.025 * DRAWN)],
        "high": medians[round(0.975 * DRAWN) - 1],
    }


if __name__ == "__main__":
    main()
