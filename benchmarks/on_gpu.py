"""Everything that needs a GPU, in one run: the tests and the measurements, their results in a folder, a table last.

    python benchmarks/on_gpu.py benchmarks/results
    python benchmarks/on_gpu.py /tmp/results --only tests allocator

Run from the project's folder; about eight minutes on an H200. What a step prints is kept beside its result, in a log.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

STEPS = {
    "tests": ("-m", "pytest", "-q", "-ra", "tests/gpu"),
    "allocator": ("benchmarks/allocator_gpu.py", "--json", "{result}"),
    "holders": ("benchmarks/holders_gpu.py", "--json", "{result}"),
    "panel": ("benchmarks/panel.py", "--rounds", "30", "--json", "{result}"),
    "overhead": ("benchmarks/overhead.py", "--rounds", "60", "--heavy-rounds", "40", "--json", "{result}"),
}
RESULTS = {"tests": "measure"}
"""What the results are called where it is not the step's name."""


class Outcome(NamedTuple):
    """How a step ended."""

    name: str
    code: int
    seconds: float
    last_line: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the results go")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="these steps alone")
    options = parser.parse_args()
    device = device_name()
    if device is None:
        parser.exit(2, "there is no CUDA device here\n")
    options.folder.mkdir(parents=True, exist_ok=True)
    outcomes = [run(name, options.folder, device) for name in options.only]
    width = max(len(one.name) for one in outcomes)
    for one in outcomes:
        print(f"{one.name:{width}}  {'ok' if one.code == 0 else 'FAILED':6}  {one.seconds:6.1f} s  {one.last_line}")
    sys.exit(any(one.code for one in outcomes))


def run(name: str, folder: Path, device: str) -> Outcome:
    """Run a step in a process of its own; a step that fails does not keep the others from running."""
    result = folder / f"{RESULTS.get(name, name)}-{device}.json"
    command = [sys.executable, *(part.format(result=result) for part in STEPS[name])]
    began = time.perf_counter()
    with (folder / f"{name}.log").open("w+") as log:
        ended = subprocess.run(
            command,
            env=os.environ | {"GPUMEM_RESULTS": str(result)},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
        log.seek(0)
        lines = log.read().strip().splitlines()
    return Outcome(name, ended.returncode, time.perf_counter() - began, lines[-1] if lines else "")


def device_name() -> str | None:
    """Return what results are named after, `h200` or `h200-x2`; asked elsewhere, since a context here would count."""
    code = "import torch; print([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])"
    answer = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    names = ast.literal_eval(answer.stdout.splitlines()[-1])
    if not names:
        return None
    name = names[0].split()[-1].lower()
    return name if len(names) == 1 else f"{name}-x{len(names)}"


if __name__ == "__main__":
    main()
