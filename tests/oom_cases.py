"""Ways to run out of memory, one for each reason, and functions whose largest batch size is known by trying all.

Used by the tests with a virtual GPU, by those on a real one, and by `benchmarks/holders_gpu.py`. Sizes follow the card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.kernel.client import value

PREPARE = """
TOTAL = torch.cuda.get_device_properties(0).total_memory // MiB
def share(part): return take(int(TOTAL * part))
"""


@dataclass(frozen=True)
class Oom:
    """One way.

    Attributes:
        verdict: the reason that must be given.
        cells: what is run; the last one runs out of memory.
        says: what the explanation must contain.
        settings: what must be recommended, or `None` when no setting may be.
        clean: what is run afterwards.
        real: whether it needs a real card.
    """

    verdict: str
    cells: tuple[str, ...]
    says: tuple[str, ...] = ()
    settings: str | None = None
    clean: str = ""
    real: bool = False
    name: str = ""


FRAGMENTS = (
    "big = share(.65); del big; pins = [take(16) for _ in range(4)]",
    "def step():\n    return share(.65)\nstep()",
)

CASES = (
    Oom(
        "others",
        ("def step():\n    return share(.5)\nstep()",),
        ("belong to", "not to this process"),
        real=True,
        name="another process",
    ),
    Oom(
        "cap",
        ("torch.cuda.set_per_process_memory_fraction(.25); kept = share(.2)", "share(.1)"),
        ("A cap is in force", "set_per_process_memory_fraction(0.3"),
        clean="torch.cuda.set_per_process_memory_fraction(1.0); del kept",
        name="cap",
    ),
    Oom(
        "fragmentation",
        FRAGMENTS,
        ("Fragmentation", "pinned by 4 live blocks (64.00 MiB): pins", "the request succeeds"),
        settings="expandable_segments:True",
        clean="del pins",
        name="a giant temporary twice",
    ),
    Oom(
        "too much",
        ("hoard = share(.7)", "share(.5)"),
        ("Too much for the card", "hoard"),
        clean="del hoard",
        name="too much",
    ),
    Oom(
        "too much",
        (
            "hoard = share(.7)",
            """
def trainer():
    try:
        share(.5)
    except Exception as error:
        raise ValueError("step 17 failed") from error
trainer()
""",
        ),
        ("Too much for the card", "hoard", "It failed in take"),
        clean="del hoard",
        name="wrapped by a trainer",
    ),
    Oom(
        "absurd request",
        (
            """
def attention():
    q = torch.ones(int((TOTAL * MiB) ** .5), 8, device="cuda")
    return q @ q.T
attention()
""",
        ),
        ("One request of", "tensor of shape", "q"),
        name="a product of two long dimensions",
    ),
    Oom(
        "private pools",
        (
            """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    graph = share(.6)
del graph
""",
            "share(.5)",
        ),
        ("private pools",),
        clean="del pool",
        real=True,
        name="private pools",
    ),
    Oom(
        "outside",
        (
            """
import ctypes
driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(TOTAL * .6) * MiB)) == 0
""",
            "share(.5)",
        ),
        ("lie outside PyTorch's allocator",),
        clean="driver.cuMemFree_v2(address)",
        real=True,
        name="outside PyTorch",
    ),
)


@dataclass
class Explained:
    """What an out-of-memory error came to."""

    name: str
    verdict: str | None
    expected: str
    shown: str
    settings: str | None
    seen: str | None
    checked: list[str]
    right: bool


def provoke(kernel, case: Oom) -> Explained:
    """Run out of memory in a prepared kernel, and look at what is shown below the error.

    It begins with an empty cache: a cap holds back what is asked of the driver, not what earlier cells left cached.
    """
    kernel.run("gc.collect(); torch.cuda.empty_cache()", store_history=False)
    *before, last = case.cells
    for cell in before:
        reply = kernel.run(cell)
        assert reply.status == "ok", reply.shown
    reply = kernel.run(last)
    shown = "\n".join(d["text/plain"] for d in reply.displays)
    record = {}
    if reply.status == "error" and kernel.run("%gpumem_oom -v explained", store_history=False).status == "ok":
        record = value(kernel, "explained.to_dict()")
    kernel.run(case.clean or "None", store_history=False)
    kernel.run("%gpumem_free -q", store_history=False)
    settings = next((action["settings"] for action in record.get("actions", ()) if action["settings"]), None)
    found = Explained(
        name=case.name,
        verdict=record.get("verdict"),
        expected=case.verdict,
        shown=shown,
        settings=settings,
        seen=record.get("seen"),
        checked=[action["text"] for action in record.get("actions", ()) if action["checked"]],
        right=False,
    )
    words = " ".join(shown.split())
    found.right = (
        found.verdict == case.verdict
        and shown.count("Out of memory") == 1
        and all(text in words for text in case.says)
        and settings == case.settings
    )
    return found


BATCHES = {
    "activations": "def fn(n):\n    kept = [take(20 * n) for _ in range(4)]",
    "training step": """
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device="cuda") for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters())
def fn(n):
    optimizer.zero_grad()
    model(torch.ones(n * 2500, 1024, device="cuda")).pow(2).mean().backward()
    optimizer.step()
