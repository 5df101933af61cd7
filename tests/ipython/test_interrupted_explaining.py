"""Ctrl-C while the error of a cell is explained or let go of: it ends that, in one line, and nothing is lost."""

from __future__ import annotations

import pytest

from jupyter_gpumem import letting_go
from jupyter_gpumem.oom import explaining
from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")

PREPARE = """
import torch, jupyter_gpumem as gm
def take(mib): return torch.empty(mib * 2**20, dtype=torch.uint8, device='cuda')
def fail():
    kept = take(64)
    return take(5000)
kept = take(5000)
"""


@pytest.fixture
def gpu(on_virtual):
    """Cells with the extension and a virtual GPU of 8 GiB; `fail()` runs out of its memory while it holds 64 MiB."""
    return on_virtual("8GiB", PREPARE)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_what_is_known_stays_when_explaining_is_interrupted(gpu, monkeypatch):
    """One line below the error, and then `%gpumem_oom` shows the numbers of the moment, without who holds what."""
    with monkeypatch.context() as patch:
        patch.setattr(explaining, "survey", interrupt)
        outcome = gpu("%%gpumem -q -v cost\nfail()")
    assert type(outcome.error).__name__ == "OutOfMemoryError"
    assert outcome.texts == ["Explaining the error was interrupted; %gpumem_oom shows what is known."]
    assert "Error in callback" not in outcome.stdout + outcome.stderr
    (text,) = (" ".join(text.split()) for text in gpu("%gpumem_oom").texts)
    assert text.startswith("Out of memory · cuda:0 requested 4.88 GiB")
    assert "Too much for the card" in text
    assert "The search for who holds the memory was interrupted; %gpumem_who says who does now." in text
    assert "a later one" not in text
    assert gpu["cost"].oom.seen == "when it happened"
    assert gpu("%gpumem -o").value.last_oom.cell == gpu.shell.execution_count - 3


def test_the_next_error_is_explained_as_ever(gpu, monkeypatch):
    """Nothing of the interrupted one is left over."""
    with monkeypatch.context() as patch:
        patch.setattr(explaining, "survey", interrupt)
        gpu("fail()")
    assert "The largest holders: kept 4.88 GiB" in " ".join(gpu("fail()").texts[0].split())


def test_letting_go_that_is_interrupted_says_so(gpu, monkeypatch):
    """The error stays then, and `%gpumem_free` lets go of it."""
    gpu("%gpumem_auto --free-errors on")
    with monkeypatch.context() as patch:
        patch.setattr(letting_go, "survey", interrupt)
        outcome = gpu("fail()")
    assert outcome.texts[1:] == ["Letting go of the error was interrupted; %gpumem_free does it."]
    assert "Error in callback" not in outcome.stdout + outcome.stderr
    assert torch.cuda.memory_allocated() == 5064 * MiB
    del outcome  # an error that somebody else has too keeps its frames
    gpu("%gpumem_free -q")
    assert torch.cuda.memory_allocated() == 5000 * MiB
