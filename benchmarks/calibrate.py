"""What CUDA kernels and libraries take from the allocator, measured operator by operator.

    python benchmarks/calibrate.py measure RAW.json           on a machine with a GPU, about a minute
    python benchmarks/calibrate.py fit RAW.json --table jupyter_gpumem/virtual/kernels.json

The first writes what was seen; the second says how many of the calls are as the formulas in
`jupyter_gpumem/virtual/temporaries.py` say, and writes a table of the convolutions that are not.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

LIMIT_S = 150
"""What is not measured by then is left out: a GPU is too dear to wait for one slow library."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.add_argument("raw", type=Path)
    command.set_defaults(function=measure)
    command = commands.add_parser("fit")
    command.add_argument("raw", type=Path)
    command.add_argument("--calls", type=Path, nargs="*", default=[], help="operator logs of cases, as further samples")
    command.add_argument("--table", type=Path, help="where to write the convolutions")
    command.set_defaults(function=fitted)
    options = parser.parse_args()
    options.function(options)


def measure(options) -> None:
    began = time.monotonic()
    libraries = measured_libraries()
    print(f"libraries: {time.monotonic() - began:.0f} s", flush=True)
    calls, failures = measured_operators()
    from predict_gpu import versions

    raw = {
        "what": "events (+ bytes asked for, - given back) of each operator, and what libraries keep, in bytes",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        **versions(options.raw, ""),
        "libraries": libraries,
        "failures": failures,
        "calls": calls,
    }
    write(options.raw, raw)
    print(f"{len(calls)} different calls, {len(failures)} failures, {time.monotonic() - began:.0f} s")
    print("\n".join(failures))


def write(path: Path, raw: dict) -> None:
    """Save what was measured, one call a line."""
    head = {key: value for key, value in raw.items() if key != "calls"}
    lines = ",\n".join("  " + json.dumps(call, separators=(",", ":")) for call in raw["calls"])
    path.write_text(json.dumps(head, indent=1)[:-2] + f',\n "calls": [\n{lines}\n ]\n}}\n')


def fitted(options) -> None:
    from dataclasses import asdict

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from kernel_fit import check, convolution_table
    from operator_log import read_calls

    raw = json.loads(options.raw.read_text())
    calls = raw["calls"]
    for path in options.calls:
        calls += [asdict(call) | {"events": call.events[call.between :]} for call in read_calls(path)]
    print("\n".join(check(calls)))
    if options.table:
        measured = {key: raw[key] for key in ("date", "device", "versions", "command")}
        table = {"measured": measured, "convolutions": convolution_table(calls)}
        options.table.write_text(json.dumps(table, indent=1) + "\n")


def measured_operators() -> tuple[list[dict], list[str]]:
    """Return each different call with its events, and the workloads that failed."""
    import torch
    from kernel_workloads import workloads
    from operator_log import OperatorLog

    warm_up(torch)
    found, failures = {}, []
    part, started = "", time.monotonic()
    began = started
    for here, function, inputs in workloads():
        if time.monotonic() - started > LIMIT_S:
            failures.append(f"stopped after {LIMIT_S} s in {here}")
            break
        if here != part:
            print(f"{part:20}{time.monotonic() - began:6.1f} s", flush=True)
            part, began = here, time.monotonic()
        with OperatorLog() as log:
            try:
                function(*inputs)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                failures.append(f"{here}: {str(error).splitlines()[0]}")
        for call in log.calls():
            own = call.events[call.between :]
            row = {
                "op": call.op,
                "args": call.args,
                "outs": call.outs,
                "events": own,
            }
            found.setdefault(json.dumps(row), row)
        for tensor in inputs:
            if isinstance(tensor, torch.Tensor):
                tensor.grad = None
    return telling(list(found.values())), failures


def telling(calls: list[dict]) -> list[dict]:
    """Return the calls that take memory, of operators that at some size give some of it back themselves."""
    names = {call["op"].split(".")[1] for call in calls if any(event < 0 for event in call["events"])}
    return [call for call in calls if call["events"] and call["op"].split(".")[1] in names]


def warm_up(torch) -> None:
    """Let the libraries take their workspaces, so that no operator is charged with them."""
    a = torch.randn(256, 256, device="cuda", requires_grad=True)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        b, bias = a.detach().to(dtype).requires_grad_(), torch.zeros(256, device="cuda", dtype=dtype)
        with torch.autograd.set_multithreading_enabled(mode=False):
            torch.nn.functional.linear(b, b, bias).sum().backward()
            (b @ b).sum().backward()


def measured_libraries() -> list[dict]:
    """Return what each library keeps, from a process of its own: alone on the GPU, as the driver counts all of it."""
    here = Path(__file__).resolve().parent
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=library_stages, args=(sender,))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise SystemExit("measuring the libraries failed: see above") from None
    finally:
        process.join()


def library_stages(sender) -> None:
    """Use one library after the other, and say after each what is allocated, and what is in use outside PyTorch."""
    import pynvml
    import torch
    from library_workloads import stages

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def used() -> int:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used

    found, before = [], used()
    for name, function in stages():
        try:
            function()
        except RuntimeError as error:
            found.append({"after": name, "error": str(error).splitlines()[0]})
            continue
        gc.collect()
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated()
        torch.cuda.empty_cache()
        found.append({"after": name, "allocated": kept, "outside": used() - before - torch.cuda.memory_reserved()})
    sender.send(found)


if __name__ == "__main__":
    main()
