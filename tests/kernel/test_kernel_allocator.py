"""The magics that act on the allocator, in a real kernel with a virtual GPU: the same scenarios as on a real one."""

from __future__ import annotations

import pytest

from tests.allocator_scenarios import PREPARE, SCENARIOS, run
from tests.kernel.client import Kernel

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def virtual_kernel():
    """A kernel with a virtual H200, shared by the scenarios."""
    with Kernel() as one:
        run(one, "%load_ext jupyter_gpumem\n%gpumem_virtual on --gpu H200")
        run(one, PREPARE)
        yield one


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_effects(virtual_kernel, scenario):
    """What a magic must bring about is seen in the allocator."""
    expected, found = scenario(virtual_kernel)
    assert found == expected
