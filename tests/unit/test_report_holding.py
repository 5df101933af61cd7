"""How holders, releases and explanations look."""

from __future__ import annotations

from jupyter_gpumem import report
from jupyter_gpumem.records import (
    Chain,
    Device,
    DeviceHolders,
    Holder,
    Holders,
    OomAction,
    OomExplanation,
    OomText,
    Released,
    ReleaseStep,
    Site,
)
from jupyter_gpumem.units import GiB, MiB

CARD = Device("cuda", 0, "NVIDIA H200", 140 * GiB)
HOLDERS = (
    Holder("graph", "total", "the autograd graph of total, saved by MulBackward0", "tensor", 15, 3 * GiB, 3 * GiB),
    Holder("variable", "model", "model.fc.weight", "Net", 8, GiB, 0, ("opt",)),
    Holder("variable", "part", None, "float32 tensor of shape (3,)", 1, MiB, MiB, (), "uses 1 % of its storage"),
)
UP_TO_THE_WIDTH = "  Not attributed: memory that no Python object shows, such as what an operator saved for backward"
SHOWN_BY_NOBODY = f"{UP_TO_THE_WIDTH}, or what a library"


def test_holders():
    """The lines add up, and what is remarkable stands below."""
    sites = (Site("net.py:3 in forward", 2 * MiB, 2),)
    one = DeviceHolders(CARD, 4 * GiB + 68 * MiB, HOLDERS, 64 * MiB, 0, 3 * MiB, sites, outside=5 * MiB)
    assert str(Holders((one,), 100)).splitlines() == [
        "cuda:0 · NVIDIA H200 · 4.07 GiB allocated",
        "                                       tensors  allocated   share  held only here",
        "  autograd graph of total (tensor)          15   3.00 GiB  73.8 %        3.00 GiB",
        "  model (Net)                                8   1.00 GiB  24.6 %           0 B",
        "  part (float32 tensor of shape (3,))        1   1.00 MiB   0.0 %        1.00 MiB",
        "  cuBLAS workspaces                             64.00 MiB   1.5 %",
        "  not attributed                                 3.00 MiB   0.1 %",
        "  autograd graph of total: the largest piece is the autograd graph of total, saved by MulBackward0.",
        "  model: the largest piece is model.fc.weight.",
        "  model: also held by opt.",
        "  part: uses 1 % of its storage.",
        SHOWN_BY_NOBODY,
        "    holds.",
        "  Not attributed: 2.00 MiB in 2 allocations made at net.py:3 in forward.",
        "  5.00 MiB of tensors lie in memory that is not PyTorch's allocator's.",
    ]


def test_many_holders_are_summed():
    """After fifteen lines the rest is one."""
    many = tuple(Holder("variable", f"x{n}", None, "t", 1, MiB, MiB) for n in range(20))
    text = str(Holders((DeviceHolders(CARD, 20 * MiB, many, 0, 0, 0),)))
    assert "  5 more" in text
    assert "5.00 MiB" in text
    assert "x15" not in text


def test_a_search_that_was_cut_short():
    """It says after how many objects."""
    text = str(Holders((DeviceHolders(CARD, MiB, (), 0, 0, MiB),), 1_000_000, complete=False))
    assert "The search ended after 1,000,000 objects" in text


def test_without_devices():
    """The reason stands alone."""
    assert str(Holders((), missing="no GPU was used")) == "GPU memory has no holders: no GPU was used."


def test_chain():
    """Who else holds it, and what deleting it gives."""
    held = ("8.00 MiB of it are also held by keep",)
    assert str(Chain("x", "variable", "tensor", {"cuda:0": 8 * MiB}, 0, held)).splitlines() == [
        "x · tensor · 8.00 MiB on cuda:0",
        "  8.00 MiB of it are also held by keep.",
        "  Delete x, and nothing is free: the others hold all of it.",
    ]
    alone = Chain("act", "error", "tensor", {"cuda:0": 8 * MiB}, 8 * MiB, ())
    assert str(alone).splitlines()[-1] == "  Nothing else holds it. %gpumem_free lets go of it, and all of it is free."


def test_released():
    """Each step with what it gave, then what is left and whose it is."""
    steps = (ReleaseStep("last error", "ValueError", GiB, 0), ReleaseStep("unused cache", "segments", 0, 2 * GiB))
    assert str(Released(steps, rehearsal=False, allocated=GiB, reserved=GiB, kept=HOLDERS[1:2])).splitlines() == [
        "released",
        "                          allocated   reserved",
        "  last error: ValueError  -1.00 GiB      0 B",
        "  unused cache: segments      0 B    -2.00 GiB",
        "  The last error's frames are gone: %debug and %tb have nothing to show until the next error.",
        "  Now 1.00 GiB allocated, 1.00 GiB reserved.",
        "  Your own variables hold: model 1.00 GiB.",
    ]
    assert str(Released((), rehearsal=True, allocated=0, reserved=0)).startswith("would come back\n")


def test_explanation():
    """The numbers, the reason and the actions, checked ones marked."""
    record = OomExplanation(
        verdict="cap",
        sentence="A cap is in force",
        text=OomText("allocator", "cuda"),
        device="cuda:0",
        evidence=(("requested", GiB), ("cap", 4 * GiB)),
        details=("It failed in step, line 3",),
        actions=(OomAction("raise the cap", 2 * GiB, checked=True), OomAction("use less")),
        seen="afterwards",
    )
    assert str(record).splitlines() == [
        "Out of memory · cuda:0",
        "  requested  1.00 GiB",
        "  cap        4.00 GiB",
        "  A cap is in force.",
        "  It failed in step, line 3.",
        "  1. Raise the cap (2.00 GiB). Tried out in a model of the allocator: the request succeeds.",
        "  2. Use less.",
        "  The state is a later one: it was not kept when memory ran out.",
    ]
    assert record.to_dict()["actions"][0]["gives"] == 2 * GiB
    assert "<script" not in report.mimebundle(record)["text/html"]
