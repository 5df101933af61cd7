"""What the virtual GPU and predictions cost: writes `results/virtual-speed.json`.

    python benchmarks/virtual.py [--json benchmarks/results/virtual-speed.json]

Each measurement is made in a process of its own, in CPU time of that process (all its threads), so that other work on
the machine does not count; memory is the peak of the process on Linux. Importing PyTorch is not part of any of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]
BARS = {"gpt2": 4.0, "seven_billion": 60.0, "seven_billion_host_memory": 4 * 2**30, "cpu_work_ratio": 1.10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=sorted(MEASUREMENTS))
    options = parser.parse_args()
    if options.one:
        print(json.dumps(MEASUREMENTS[options.one]()))
        return
    import torch

    measured = {}
    for name in MEASUREMENTS:
        process = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, check=True, timeout=900
        )
        measured[name] = json.loads(process.stdout.strip().splitlines()[-1])
        print(name, json.dumps(measured[name], indent=1), flush=True)
    results = {
        "what": "cost of the virtual GPU and of predictions, in CPU seconds of a process of its own",
        "note": "other processes used the machine at the same time, so wall time is not shown",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "command": " ".join(["python", "benchmarks/virtual.py", *sys.argv[1:]]),
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "bars": BARS,
        "measured": measured,
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


class Stopwatch:
    """CPU seconds of this process in a `with` block."""

    def __enter__(self) -> Stopwatch:
        self._began = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = round(time.process_time() - self._began, 3)


def peak_of_host() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# GPT-2 small, written out: 12 layers of width 768, 50,257 tokens.


def gpt2():
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(768), nn.LayerNorm(768)
            self.qkv, self.out = nn.Linear(768, 3 * 768), nn.Linear(768, 768)
            self.mlp = nn.Sequential(nn.Linear(768, 3072), nn.GELU(approximate="tanh"), nn.Linear(3072, 768))

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (one.view(b, t, 12, 64).transpose(1, 2) for one in self.qkv(self.first(x)).split(c, dim=2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.mlp(self.second(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(12)), nn.LayerNorm(768)

        def forward(self, ids):
            x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return self.norm(x) @ self.tokens.weight.T

    return Model()


def train_gpt2(model) -> None:
    import torch
    from torch.nn import functional

    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        ids = torch.randint(50257, (4, 512), device="cuda")
        logits = model(ids)
        functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def gpt2_measured() -> dict:
    """Two training steps of GPT-2 small: predicted, first and again, and in a session with a virtual GPU."""
    import torch

    import jupyter_gpumem as gm
    from jupyter_gpumem.virtual.session import start, stop

    model = gpt2()
    with Stopwatch() as first:
        gm.predict(train_gpt2, model, gpu="A100-80GB")
    with Stopwatch() as again:
        result = gm.predict(train_gpt2, model, gpu="A100-80GB")
    with Stopwatch() as table:
        gm.predict(train_gpt2, model)
    with Stopwatch() as switching:
        start("A100-80GB")
    with torch.device("cuda"):
        model = gpt2()
    with Stopwatch() as steps:
        train_gpt2(model)
    del model
    stop()
    return {
        "predicted_first": first.seconds,
        "predicted_again": again.seconds,
        "predicted_for_all_cards": table.seconds,
        "session_switched_on": switching.seconds,
        "session_two_steps": steps.seconds,
        "peak_allocated": result.devices[0].peak_allocated,
        "host_memory": peak_of_host(),
    }


def seven_billion_measured() -> dict:
    """A model of 6.7 billion parameters: made on the device, and one inference step."""
    import torch
    from torch import nn
    from torch.nn import functional

    import jupyter_gpumem as gm

    class Block(nn.Module):
        def __init__(self, width=4096, hidden=11008):
            super().__init__()
            self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
            self.gate, self.up, self.down = (
                nn.Linear(width, hidden, bias=False),
                nn.Linear(width, hidden, bias=False),
                nn.Linear(hidden, width, bias=False),
            )

        def forward(self, x):
            b, t, c = x.shape
            y = self.first(x)
            q, k, v = (one(y).view(b, t, 32, 128).transpose(1, 2) for one in (self.q, self.k, self.v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
            y = self.second(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def infer():
        with torch.device("cuda"), torch.inference_mode():
            torch.set_default_dtype(torch.bfloat16)
            model = nn.Sequential(
                nn.Embedding(32000, 4096), *[Block() for _ in range(32)], nn.RMSNorm(4096), nn.Linear(4096, 32000)
            )
            return model(torch.zeros(1, 512, dtype=torch.long))

    with Stopwatch() as prediction:
        result = gm.predict(infer, gpu="A100-80GB")
    return {
        "predicted": prediction.seconds,
        "parameters": dict(result.devices[0].parts)["parameters"],
        "peak_allocated": result.devices[0].peak_allocated,
        "host_memory": peak_of_host(),
    }


def cpu_works() -> dict:
    """Return real CPU work of three kinds: functions without arguments, by name."""
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU()) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # all runs compute with the same numbers

    def training_steps() -> None:  # calls of Python and of the dispatcher dominate
        for _ in range(10):
            model(torch.randn(8, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def matrix_products() -> None:
        x = torch.randn(1024, 1024)
        for _ in range(3):
            x = torch.tanh(x @ x)

    def replaced_functions() -> None:  # the worst case: nothing but what is replaced, on tiny tensors
        for _ in range(4000):
            torch.zeros(4).to(torch.float64).device  # noqa: B018

    return {one.__name__: one for one in (training_steps, matrix_products, replaced_functions)}


def cpu_work_measured() -> dict:
    """Real CPU work with and without a virtual GPU, in turns: the shortest CPU time of each, and their ratio.

    Others use the machine, and with that its caches: each run is short, and the ratio is the median of those of 20
    turns, in which both were measured right after each other.
    """
    import torch

    from jupyter_gpumem.virtual.session import start, stop

    torch.set_num_threads(1)
    works = cpu_works()
    times: dict = {name: {"off": [], "on": []} for name in works}
    for _ in range(20):
        for state in ("off", "on"):
            if state == "on":
                start("A100-80GB")
            for name, work in works.items():
                work()
                times[name][state].append(min(cpu_seconds(work) for _ in range(5)))
            if state == "on":
                stop()
    return {
        name: {state: round(min(some), 5) for state, some in one.items()}
        | {"ratio": round(statistics.median(on / off for off, on in zip(one["off"], one["on"], strict=True)), 3)}
        for name, one in times.items()
    }


def cpu_seconds(work) -> float:
    """Return the CPU time of a run."""
    began = time.process_time()
    work()
    return time.process_time() - began


MEASUREMENTS = {"gpt2": gpt2_measured, "seven_billion": seven_billion_measured, "cpu_work": cpu_work_measured}

if __name__ == "__main__":
    main()
