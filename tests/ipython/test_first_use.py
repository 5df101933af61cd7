"""The first cell that uses the card may be the one that runs out of memory: what it looked like then is kept."""

from __future__ import annotations

import pytest

from jupyter_gpumem.oom import observer
from jupyter_gpumem.virtual import session

torch = pytest.importorskip("torch")

FRAGMENT = """
import torch
def take(mib): return torch.empty(mib * 2**20, dtype=torch.uint8, device='cuda')
def work(): kept = take(15000)
work()
pins = [take(16) for _ in range(4)]
take(15000)
"""


@pytest.fixture
def gpu(on_virtual):
    """Cells with the extension and a virtual GPU of 24 GiB that nothing has used yet."""
    return on_virtual("24GiB")


def waiting():
    """What of ours waits for CUDA to be initialised."""
    return [call for call, _ in torch.cuda._queued_calls if call.__module__ == observer.__name__]


def test_the_first_cell_has_the_advice_of_any_later_one(gpu):
    """The setting that helps comes first, since the allocator's state was kept."""
    outcome = gpu(FRAGMENT)
    assert type(outcome.error).__name__ == "OutOfMemoryError"
    (text,) = (" ".join(text.split()) for text in outcome.texts)
    assert "1. Restart with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
    assert "The state is a later one" not in text
    assert gpu("why = %gpumem_oom -o").error is None
    assert gpu["why"].seen == "when it happened"


def test_waiting_for_the_first_use_starts_nothing(gpu):
    """Cells that use no card wait for it once, and leave it alone."""
    for _ in range(3):
        gpu("1 + 1")
    assert len(waiting()) == 1
    assert not torch.cuda.is_initialized()
    assert session.active().memory.ready == set()


def test_unloading_waits_no_more(gpu):
    """In no list of calls, that of the virtual GPU and the one that was there before."""
    gpu("1 + 1")
    gpu("%unload_ext jupyter_gpumem")
    assert waiting() == []
