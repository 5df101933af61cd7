"""The truth that predictions are held against: every case of `predict_cases`, run on a GPU in a process of its own.

    python benchmarks/predict_gpu.py record FOLDER [CASE...]    on a machine with a GPU

writes `truth.json` (peaks of each case), `CASE.pickle.gz` (the allocator's recording) and `CASE.calls.gz` (what each
operator took; from a second run, because logging changes threads). See `predict.py` for the comparison.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["record"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--at-once", type=int, default=8, help="processes that run at the same time (default: 8)")
    parser.add_argument("--peaks-only", action="store_true", help="leave the second run of each case out")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    record(options.folder, options.cases, options.at_once, (measure,) if options.peaks_only else (measure, log))


def record(folder: Path, names: list[str], at_once: int, functions: tuple) -> None:
    from predict_cases import CASES

    unknown = set(names) - CASES.keys()
    if unknown:
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}")
    chosen = [CASES[name] for name in names or CASES]
    # Children come from a server that has imported torch but never touched the GPU: as fresh as new processes, sooner.
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, (HERE, HERE.parent)), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["predict_cases", "operator_log", "jupyter_gpumem"])
    jobs = [(function, case.name) for function in functions for case in chosen]
    began = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(lambda job: in_process(context, folder, *job), jobs))
    measured = dict(zip((name for _, name in jobs), results[: len(chosen)], strict=False))
    truth = {
        "what": "peaks of allocated and reserved memory in bytes of each case, run in a process of its own",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        **conditions(context, folder),
        "cases": {name: result for name, result in measured.items() if result},
    }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    failed = [f"{function.__name__} {name}" for (function, name), r in zip(jobs, results, strict=True) if not r]
    print(f"{len(jobs)} runs in {time.monotonic() - began:.0f} s; failed: {', '.join(failed) or 'none'}")


def in_process(context, folder: Path, function, name: str) -> dict | None:
    """Run `function(folder, name)` in a process of its own; return what it returned, `None` if it failed."""
    answer = folder / f"{name}.{function.__name__}.json"
    answer.unlink(missing_ok=True)
    began = time.monotonic()
    process = context.Process(target=child, args=(function, folder, name, answer))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
    took = f"{function.__name__:8}{name:32}{time.monotonic() - began:6.1f} s"
    if not answer.exists():
        print(f"{took}  FAILED, exit code {process.exitcode}", flush=True)
        return None
    result = json.loads(answer.read_text())
    answer.unlink()
    print(f"{took}  {json.dumps(result)}", flush=True)
    return result


def child(function, folder: Path, name: str, answer: Path) -> None:
    answer.write_text(json.dumps(function(folder, name)))


def measure(folder: Path, name: str) -> dict:
    """Run a case as a user would, with a recording of allocator events, and return its peaks."""
    import torch
    from predict_cases import CASES

    import jupyter_gpumem as gm

    torch.manual_seed(0)
    torch.cuda.init()
    with gm.record(folder / f"{name}.pickle.gz", stacks=False) as recorded:
        steps, weights = run(CASES[name])
    stats = torch.cuda.memory_stats()
    return {
        "peak_allocated": max(step["peak_allocated"] for step in steps),
        "peak_reserved": max(step["peak_reserved"] for step in steps),
        "allocations": stats["allocation.all.allocated"],
        "retries": stats["num_alloc_retries"],
        "events": len(recorded.recording.events(0)),
        "weights": weights,
        "steps": steps,
        "driver": driver_bytes(stats["reserved_bytes.all.current"]),
    }


def run(case) -> tuple[list[dict], int]:
    """Run a case on whatever "cuda" is here; return its counters after each step, and the bytes of its weights."""
    import torch
    from baselines import weight_bytes

    steps, weights = [], 0
    for model in case.function():
        weights = weight_bytes(model)
        stats = torch.cuda.memory_stats()
        steps.append(
            {
                "peak_allocated": stats["allocated_bytes.all.peak"],
                "peak_reserved": stats["reserved_bytes.all.peak"],
                "allocated": stats["allocated_bytes.all.current"],
                "reserved": stats["reserved_bytes.all.current"],
            }
        )
        torch.cuda.reset_peak_memory_stats()
    return steps, weights


def log(folder: Path, name: str) -> dict:
    """Run a case once more and save what each of its operators takes from the allocator."""
    import torch
    from operator_log import OperatorLog
    from predict_cases import CASES

    torch.manual_seed(0)
    with OperatorLog() as operators:
        for _ in CASES[name].function():
            pass
    operators.write(folder / f"{name}.calls.gz")
    return {"calls": len(operators.calls())}


def driver_bytes(reserved: int) -> dict:
    """Return what the driver says of this process, and what of that is not PyTorch's: context and libraries."""
    from jupyter_gpumem.devices.registry import backends, driver_memory

    (backend,) = (found for found in backends() if found.kind == "cuda")
    memory = driver_memory(backend, 0)
    own = memory.process if memory else None
    return {"process": own, "outside_pytorch": own - reserved if own else None}


def conditions(context, folder: Path) -> dict:
    return in_process(context, folder, versions, "conditions") or {}


def versions(_folder: Path, _name: str) -> dict:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "total_memory": properties.total_memory,
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "python": sys.version.split()[0],
        },
    }


if __name__ == "__main__":
    main()
