"""Pinned memory of the host beside a virtual GPU, which has no allocator for it: ordinary memory that says it is."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
nn, fx = torch.nn, pytest.importorskip("torch.fx")

from jupyter_gpumem.prediction import predict  # noqa: E402
from jupyter_gpumem.virtual import session  # noqa: E402

LIKE = {
    "empty_like": (),
    "full_like": (2.0,),
    "ones_like": (),
    "rand_like": (),
    "randint_like": (3,),
    "randn_like": (),
    "zeros_like": (),
}
NEW = {
    "new_empty": (3,),
    "new_empty_strided": ((3,), (1,)),
    "new_full": ((3,), 2.0),
    "new_ones": (3,),
    "new_zeros": (3,),
}
COPIES = {
    "to": lambda x: x.to("cpu", non_blocking=True),
    "to a type": lambda x: x.to("cpu", torch.float16, True, copy=True),
    "to another": lambda x: x.to(torch.ones(2), non_blocking=True),
    "type": lambda x: x.type(torch.FloatTensor, non_blocking=True),
    "module": lambda x: nn.Linear(4, 4, device=x.device).to("cpu", non_blocking=True).weight,
    "operator": lambda x: torch.ops.aten._to_copy(x, device="cpu", pin_memory=True),
    "into pinned": lambda x: torch.empty(3, 4, pin_memory=True).copy_(x, non_blocking=True),
}


@pytest.fixture
def gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values do not exist, and are not asked for here
        yield session.start("T4")
    assert session.stop() == []


@pytest.mark.parametrize("name", COPIES)
def test_copies_that_do_not_block_are_pinned(gpu, name):
    """As CUDA's are."""
    copy = COPIES[name](torch.randn(3, 4, device="cuda"))
    assert copy.is_cpu
    assert copy.is_pinned()


def test_other_copies_are_not(gpu):
    """A copy that blocks is ordinary memory, and one on the card is none of the host's."""
    x = torch.randn(3, 4, device="cuda")
    assert not x.cpu().is_pinned()
    assert not x.to("cpu").is_pinned()
    assert not torch.ones(3, 4).copy_(x, non_blocking=True).is_pinned()
    assert x.copy_(torch.ones(3, 4), non_blocking=True).is_cuda
    assert torch.ones(2).to(x, non_blocking=True).is_cuda
    assert x.to(torch.float16, non_blocking=True).is_cuda
    assert not torch.sparse_coo_tensor([[0]], [1.0], (3,), device="cuda").to("cpu", non_blocking=True).is_pinned()


def test_gradients_come_through_a_copy_that_does_not_block(gpu):
    """It is a step of the graph as any copy is."""
    x = torch.randn(3, 4, device="cuda", requires_grad=True)
    x.to("cpu", non_blocking=True).sum().backward()
    assert x.grad.is_cuda


@pytest.mark.parametrize("name", LIKE)
def test_functions_that_make_one_like_another_pin(gpu, name):
    """Of a tensor of the card and of one of the host."""
    make = getattr(torch, name)
    for one in (torch.randn(3, 4, device="cuda"), torch.ones(3, 4)):
        assert make(one, *LIKE[name], device="cpu", pin_memory=True).is_pinned()
        assert make(one, *LIKE[name]).device == one.device
        assert make(one, *LIKE[name], device="cuda").is_cuda


@pytest.mark.parametrize("name", NEW)
def test_methods_that_make_a_new_one_pin(gpu, name):
    """Of a tensor of the card and of one of the host."""
    for one in (torch.randn(3, 4, device="cuda"), torch.ones(3, 4)):
        assert getattr(one, name)(*NEW[name], device="cpu", pin_memory=True).is_pinned()


def test_other_factories_pin(gpu):
    """Also one that makes a sparse tensor, which has no storage to be pinned."""
    assert torch.normal(0.0, 1.0, (3,), pin_memory=True).is_pinned()
    assert not torch.sparse_coo_tensor([[0]], [1.0], (3,), pin_memory=True).is_pinned()


def test_traced_code_knows_the_functions(gpu):
    """`torch.fx` looks for them by their identity; what it makes outlives the virtual GPU."""

    class Module(nn.Module):
        def forward(self, x):
            return x + torch.zeros_like(x) + torch.ones_like(x, device=x.device)

    traced = fx.symbolic_trace(Module())
    assert "torch.zeros_like(x)" in traced.code
    assert traced(torch.ones(2, device="cuda")).is_cuda
    assert torch.jit.script(Module())(torch.ones(2, device="cuda")).is_cuda


def test_predictions_of_copies_that_do_not_block():
    """They come to an end, with the memory that the code takes."""

    def code():
        layer = nn.Linear(1024, 1024, bias=False).cuda()
        kept = {name: value.to("cpu", non_blocking=True) for name, value in layer.state_dict().items()}
        buffer = torch.empty_like(layer.weight, device="cpu", pin_memory=True)
        buffer.data.copy_(layer.weight.data, non_blocking=True)
        layer.to("cpu", non_blocking=True)
        return kept

    assert predict(code, gpu="T4").devices[0].peak_allocated == 4 << 20
