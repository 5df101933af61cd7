"""What a checkpoint keeps of its inputs, though C++ alone refers to it."""

from __future__ import annotations

import gc
import sys
import types

import pytest

from jupyter_gpumem.units import MiB
from tests.notebooks import books, take

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint


def double(values, *, offset=None):
    """Save the input, and what comes of it, for the backward pass."""
    return ((values if offset is None else values + offset) * 2).sin().cos()


def loss(**options):
    """Return the result of a checkpoint of 8 MiB, whose input no name leads to any more."""
    weight = torch.ones(MiB // 4, device="cuda", requires_grad=True)
    return checkpoint(double, weight.repeat(8), use_reentrant=False, **options).sum()


@pytest.mark.parametrize("checked", [True, False])
def test_the_inputs_of_a_checkpoint_are_its_results(small_card, checked):
    """They are in the graph of what was computed from them, and go with it; nobody else holds them."""
    y = loss(determinism_check="default" if checked else "none")
    (graph,) = [holder for holder in books(y=y).holders if holder.kind == "graph"]
    assert (graph.name, graph.tensors, graph.allocated) == ("y", 2, 9 * MiB)
    assert graph.detail.startswith("the autograd graph of y, saved by CosBackward0, in a checkpoint")
    assert not [name for name in graph.also if "other code" in name]
    assert not [holder for holder in books(y=y).holders if holder.kind == "other"]
    y.backward()
    assert max(holder.allocated for holder in books(y=y).holders) < 8 * MiB


def test_what_a_checkpoint_is_given_by_name_is_its_results_too(small_card):
    """Arguments that it does not save as inputs lie in the function that computes them again."""
    y = loss(offset=take(8).view(torch.float32))
    (graph,) = [holder for holder in books(y=y).holders if holder.kind == "graph"]
    assert (graph.name, graph.allocated) == ("y", 17 * MiB)
    assert not [name for name in graph.also if "other code" in name]
    assert not [holder for holder in books(y=y).holders if holder.kind == "other"]


def test_what_a_module_keeps_leads_to_the_inputs_of_a_checkpoint(small_card):
    """Also from a result that no name of the notebook leads to."""
    module = types.ModuleType("some_library")
    sys.modules["some_library"] = module
    try:
        module.kept = [loss()]
        found = books().holders
        assert {holder.name for holder in found} == {"module some_library"}
        assert sum(holder.allocated for holder in found) > 9 * MiB
    finally:
        del sys.modules["some_library"]


def test_looking_keeps_no_checkpoint(small_card):
    """When the result is gone, so are the inputs."""
    y = loss()
    books(y=y)
    gc.disable()
    try:
        del y
        assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()
