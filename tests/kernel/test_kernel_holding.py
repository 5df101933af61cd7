"""Who holds memory and letting go of it, through a real kernel with a virtual GPU."""

from __future__ import annotations

import pytest
from client import Kernel

from tests.holding_scenarios import PREPARE, SCENARIOS, play

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def virtual():
    """A kernel with a virtual GPU of 24 GiB, for all tests of the module."""
    with Kernel() as kernel:
        switch_on = "%load_ext jupyter_gpumem\n%gpumem_virtual on --gpu 24GiB"
        assert kernel.run(switch_on, store_history=False).status == "ok"
        reply = kernel.run(PREPARE, store_history=False)
        assert reply.status == "ok", reply.shown
        yield kernel


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_scenario(virtual, scenario):
    """The holder is named right, the books close, and what the notebook held comes back."""
    found = play(virtual, scenario)
    assert found.named, found.holder
    assert found.closes, found
    assert found.returned, found
