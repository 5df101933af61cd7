"""On a real device, through a real kernel: twenty ways of keeping memory, each named, and the notebook's released."""

from __future__ import annotations

import pytest

from tests.holding_scenarios import PREPARE, SCENARIOS, play
from tests.kernel.client import prepared


@pytest.fixture(scope="module")
def kernel():
    """A kernel prepared for the scenarios."""
    with prepared(PREPARE) as one:
        yield one


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_scenario(kernel, scenario):
    """The holder is named right, the books close to the byte, and what the notebook held comes back."""
    found = play(kernel, scenario)
    assert found.named, found.holder
    assert found.closes, found
    assert found.returned, found
