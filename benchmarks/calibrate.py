"""What CUDA kernels and libraries take from the allocator, measured operator by operator.

    python benchmarks/calibrate.py measure RAW.json           on a machine with a GPU, about a minute
    python benchmarks/calibrate.py fit RAW.json --table jupyter_gpumem/virtual/kernels.json

The first writes what was seen, the second the formulas that explain it (`kernel_fit.py`).
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
    command.add_argument("--table", type=Path, help="where to write the formulas; by default they are only printed")
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
    head = {key: value for key, value in raw.items() if key != "calls"}
    lines = ",\n".join("  " + json.dumps(call, separators=(",", ":")) for call in calls)
    options.raw.write_text(json.dumps(head, indent=1)[:-2] + f',\n "calls": [\n{lines}\n ]\n}}\n')
    print(f"{len(calls)} different calls, {len(failures)} failures, {time.monotonic() - began:.0f} s")
    print("\n".join(failures))


def fitted(options) -> None:
    from dataclasses import asdict

    from kernel_fit import fit
    from operator_log import read_calls

    raw = json.loads(options.raw.read_text())
    calls = raw["calls"]
    for path in options.calls:
        calls += [asdict(call) | {"events": call.events[call.between :]} for call in read_calls(path)]
    table, report = fit(calls)
    print("\n".join(report))
    if options.table:
        measured = {key: raw[key] for key in ("date", "device", "versions", "command")}
        options.table.write_text(json.dumps({"measured": measured, "operators": table}, indent=1) + "\n")


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
                "inside": call.peak - call.before,
            }
            found.setdefault(json.dumps(row), row)
        for tensor in inputs:
            if isinstance(tensor, torch.Tensor):
                tensor.grad = None
    return list(found.values()), failures


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
    import pynvml
    import torch
    from torch.nn import functional as F  # noqa: N812

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def used() -> int:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used

    def stage(name, function) -> None:
        try:
            function()
        except RuntimeError as error:
            stages.append({"after": name, "error": str(error).splitlines()[0]})
            return
        gc.collect()
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
        torch.cuda.empty_cache()
        stages.append({"after": name, "allocated": kept, "outside": used() - before - torch.cuda.memory_reserved()})

    def train(make, *shape, dtype=torch.float32) -> None:
        """In a thread of autograd's own, as users' backward passes are."""
        layer = make(device="cuda", dtype=dtype)
        result = layer(torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True))
        (result[0] if isinstance(result, tuple) else result).float().sum().backward()

    def product(dtype) -> None:
        a = torch.randn(512, 512, device="cuda", dtype=dtype)
        a @ a

    def linear(**options):
        return torch.nn.Linear(512, 512, **options)

    def on_a_stream() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            product(torch.float32)

    def attention(dtype) -> None:
        q = torch.randn(2, 8, 256, 64, device="cuda", dtype=dtype, requires_grad=True)
        F.scaled_dot_product_attention(q, q, q).float().sum().backward()

    def fused_step() -> None:
        parameter = torch.ones(9, device="cuda", requires_grad=True)
        parameter.grad = torch.ones_like(parameter)
        torch.optim.AdamW([parameter], fused=True).step()

    stages, before = [], used()
    stage("torch.cuda.init", torch.cuda.init)
    stage("a context: one tensor", lambda: torch.empty(1, device="cuda"))
    stage("a kernel", lambda: torch.ones(1000, device="cuda").add_(1))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        stage(f"mm {name}", lambda d=dtype: product(d))
        stage(
            f"bmm {name}",
            lambda d=dtype: (
                torch.randn(4, 64, 64, device="cuda", dtype=d) @ torch.ones(4, 64, 64, device="cuda", dtype=d)
            ),
        )
        stage(
            f"linear with bias {name}, no grad",
            lambda d=dtype: torch.no_grad()(linear(device="cuda", dtype=d))(
                torch.randn(64, 512, device="cuda", dtype=d)
            ),
        )
        stage(f"linear with bias {name}, backward", lambda d=dtype: train(linear, 64, 512, dtype=d))
        stage(f"attention {name}", lambda d=dtype: attention(d))
        stage(
            f"convolution {name}",
            lambda d=dtype: train(lambda **o: torch.nn.Conv2d(64, 64, 3, **o), 8, 64, 56, 56, dtype=d),
        )
        stage(f"LSTM {name}", lambda d=dtype: train(lambda **o: torch.nn.LSTM(256, 256, **o), 16, 8, 256, dtype=d))
    stage("mm on another stream", on_a_stream)
    stage(
        "fused AdamW", lambda: torch.optim.AdamW([torch.ones(9, device="cuda", requires_grad=True)], fused=True).step()
    )
    stage("sort", lambda: torch.randn(100_000, device="cuda").sort())
    stage("fft", lambda: torch.fft.rfft(torch.randn(64, 4096, device="cuda")))
    stage("cholesky", lambda: torch.linalg.cholesky(torch.eye(64, device="cuda")))
    stage("svd", lambda: torch.linalg.svd(torch.eye(64, device="cuda")))
    stage("after clearing cuBLAS' workspaces", torch._C._cuda_clearCublasWorkspaces)
    sender.send(stages)


if __name__ == "__main__":
    main()
