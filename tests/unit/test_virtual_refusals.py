"""What a real card refuses, the virtual one refuses as well, at the same line and in PyTorch's words."""

from __future__ import annotations

import io
import re
import warnings

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from jupyter_gpumem.errors import UnavailableError  # noqa: E402
from jupyter_gpumem.virtual import session  # noqa: E402
from jupyter_gpumem.virtual.notes import VirtualValueWarning  # noqa: E402


@pytest.fixture(autouse=True)
def gpu():
    yield session.start("2xH200")
    assert session.stop() == []


def on(*size, **options):
    return torch.zeros(*size, device="cuda", **options)


def half(*size):
    return on(*size, dtype=torch.float16)


def places(*values):
    return torch.tensor(values, device="cuda")


def put(target, indices, values):
    target[indices] = values


MIXED_DEVICES = {
    "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same": lambda: nn.Conv2d(
        1, 1, 1
    ).cuda()(torch.zeros(1, 1, 2, 2)),
    "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same": lambda: nn.Conv2d(
        1, 1, 1
    )(on(1, 1, 2, 2)),
    "Input and parameter tensors are not at the same device, found input tensor at cpu and parameter tensor at": (
        lambda: nn.LSTM(3, 4).cuda()(torch.zeros(2, 1, 3))
    ),
    "Input and hidden tensors are not at the same device, found input tensor at cuda:0 and hidden tensor at cpu": (
        lambda: nn.GRU(3, 4).cuda()(on(2, 1, 3), torch.zeros(1, 1, 4))
    ),
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!": lambda: put(
        on(4, 4), places(0, 1), torch.zeros(2, 4)
    ),
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!": lambda: (
        on(2) + torch.zeros(2, device="cuda:1")
    ),
    "Expected a 'cuda' device type for generator but found 'cpu'": lambda: torch.randn(
        2, device="cuda", generator=torch.Generator()
    ),
    "Expected a 'cpu' device type for generator but found 'cuda'": lambda: torch.randn(
        2, generator=torch.Generator("cuda")
    ),
}
MIXED_TYPES = {
    "expected mat1 and mat2 to have the same dtype, but got: float != c10::Half": lambda: on(2, 2) @ half(2, 2),
    "mat1 and mat2 must have the same dtype, but got Half and Float": lambda: nn.Linear(2, 2).cuda()(half(1, 2)),
    "expected scalar type Float but found Half": lambda: torch.bmm(on(1, 2, 2), half(1, 2, 2)),
    "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same": lambda: F.conv2d(
        half(1, 1, 2, 2), on(1, 1, 1, 1)
    ),
    "Index put requires the source and destination dtypes match, got Half for the destination and Float for the": (
        lambda: put(half(4, 4), places(0, 1), on(2, 4))
    ),
    "\"addmm_cuda\" not implemented for 'Long'": lambda: places(1, 2).view(1, 2) @ places(1, 2).view(2, 1),
    "\"host_softmax\" not implemented for 'Long'": lambda: places(1, 2).softmax(0),
    "masked_fill_ only supports boolean masks, but got mask with dtype long int": lambda: on(2).masked_fill(
        places(0, 1), 0.0
    ),
    "value cannot be converted to type at::Half without overflow": lambda: half(2).masked_fill(on(2) > 0, -1e9),
}
SHAPES = {
    "Given groups=1, weight of size [4, 3, 3, 3], expected input[1, 1, 8, 8] to have 3 channels, but got 1 channels": (
        lambda: nn.Conv2d(3, 4, 3).cuda()(on(1, 1, 8, 8))
    ),
    "shape mismatch: value tensor of shape [2, 4] cannot be broadcast to indexing result of shape [3, 4]": lambda: put(
        on(4, 4), places(0, 1, 2), on(2, 4)
    ),
    "shape mismatch: value tensor of shape [3, 2] cannot be broadcast to indexing result of shape [2, 5]": lambda: put(
        on(4, 5, 6), (places(0, 1), slice(None), places(0, 1)), on(3, 2)
    ),
    "The expanded size of the tensor (4) must match the existing size (3) at non-singleton dimension 1": lambda: on(
        4, 4
    ).masked_fill_(on(3) > 0, 0.0),
    "The size of tensor a (4) must match the size of tensor b (3) at non-singleton dimension 1": lambda: on(4, 4).copy_(
        on(3)
    ),
    "output with shape [1] doesn't match the broadcast shape [4]": lambda: on(1).copy_(on(4)),
    "cannot sample n_sample > prob_dist.size(-1) samples without replacement": lambda: torch.multinomial(on(3), 5),
    "Boolean value of Tensor with more than one value is ambiguous": lambda: bool(on(2) > 0),
    "Trying to create tensor with negative dimension -1: [2, -1]": lambda: torch.empty(2, -1, device="cuda"),
    "Trying to create tensor with negative dimension -1: [-1]": lambda: torch.randn(-1, device="cuda"),
    "Storage size calculation overflowed with sizes=[4611686018427387904, 2]": lambda: on(2**62, 2),
    "Boolean value of Tensor with no values is ambiguous": lambda: bool(on(0) > 0),
}


