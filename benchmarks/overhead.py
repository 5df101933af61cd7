"""What measuring costs: an empty cell and a cell of 100,000 small allocations, with and without, beside other tools.

Runs everything in one real kernel, variants interleaved, and reports medians and ratios within that run:

    python benchmarks/overhead.py --json benchmarks/results/overhead-h200.json

Other tools are compared if they are installed: ipyexperiments, pytorch_memlab, memory_profiler.
"""

from __future__ import annotations

import argparse
import compileall
import json
import random
import statistics
import sys
import time
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from jupyter_client.manager import start_new_kernel

import jupyter_gpumem

DRIVER = Path(__file__).with_name("overhead_kernel.py")
TOOLS = ("jupyter_gpumem", "torch", "ipython", "ipykernel", "ipyexperiments", "pytorch_memlab", "memory_profiler")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--rounds", type=int, default=200, help="runs of the empty cell for each variant")
    parser.add_argument("--heavy-rounds", type=int, default=40, help="runs of the allocating cell for each variant")
    parser.add_argument("--no-heavy-peers", action="store_true", help="spare the other tools the allocating cell")
    options = parser.parse_args()

    compileall.compile_dir(Path(jupyter_gpumem.__file__).parent, quiet=1)  # as pip leaves a package
    load_ms = statistics.median(load_time() for _ in range(5))
    manager, client = start_new_kernel()
    try:
        run(client, DRIVER.read_text())
        # Scheduled, not called: the cells under test must be outermost ones, as a user's are.
        peers = not options.no_heavy_peers
        run(client, f"schedule({options.rounds}, {options.heavy_rounds}, heavy_peers={peers})")
        while not (answer := run(client, "finished()")):
            time.sleep(0.5)
        results = json.loads(answer)
        for name, milliseconds in until_idle(client, options.rounds).items():
            results["variants"][name]["until_idle_ms"] = round(milliseconds, 4)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    results = {
        "what": "time added by measuring; medians of interleaved runs in one kernel",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "versions": {name: version(name) for name in TOOLS} | {"python": sys.version.split()[0]},
        "load_ext_ms": round(load_ms, 2),
        **results,
    }
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def load_time() -> float:
    """Return the milliseconds of `%load_ext` in a new kernel, and make sure that it imports nothing heavy."""
    manager, client = start_new_kernel()
    code = """
import sys, time
began = time.perf_counter()
get_ipython().run_line_magic("load_ext", "jupyter_gpumem")
took = 1e3 * (time.perf_counter() - began)
assert not {"torch", "matplotlib", "ipywidgets", "anywidget"} & set(sys.modules)
print(took)
"""
    try:
        return float(run(client, code))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def until_idle(client, rounds: int) -> dict[str, float]:
    """Return the milliseconds from a cell's request to the kernel's being idle, as a front end sees it.

    What a display costs beside the cell is in it: the kernel's output thread, the sockets, and reading the message.
    """
    pause, cells = json.loads(run(client, "print(json.dumps([PAUSE, CELLS]))"))
    times: dict[str, list[float]] = {name: [] for name in cells}
    for number in range(rounds + 2):
        for name in random.Random(number).sample(list(cells), len(cells)):
            time.sleep(pause)
            began = time.perf_counter()
            request = client.execute(cells[name])
            while (
                (message := client.get_iopub_msg(timeout=60))["msg_type"] != "status"
                or message["content"]["execution_state"] != "idle"
                or message["parent_header"]["msg_id"] != request
            ):
                pass
            took = time.perf_counter() - began
            client.get_shell_msg(timeout=60)
            if number >= 2:
                times[name].append(took)
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def version(name: str) -> str | None:
    if name == "jupyter_gpumem":
        return jupyter_gpumem.__version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def run(client, code: str) -> str:
    """Run a cell and return what it printed; a failing cell fails the benchmark."""
    printed = []

    def collect(message) -> None:
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=collect, timeout=580)
    if reply["content"]["status"] != "ok":
        raise SystemExit("\n".join(reply["content"]["traceback"]))
    return "".join(printed).strip().rpartition("\n")[2]


def table(results: dict) -> str:
    lines = [f"{results['device']}, torch {results['versions']['torch']}", ""]
    lines.append(
        f"{'':24}{'empty cell':>14}{'added':>12}{'in a row':>12}{'until idle':>12}"
        f"{'100,000 allocations':>22}{'fastest quarter':>18}"
    )
    plain = results["variants"]["plain"]["until_idle_ms"]
    for name, row in results["variants"].items():
        idle = row.get("until_idle_ms")
        if "error" in row:
            lines.append(f"{name:24}{row['error']}")
            continue
        slower = row.get("allocations_ratio")
        lines.append(
            f"{name:24}{row['empty_ms']:11.3f} ms{row['empty_added_ms']:9.3f} ms{row['in_a_row_added_ms']:9.3f} ms"
            + (f"{idle - plain:9.3f} ms" if idle else " " * 12)
            + (
                f"{100 * (slower - 1):+14.2f} ± {100 * row['allocations_ratio_error']:.2f} %"
                f"{100 * (row['allocations_ratio_fastest_quarter'] - 1):+16.2f} %"
                if slower
                else ""
            )
        )
    lines.append(f"%load_ext: {results['load_ext_ms']} ms")
    lines.append(f"cheapest peer that measures a cell / %%gpumem: {results['cheapest_peer_over_gpumem']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
