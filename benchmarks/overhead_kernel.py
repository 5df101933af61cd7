"""The part of `overhead.py` that runs inside the kernel."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import statistics
import threading
import time

import torch
from IPython import get_ipython
from IPython.display import display

shell = get_ipython()
shell.run_line_magic("load_ext", "jupyter_gpumem")
results: dict = {}


def f() -> None:
    for _ in range(100_000):
        torch.empty(1000, device=DEVICE)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
shell.push({"f": f, "display": display})


PAUSE = 0.005
"""Seconds before a cell that a user runs by hand. The processor falls asleep meanwhile: all is slower then for a while,
what is measured as well as what measures."""


def timed(cell: str, pause: float) -> float:
    """Run one cell as the kernel does and return its seconds; what it prints is thrown away.

    Without a pause it is one of many in a row, as "Run All" runs them: only the kernel's output thread is waited for,
    as the kernel's own messages between two cells leave it time.
    """
    if pause:
        time.sleep(pause)
    else:
        finished = threading.Event()
        shell.kernel.iopub_thread.schedule(finished.set)
        finished.wait()
    with contextlib.redirect_stdout(io.StringIO()):
        began = time.perf_counter()
        result = shell.run_cell(cell)
        took = time.perf_counter() - began
    result.raise_error()
    return took


@contextlib.contextmanager
def auto():
    shell.run_line_magic("gpumem_auto", "on")
    yield
    shell.run_line_magic("gpumem_auto", "off")


@contextlib.contextmanager
def ipyexperiments():
    from ipyexperiments import IPyExperimentsPytorch

    with contextlib.redirect_stdout(io.StringIO()):
        experiment = IPyExperimentsPytorch(exp_enable=False, cl_enable=True)
    yield
    with contextlib.redirect_stdout(io.StringIO()):
        experiment.finish()


def extension(name: str):
    @contextlib.contextmanager
    def loaded():
        shell.run_line_magic("load_ext", name)
        yield

    return loaded


NOTHING = contextlib.nullcontext
# Name: how to switch it on, the empty cell, the allocating cell.
VARIANTS = {
    "plain": (NOTHING, "pass", "f()"),
    "plain again": (NOTHING, "pass", "f()"),  # the noise of the comparison itself
    "a bare display() call": (NOTHING, "display({'text/plain': ''}, raw=True)", "f()"),  # what showing anything costs
    "%%gpumem": (NOTHING, "%%gpumem\npass", "%%gpumem\nf()"),
    "%%gpumem -q": (NOTHING, "%%gpumem -q\npass", "%%gpumem -q\nf()"),
    "%gpumem": (NOTHING, "%gpumem pass", "%gpumem f()"),
    "%gpumem_auto": (auto, "pass", "f()"),
    "ipyexperiments": (ipyexperiments, "pass", "f()"),
    "pytorch_memlab %%mlrun": (extension("pytorch_memlab"), "%%mlrun -f f\npass", "%%mlrun -f f\nf()"),
    "memory_profiler %memit": (extension("memory_profiler"), "%memit -r 1 pass", "%memit -r 1 f()"),
}
CELLS = {name: empty for name, (switch, empty, _) in VARIANTS.items() if switch is NOTHING}
"""The empty cells that need nothing switched on: a front end can ask for them as they are."""
ALLOCATING = ("plain", "plain again", "%%gpumem", "%gpumem_auto")
PEERS = ("ipyexperiments", "pytorch_memlab %%mlrun", "memory_profiler %memit")
MEASURE_CELLS = ("ipyexperiments", "memory_profiler %memit")  # `%%mlrun` profiles the lines of functions it is told


def measure(rounds: int, heavy_rounds: int, *, heavy_peers: bool) -> None:
    torch.empty(1, device=DEVICE)
    own = [name for name in VARIANTS if name not in PEERS]
    # The peers last: what they leave behind (threads, traces, a flushed cache) must not count against anybody else.
    for names, empty_rounds, allocating, allocating_rounds in (
        (own, rounds, ALLOCATING, heavy_rounds),
        (PEERS, max(1, rounds // 10), PEERS if heavy_peers else (), 1),  # they take up to a minute a cell
    ):
        empty, failed = run_rounds(names, 1, empty_rounds, PAUSE)
        in_a_row, failed_in_a_row = run_rounds(names, 1, empty_rounds, 0)
        heavy, failed_too = run_rounds(allocating, 2, allocating_rounds, PAUSE)
        if names is own:
            plain_empty = statistics.median(empty["plain"] + empty["plain again"])
            plain_in_a_row = statistics.median(in_a_row["plain"] + in_a_row["plain again"])
            plain_heavy = heavy["plain"] + heavy["plain again"]
        for name in names:
            errors = failed | failed_in_a_row | failed_too
            results[name] = (
                {"error": errors[name]}
                if name in errors
                else {
                    "empty_ms": round(1e3 * statistics.median(empty[name]), 4),
                    "empty_added_ms": round(1e3 * (statistics.median(empty[name]) - plain_empty), 4),
                    "in_a_row_ms": round(1e3 * statistics.median(in_a_row[name]), 4),
                    "in_a_row_added_ms": round(1e3 * (statistics.median(in_a_row[name]) - plain_in_a_row), 4),
                    "runs": [len(empty[name]), len(heavy.get(name, ()))],
                }
                | (slow_down(heavy[name], plain_heavy) if name in heavy else {})
            )


def slow_down(seconds: list[float], plain: list[float]) -> dict:
    """Return the ratios to a plain cell.

    That of the medians, with the standard error that the spread gives; and that of the fastest quarters, which says
    more on a machine that others slow down at times.
    """
    usual = statistics.median(plain)
    low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else 3 * seconds
    error = 1.2533 * (high - low) / 1.349 / len(seconds) ** 0.5
    return {
        "allocations_s": round(statistics.median(seconds), 4),
        "allocations_ratio": round(statistics.median(seconds) / usual, 5),
        "allocations_ratio_error": round(error / usual, 5),
        "allocations_ratio_fastest_quarter": round(low / statistics.quantiles(plain, n=4)[0], 5),
    }


def run_rounds(names, column: int, rounds: int, pause: float) -> tuple[dict, dict]:
    """Run each cell once in each round, in a new order each time; returns the seconds, and what failed."""
    times: dict = {name: [] for name in names}
    failed: dict = {}
    warm_up = 2 if rounds > 1 else 0
    for number in range(rounds + warm_up):
        for name in random.Random(number).sample(list(names), len(names)):
            variant = VARIANTS[name]
            if name in failed:
                continue
            try:
                with variant[0]():
                    took = timed(variant[column], pause)
            except Exception as error:  # noqa: BLE001 - a peer that does not run here is a result too
                failed[name] = f"{type(error).__name__}: {error}"[:200]
                continue
            if number >= warm_up:
                times[name].append(took)
    return times, failed


def schedule(rounds: int, heavy_rounds: int, *, heavy_peers: bool) -> None:
    asyncio.get_event_loop().call_later(0.2, lambda: measure(rounds, heavy_rounds, heavy_peers=heavy_peers))


def finished() -> None:
    """Print the results as JSON, or nothing while there are none."""
    if len(results) < len(VARIANTS):
        return
    peers = [
        results[name]["empty_added_ms"] for name in MEASURE_CELLS if "error" not in results.get(name, {"error": ""})
    ]
    own = results["%%gpumem"]["empty_added_ms"]
    device = torch.cuda.get_device_name(0) if DEVICE == "cuda" else "no GPU (CPU allocations)"
    summary = {
        "device": device,
        "variants": results,
        "cheapest_peer_over_gpumem": round(min(peers) / own, 1) if peers and own > 0 else None,
    }
    print(json.dumps(summary))