@pytest.mark.parametrize("said", MIXED_DEVICES | MIXED_TYPES | SHAPES)
def test_mistakes_are_refused_in_pytorchs_words(said):
    """Devices, types, shapes and values that do not go together; twice, as what was checked is remembered."""
    mistake = (MIXED_DEVICES | MIXED_TYPES | SHAPES)[said]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=re.escape(said)):
            mistake()


def test_what_looks_alike_and_is_allowed():
    """Casts, scalars, masks and broadcasting that a real card takes."""
    warnings.simplefilter("ignore", VirtualValueWarning)
    put(half(4), on(4) > 0, -1.0)
    put(half(4, 4), on(4, 4) > 0, on(()))
    put(on(4, 4), (places(0, 1), places(0, 1)), torch.tensor(2.0))
    put(on(4, 4), torch.tensor([0, 1]), on(4))
    put(on(4, 5, 6), (places(0, 1), slice(None), places(0, 1)), on(2, 5))
    put(on(4, 5), (slice(None), places(0, 1)), on(4, 2))
    assert half(2).masked_fill(on(2) > 0, float("-inf")).dtype == torch.float16
    assert on(2, dtype=torch.bfloat16).fill_(-1e9).dtype == torch.bfloat16
    assert on(2, dtype=torch.bool).fill_(2).dtype == torch.bool
    assert places(1).fill_(2**40).item() == 2**40
    assert torch.multinomial(on(3), 5, replacement=True).shape == (5,)
    with torch.autocast("cuda", dtype=torch.float16):
        assert (on(2, 2) @ half(2, 2)).dtype == torch.float16
    assert torch.randn(2, device="cuda", generator=torch.Generator("cuda")).is_cuda
    assert on(4, 4).copy_(on(4)).shape == (4, 4)


UNKNOWN = {
    "a sparse tensor": lambda: on(3, 3).to_sparse(),
    "a compressed one": lambda: on(3, 3).to_sparse_csr(),
    "a product with a compressed one": lambda: torch.eye(3).to_sparse_csr().cuda() @ on(3, 3),
    "a quantized tensor": lambda: torch.quantize_per_tensor(on(3), 0.1, 0, torch.qint8),
    "a quantized tensor of the host": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).cuda(),
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_tensors_that_are_not_modelled_are_refused_in_a_line(make):
    """None becomes a dense tensor of another type, which takes another amount of memory."""
    with pytest.raises(UnavailableError, match=r"not known to a virtual GPU, at .*; run this line on the CPU$"):
        make()


@pytest.mark.parametrize("kind", ["Linear", "LSTM", "GRU"])
def test_quantized_layers_are_refused_in_a_line(kind):
    """Their weights stay in host memory whatever they are moved to, and no kernel of CUDA's knows them."""
    kind = getattr(torch.nn, kind)
    layer = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(kind(8, 8)), {kind}).cuda()
    with pytest.raises(
        UnavailableError, match=r"of a quantized layer is not known .* at .*; run this line on the CPU$"
    ):
        layer(on(2, 1, 8))


SCRIPTED = {
    "scripted": lambda: torch.jit.script(torch.nn.Linear(8, 8)),
    "inside another": lambda: torch.nn.Sequential(torch.jit.script(torch.nn.Linear(8, 8))),
    "traced": lambda: torch.jit.trace(torch.nn.BatchNorm1d(8, affine=False), torch.ones(2, 8)),
    "loaded": lambda: loaded(),
}
MOVES = {
    "cuda": lambda module: module.cuda(),
    "to": lambda module: module.to("cuda:0"),
    "to a type as well": lambda module: module.to("cuda", torch.float16),
}


def loaded(**options):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(8, 8)), file)
    file.seek(0)
    return torch.jit.load(file, **options)


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("make", SCRIPTED.values(), ids=SCRIPTED)
def test_modules_of_torchscript_are_not_moved_in_part(make, move):
    """Their parameters would stay where they are, without a word; nothing of them has moved then."""
    module = make()
    with pytest.raises(UnavailableError, match="cannot move a TorchScript module; move the module before"):
        move(module)
    assert all(tensor.is_cpu for tensor in (*module.parameters(), *module.buffers()))


def test_what_can_be_done_with_modules_of_torchscript():
    """What the error advises, and what moves nothing."""
    x = on(2, 8)
    assert torch.jit.script(torch.nn.Linear(8, 8).cuda())(x).is_cuda
    assert torch.jit.trace(torch.nn.Linear(8, 8).cuda(), x, check_trace=False)(x).is_cuda
    module = loaded(map_location="cuda")
    assert module.cuda()(x).is_cuda
    assert module.half()(x.half()).dtype == torch.float16
    assert torch.jit.script(torch.nn.Linear(8, 8)).cpu().double()(torch.ones(2, 8).double()).is_cpu
    warnings.simplefilter("error", VirtualValueWarning)  # no value is asked for
    with pytest.raises(UnavailableError, match="cannot move a TorchScript module"):
        module.cpu()


def test_a_nested_tensor_is_shown():
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device="cuda")
    assert str(nested) == "tensor(..., device='cuda:0')"
