"""What the magics that act on the allocator must bring about, seen in the allocator itself and not in what they say.

Each scenario runs in a kernel with a GPU, real or virtual, and returns what is expected and what was found.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.kernel.client import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kernel.client import Kernel

Outcome = tuple[dict[str, Any], dict[str, Any]]

PREPARE = """
import jupyter_gpumem as gm, gc, json, torch
MiB = 2**20
def take(mib): return torch.empty(mib * MiB, dtype=torch.uint8, device="cuda")
def segment(tensor):
    address = tensor.data_ptr()
    return next(s for s in torch.cuda.memory_snapshot() if s["address"] <= address < s["address"] + s["total_size"])
def shape(tensor): return [segment(tensor)["total_size"] // MiB, len(segment(tensor)["blocks"])]
def stat(name): return torch.cuda.memory_stats()[name]
def told():
    found = dict(torch.cuda.memory._snapshot()["allocator_settings"])
    return {key: found[key] for key in sorted(found) if key != "PYTORCH_CUDA_ALLOC_CONF"}
def clean(*names):
    for name in names: globals().pop(name, None)
    gc.collect()
    gm.allocator_config(reset=True, force=True)
    gm.limit("off")
    torch.cuda.empty_cache()
first = take(1)
"""


def run(kernel: Kernel, code: str) -> str:
    """Run a cell that must succeed; returns everything that it showed."""
    reply = kernel.run(code)
    assert reply.status == "ok", reply.shown
    return reply.shown


def refused(kernel: Kernel, code: str) -> str:
    """Run a cell that must be refused in one line; returns that line."""
    reply = kernel.run(code)
    assert reply.status == "error", reply.shown
    line = reply.stderr.strip()
    assert line.startswith("UsageError: %gpumem_"), reply.shown
    assert "\n" not in line
    return line


def splitting(kernel: Kernel) -> Outcome:
    """A free block of 300 MiB serves a request of 100 MiB by default, and not under `max_split_size_mb:200`."""
    run(kernel, "clean(); a = take(300); del a; b = take(100)")
    before = value(kernel, "shape(b)")
    run(kernel, "del b; clean()\n%gpumem_config max_split_size_mb:200\na = take(300); del a; b = take(100)")
    after = value(kernel, "[shape(b), torch.cuda.memory_reserved() // MiB]")
    run(kernel, "clean('b')")
    # Beside them, the small segment of 2 MiB that is always there.
    return {"default": [300, 2], "limited": [[100, 1], 402]}, {"default": before, "limited": after}


def expandable(kernel: Kernel) -> Outcome:
    """New memory is mapped into segments that grow once it is switched on, what is there stays; and back again."""
    run(kernel, "clean(); a = take(100); unused = take(300); del unused\n%gpumem_config expandable_segments:True")
    run(kernel, "b = take(100); c = take(50)")
    kinds = "[segment(t)['is_expandable'] for t in (a, b, c)] + [torch.cuda.memory_reserved() // MiB]"
    on = value(kernel, kinds)
    run(kernel, "del c\n%gpumem_config expandable_segments:False\nc = take(50)")
    off = value(kernel, kinds)
    run(kernel, "clean('a', 'b', 'c')")
    # On: 2 + 100 + 160 (eight pages of 20 MiB hold 150). Off: the free pages are returned, and 50 come from the driver.
    return (
        {"on": [False, True, True, 262], "off": [False, True, False, 252]},
        {"on": on, "off": off},
    )


def rounding(kernel: Kernel) -> Outcome:
    """A request of 130 MiB takes 130, 160 or 192 MiB, for 0, 4 and 2 divisions of what lies between 128 and 256."""
    found = []
    for setting in (
        "roundup_power2_divisions:default",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[128:2]",
    ):
        run(kernel, f"clean()\n%gpumem_config {setting}\nbefore = torch.cuda.memory_allocated(); a = take(130)")
        found.append(value(kernel, "(torch.cuda.memory_allocated() - before) // MiB"))
        run(kernel, "clean('a')")
    return {"allocated MiB": [130, 160, 192]}, {"allocated MiB": found}


def collecting(kernel: Kernel) -> Outcome:
    """Under a cap of 4 GiB old free segments are given back above the threshold, and without one they are not."""
    found = {}
    for name, setting in (("off", "default"), ("on", "0.5")):
        run(
            kernel,
            f"clean()\n%gpumem_limit 4GiB\n%gpumem_config garbage_collection_threshold:{setting}\n"
            "small = [take(150) for _ in range(10)]; del small\n"
            "freed, retried = stat('num_device_free'), stat('num_alloc_retries')\n"
            "live = [take(300) for _ in range(5)]",
        )
        found[name] = value(kernel, "[stat('num_device_free') > freed, stat('num_alloc_retries') - retried]")
        run(kernel, "clean('live')")
    return {"off": [False, 0], "on": [True, 0]}, found


def segment_size(kernel: Kernel) -> Outcome:
    """A request of 5 MiB takes a segment of 20 MiB, or of what `large_segment_size_mb` says (since torch 2.11)."""
    run(kernel, "clean(); a = take(5)")
    before = value(kernel, "shape(a)")
    run(kernel, "clean('a')\n%gpumem_config large_segment_size_mb:64\na = take(5)")
    after = value(kernel, "shape(a)")
    run(kernel, "clean('a')")
    return {"default": [20, 2], "64": [64, 2]}, {"default": before, "64": after}


def oversize(kernel: Kernel) -> Outcome:
    """A free block of 300 MiB serves a request of 250 MiB, whole, once 64 MiB may be wasted on it."""
    found = []
    for rounding_mb in ("default", "64"):
        run(
            kernel,
            f"clean()\n%gpumem_config max_split_size_mb:200,max_non_split_rounding_mb:{rounding_mb}\n"
            "a = take(300); del a; b = take(250)",
        )
        found.append(value(kernel, "shape(b)"))
        run(kernel, "clean('b')")
    return {"default": [250, 1], "64": [300, 1]}, {"default": found[0], "64": found[1]}


def merging(kernel: Kernel) -> Outcome:
    """Three settings given one after the other are all in force, and work together."""
    run(kernel, "clean()\n%gpumem_limit 50%")
    for setting in ("max_split_size_mb:200", "roundup_power2_divisions:4", "garbage_collection_threshold:0.8"):
        run(kernel, f"%gpumem_config {setting}")
    run(kernel, "a = take(300); del a; b = take(100); before = torch.cuda.memory_allocated(); c = take(130)")
    found = value(
        kernel,
        "[told()['max_split_size'] // MiB, told()['garbage_collection_threshold'],"
        " sorted(set(told()['roundup_power2_divisions'].values())), shape(b),"
        " (torch.cuda.memory_allocated() - before) // MiB]",
    )
    run(kernel, "clean('b', 'c')")
    return {"in force": [200, 0.8, [4], [112, 1], 160]}, {"in force": found}


def undoing(kernel: Kernel) -> Outcome:
    """Each undo brings back just what was in force before, and a reset what the process began with."""
    run(kernel, "clean(); seen = [told()]")
    changes = ("expandable_segments:True", "roundup_power2_divisions:[256:1,512:2,>:8]", "expandable_segments:False")
    for change in changes:
        run(kernel, f"%gpumem_config {change}\nseen.append(told())")
    for _ in changes:
        run(kernel, "%gpumem_config --undo\nseen.append(told())")
    for change in changes:
        run(kernel, f"%gpumem_config {change}")
    run(kernel, "%gpumem_config --reset\nseen.append(told())")
    found = value(kernel, "[[seen.index(state) for state in seen], len({json.dumps(s) for s in seen})]")
    run(kernel, "clean()")
    return {"states": [[0, 1, 2, 3, 2, 1, 0, 0], 4]}, {"states": found}


def failing(kernel: Kernel) -> Outcome:
    """What we refuse leaves everything as it was."""
    run(kernel, "clean()\n%gpumem_config expandable_segments:True,roundup_power2_divisions:8\nbefore = told()")
    for bad in ("max_split_size_mb:10", "expandable_segments:true", "roundup_power2_divisions:3", "zzz:1", "C=1"):
        refused(kernel, f"%gpumem_config {bad}")
    found = value(kernel, "told() == before")
    run(kernel, "clean()")
    return {"unchanged": True}, {"unchanged": found}


def refused_by_pytorch(kernel: Kernel) -> Outcome:
    """What PyTorch refuses, after it has read what stands before it, is taken back."""
    run(kernel, "clean()\n%gpumem_config expandable_segments:True,roundup_power2_divisions:8\nbefore = told()")
    line = refused(kernel, "%gpumem_config --force expandable_segments:False,backend:cudaMallocAsync")
    found = value(kernel, "told() == before")
    run(kernel, "clean()")
    return {"unchanged": True, "said": True}, {"unchanged": found, "said": "PyTorch refuses" in line}


def hazard_refused(kernel: Kernel) -> Outcome:
    """Lowering `max_split_size_mb` below a segment that is split is refused, until the tensors in it are gone."""
    run(kernel, "clean(); a = take(1000); del a; a = take(600); b = take(100); del a; before = told()")
    message = refused(kernel, "%gpumem_config max_split_size_mb:128")
    run(kernel, "unchanged = told() == before; del b; torch.cuda.empty_cache()\n%gpumem_config max_split_size_mb:128")
    found = value(kernel, "[unchanged, told()['max_split_size'] // MiB]")
    run(kernel, "clean()")
    return (
        {"alive": "100.00 MiB alive", "then": [True, 128]},
        {"alive": re.findall(r"[\d.]+ MiB alive", message)[0], "then": found},
    )


def reserving(kernel: Kernel) -> Outcome:
    """After 64 GiB were put aside, 100 tensors are cut out of them without a single call of the driver."""
    shown = run(kernel, "clean()\nfrom_driver = stat('num_device_alloc')\n%gpumem_reserve 64GiB")
    taken = value(kernel, "stat('num_device_alloc') - from_driver")
    run(kernel, "from_driver = stat('num_device_alloc'); many = [take(600 + i % 7) for i in range(100)]")
    found = value(
        kernel,
        "[stat('num_device_alloc') - from_driver, len({segment(t)['address'] for t in many})]",
    )
    run(kernel, "many = None\n%gpumem_empty")
    gone = run(kernel, "%gpumem_reserve")
    run(kernel, "clean('many')")
    return (
        {"driver calls": 1, "then": [0, 1], "address shown": True, "gone after emptying": True},
        {
            "driver calls": taken,
            "then": found,
            "address shown": bool(re.search("0x[0-9a-f]+ in a segment from the driver", shown)),
            "gone after emptying": "gone" in gone,
        },
    )


def out_of_the_peak(kernel: Kernel) -> Outcome:
    """What is put into the cache is not in the user's peak of allocated memory, and later tensors are as ever."""
    run(kernel, "clean(); torch.cuda.reset_peak_memory_stats(); before = torch.cuda.memory_allocated()")
    run(kernel, "%gpumem_reserve 8GiB")
    peaks = "[(torch.cuda.max_memory_allocated() - before) // MiB, torch.cuda.max_memory_reserved() // MiB >= 8192]"
    found = [value(kernel, peaks)]
    run(kernel, "x = take(100)")
    found.append(value(kernel, peaks))
    run(kernel, "clean('x'); torch.cuda.reset_peak_memory_stats()")
    return {"peaks": [[0, True], [100, True]]}, {"peaks": found}


def holding(kernel: Kernel) -> Outcome:
    """A guard band is allocated until it is released, to the cache; its name is taken meanwhile."""
    run(kernel, "clean(); before = torch.cuda.memory_allocated()\n%gpumem_reserve 2GiB --hold --name spare")
    levels = "[(torch.cuda.memory_allocated() - before) // MiB, torch.cuda.memory_reserved() // MiB]"
    found = [value(kernel, levels)]
    twice = refused(kernel, "%gpumem_reserve 1GiB --hold --name spare")
    run(kernel, "%gpumem_empty")
    found.append(value(kernel, levels))
    run(kernel, "%gpumem_reserve --release spare")
    found.append(value(kernel, levels))
    run(kernel, "clean()")
    return (
        {"levels": [[2048, 2050], [2048, 2050], [0, 2050]], "twice": True},
        {"levels": found, "twice": "'spare' already names" in twice},
    )


def outliving(kernel: Kernel) -> Outcome:
    """A guard band outlasts a reload of the extension, and vanishes when it is unloaded."""
    run(kernel, "clean(); before = torch.cuda.memory_allocated()\n%gpumem_reserve 2GiB --hold")
    found = []
    for line in ("%reload_ext jupyter_gpumem", "%unload_ext jupyter_gpumem"):
        run(kernel, line)
        found.append(value(kernel, "(torch.cuda.memory_allocated() - before) // MiB"))
    run(kernel, "%load_ext jupyter_gpumem\nclean()")
    return {"held MiB": [2048, 0]}, {"held MiB": found}


def too_much(kernel: Kernel) -> Outcome:
    """What does not fit is refused without touching anything, and the size that is said to fit does."""
    run(kernel, "clean(); cached = take(300); del cached; before = torch.cuda.memory_reserved()")
    message = refused(kernel, "%gpumem_reserve 9000GiB")
    largest = int(re.findall(r"\((\d+) bytes\)", message)[0])
    unchanged = value(kernel, "torch.cuda.memory_reserved() == before")
    # Were the driver not to give all that it says is free, this tells by how much it falls short.
    short = next(
        mib for mib in (0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        if kernel.run(f"%gpumem_reserve -q {largest - mib * 2**20}").status == "ok"
    )  # fmt: skip
    run(kernel, "clean()\n%gpumem_limit 10GiB")
    message = refused(kernel, "%gpumem_reserve 11GiB")
    run(kernel, "r = %gpumem_reserve -o 9GiB\n")
    capped = value(kernel, "r.size")
    run(kernel, "clean()")
    return (
        {"unchanged": True, "short by MiB": 0, "under a cap": [9 * 2**30, True]},
        {
            "unchanged": unchanged,
            "short by MiB": short,
            "under a cap": [capped, "10.00 GiB" in message or "9.99 GiB" in message],
        },
    )


def capping(kernel: Kernel) -> Outcome:
    """A cap is where it was put, to the byte: a request beyond it fails, and without it succeeds."""
    code = "clean()\n%gpumem_limit 10GiB\nc = %gpumem_limit -o\ntry:\n    take(10300); failed = False\n"
    run(kernel, code + "except torch.OutOfMemoryError:\n    failed = True")
    found = value(kernel, "[c.devices[0].limit, failed]")
    above = run(kernel, "clean(); a = take(3000)\n%gpumem_limit 2GiB")
    run(kernel, "%gpumem_limit off\nb = take(10300)")
    run(kernel, "clean('a', 'b')")
    return (
        {"limit, failed": [10 * 2**30, True], "warned": True},
        {"limit, failed": found, "warned": "above the cap" in above},
    )


def emptying(kernel: Kernel) -> Outcome:
    """What is returned is what was foretold, to the byte, and the rest is explained; also in expandable segments."""
    found, expected = {}, {}
    for kind in ("False", "True"):
        run(
            kernel,
            f"clean()\n%gpumem_config expandable_segments:{kind}\n"
            "a = take(300); b = take(45); c = take(13); d = take(64); x = [take(3) for _ in range(9)]\n"
            "del a, c; x = x[::3]\n"
            "foretold = gm.audit().devices[0].fragmentation; before = torch.cuda.memory_reserved()\n"
            "e = %gpumem_empty -o",
        )
        found[kind] = value(
            kernel,
            "[e.returned, before - torch.cuda.memory_reserved(), e.devices[0].stranded, e.devices[0].after]",
        )
        expected[kind] = value(
            kernel, "[foretold.returnable, foretold.returnable, foretold.stranded, torch.cuda.memory_reserved()]"
        )
        run(kernel, "clean('b', 'd', 'x')")
    return expected, found


def auditing(kernel: Kernel) -> Outcome:
    """The largest request that is said to need no driver call needs none, and one byte more does."""
    run(
        kernel,
        "clean(); keep = []\n"
        "for i in range(1, 9):\n    big = take(50 * i); keep.append(take(30)); del big\n"
        "audited = %gpumem_audit -o --threshold 0.3\n"
        "one = audited.devices[0]; calls = [stat('num_device_alloc')]\n"
        "fits = torch.empty(one.fragmentation.largest_free, dtype=torch.uint8, device='cuda')\n"
        "calls.append(stat('num_device_alloc')); del fits\n"
        "more = torch.empty(one.fragmentation.largest_free + 512, dtype=torch.uint8, device='cuda')\n"
        "calls.append(stat('num_device_alloc')); del more",
    )
    before = value(kernel, "[one.exceeded, sum(p.reserved for p in one.pools) == one.reserved]")
    run(kernel, "compacted = %gpumem_audit -o --compact")
    found = value(kernel, "[compacted.returned > 0, compacted.devices[0].fragmentation.returnable]")
    calls = value(kernel, "[call - calls[0] for call in calls]")
    run(kernel, "clean('keep')")
    return (
        {"before": [True, True], "driver calls": [0, 0, 1], "compacted": [True, 0]},
        {"before": before, "driver calls": calls, "compacted": found},
    )


SCENARIOS: tuple[Callable[[Kernel], Outcome], ...] = (
    splitting,
    expandable,
    rounding,
    collecting,
    segment_size,
    oversize,
    merging,
    undoing,
    failing,
    hazard_refused,
    reserving,
    out_of_the_peak,
    holding,
    too_much,
    capping,
    emptying,
    auditing,
)
"""Those that a virtual GPU goes through as well."""

ON_A_REAL_GPU: tuple[Callable[[Kernel], Outcome], ...] = (refused_by_pytorch, outliving)
"""The model refuses less than PyTorch does, and a virtual GPU ends with the extension."""