""",
    "quadratic": "def fn(n):\n    scores = floats(1).new_empty(n * 512, n * 512)\n    return scores.softmax(-1)",
    "generator": "def fn(n):\n    first = take(40 * n)\n    yield 1\n    second = take(40 * n)\n    yield 2",
    "shrinking": "def fn(n):\n    for part in range(4): x = take(64 * n // (part + 1))",
}
"""Functions of a batch size, to be tried under a cap of about 1 GiB."""

EXHAUSTIVE = """
import inspect
from jupyter_gpumem.control.lowering import LoweredCaps
def runs(n, margin):
    torch.cuda.empty_cache()
    with LoweredCaps() as caps:
        caps.keep_free(margin)
        try:
            for _ in range(2):
                made = fn(n)
                if inspect.isgenerator(made):
                    for _ in made: pass
                made = None
            return True
        except torch.OutOfMemoryError:
            return False
def exhaustive(margin, most=25): return max((n for n in range(1, most) if runs(n, margin)), default=0)
torch.cuda.set_per_process_memory_fraction(1100 / TOTAL)
"""


class BatchSizes(NamedTuple):
    """The largest batch size in several ways, and how many trials that took.

    Attributes:
        plain, foreseen: found by trials alone, and by trials after a prediction.
        exhaustive: that of trying all.
        predicted: what the prediction said.
        plain_trials, foreseen_trials: how many trials there were.
    """

    plain: int
    foreseen: int
    exhaustive: int
    predicted: int | None
    plain_trials: int
    foreseen_trials: int


def compare_batch_sizes(kernel, name: str, margin: float = 0.0, start: int = 1) -> BatchSizes:
    """Look for a batch size in every way."""
    reply = kernel.run(f"fn = None; gc.collect(); torch.cuda.empty_cache()\n{BATCHES[name]}\n{EXHAUSTIVE}")
    assert reply.status == "ok", reply.shown
    reply = kernel.run(
        f"plain = gm.find_batch_size(fn, {start}, maximum=24, margin={margin}, predict=False)\n"
        f"best = gm.find_batch_size(fn, {start}, maximum=24, margin={margin}, predict=True)\n"
        f"every = exhaustive({margin})",
        store_history=False,
    )
    assert reply.status == "ok", reply.shown
    found = value(kernel, "[int(plain), int(best), every, best.predicted, len(plain.trials), len(best.trials)]")
    kernel.run("torch.cuda.set_per_process_memory_fraction(1.0); del fn", store_history=False)
    kernel.run("model = optimizer = None; gc.collect(); torch.cuda.empty_cache()", store_history=False)
    return BatchSizes(*found)


RETRY = """
held, peaks = [], []
def attempt():
    torch.cuda.reset_peak_memory_stats()
    try:
        grown = [share(.3)]
        grown.append(share(.3))
        if len(held) < 2:
            held.append(1)
            grown.append(share(.6))
        return "done"
    finally:
        peaks.append(torch.cuda.max_memory_allocated())
answer = gm.retry_on_oom(max_retries=3).call(attempt)
"""
"""Fails twice, then runs; `peaks` has the peak of each attempt."""
