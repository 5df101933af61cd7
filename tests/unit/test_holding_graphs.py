"""What autograd graphs hold, and what hooks do: of modules, of tensors and of the graphs themselves."""

from __future__ import annotations

import sys

import pytest

from jupyter_gpumem.units import MiB
from tests.notebooks import books, lines, take

torch = pytest.importorskip("torch")


def test_a_long_graph_is_walked(small_card):
    """A graph of 20,000 nodes is no recursion, and what its nodes saved is found."""
    total, unit = 0, torch.ones(1, device="cuda", requires_grad=True)
    for _ in range(5_000):
        total = total + (torch.ones(100, device="cuda") * unit).sum()
    found = lines(books(total=total, unit=unit))
    assert found["graph", "total"].tensors == 5_000
    assert "autograd graph of total, saved by MulBackward0" in found["graph", "total"].detail


def test_what_an_operator_saved_alone_is_found_through_the_graph(small_card):
    """A dropout mask that never was a Python object is counted with its graph, not lost (case O6)."""
    x = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.5)
    z = torch.nn.functional.layer_norm(y, (1024,)).sum()
    del y
    record = books(x=x, z=z)
    assert record.unattributed == 0
    assert lines(record)["graph", "z"].allocated >= 5 * MiB


def test_unpacking_hooks_are_not_run(small_card):
    """What a saved-tensor hook packed is followed, and its other half is not called."""
    called = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: {"packed": t.detach()}, called.append):
        y = (torch.ones(1024, 1024, device="cuda", requires_grad=True) * 2).exp()
    z = y.sum()
    del y
    found = lines(books(z=z))
    assert called == []
    assert found["graph", "z"].allocated >= 4 * MiB


def test_older_versions_of_pytorch(small_card, monkeypatch):
    """Where what was saved can only be had by unpacking it, that is done unless a hook would run."""
    from jupyter_gpumem.holding import tensors

    called = []

    def unpack(packed):
        called.append(packed)
        return packed

    class Old(tensors.Torch):
        def __init__(self, torch):
            super().__init__(torch)
            self._shows_data = False

    monkeypatch.setattr(tensors, "Torch", Old)
    x = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    z = (x * 2).exp().sum()
    assert lines(books(x=x, z=z))["graph", "z"].allocated >= 4 * MiB
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
        hooked = (x * 2).exp().sum()
    before = sys.getprofile()
    found = lines(books(x=x, hooked=hooked))
    assert called == []
    assert sys.getprofile() is before
    assert ("graph", "hooked") not in found


def test_a_freed_graph_holds_nothing(small_card):
    """After a backward pass the nodes are there, and what they saved is gone."""
    x = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    loss = (x * x).exp().sum()
    loss.backward()
    x.grad = None
    assert ("graph", "loss") not in {key: h for key, h in lines(books(x=x, loss=loss)).items() if h.allocated >= MiB}


def test_custom_functions(small_card):
    """What `ctx` keeps, saved or as an attribute, is the graph's."""

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(take(16))
            ctx.extra = take(8)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    y = Keep.apply(torch.ones(4, device="cuda", requires_grad=True))
    assert lines(books(y=y))["graph", "y"].allocated >= 24 * MiB


def test_hooks(small_card):
    """What a hook's function holds is the hook's."""
    model = torch.nn.Linear(4, 4).cuda()

    kept = take(16)

    def record(*_, kept=kept):
        """Keep it."""

    model.register_forward_hook(record)
    del record, kept
    found = lines(books(model=model))
    assert found["hook", "model"].allocated == 16 * MiB
    assert "_forward_hooks" in found["hook", "model"].detail


def keeping(kept):
    """Return a function that keeps something, as a hook that has to do with it does."""
    return lambda *_: kept and None


@pytest.mark.parametrize(
    ("register", "where"),
    [("register_hook", "_backward_hooks"), ("register_post_accumulate_grad_hook", "_post_accumulate_grad_hooks")],
)
def test_hooks_of_tensors(small_card, register, where):
    """They are a tensor's hooks as those of a module are a module's, and no part of the tensor."""
    weight = torch.ones(4, device="cuda", requires_grad=True)
    getattr(weight, register)(keeping(take(16)))
    found = lines(books(weight=weight))
    assert found["hook", "weight"].allocated == 16 * MiB
    assert found["hook", "weight"].detail.startswith(f"weight.{where}[")
    assert found["hook", "weight"].detail.endswith("(closure variable kept of keeping.<lambda>)")
    assert found["variable", "weight"].allocated == 512


def test_hooks_of_a_graph(small_card):
    """No node that a tensor refers to shows its own, and a hook of a tensor that is gone is its node's."""
    weight = torch.ones(4, device="cuda", requires_grad=True)
    between = weight.exp()
    between.register_hook(keeping(take(1)))
    total = between.sum()
    del between
    total.grad_fn.register_hook(keeping(take(2)))
    total.grad_fn.register_prehook(keeping(take(4)))
    record = books(weight=weight, total=total)
    hooks = [h for h in record.holders if h.name == "a hook of an autograd graph"]
    assert [h.allocated // MiB for h in hooks] == [4, 2, 1]
    assert {h.detail for h in hooks} == {"a hook of an autograd graph (closure variable kept of keeping.<lambda>)"}


def test_what_a_node_shows(small_card):
    """A node that no tensor refers to shows its hooks, and that of a custom function its attributes."""

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.extra = take(8)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    weight = torch.ones(4, device="cuda", requires_grad=True)
    kept, node = Keep.apply(weight), weight.exp().grad_fn
    node.register_hook(keeping(take(4)))
    found = lines(books(kept=kept, node=node, weight=weight))
    assert found["graph", "kept"].detail == "the autograd graph of kept, kept by KeepBackward.extra"
    assert found["variable", "node"].detail.startswith("node, hooks of ExpBackward0[")
