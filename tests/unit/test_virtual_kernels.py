"""What kernels take on the virtual GPU, held against what an H200 was seen to take, call by call."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from jupyter_gpumem.virtual import convolutions, reductions  # noqa: E402
from jupyter_gpumem.virtual.cards import parse_cards  # noqa: E402
from jupyter_gpumem.virtual.opening import virtual_gpu  # noqa: E402
from jupyter_gpumem.virtual.recurrent import reserve_bytes, workspace_bytes  # noqa: E402
from jupyter_gpumem.virtual.temporaries import KERNELS  # noqa: E402

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from kernel_fit import check, temporaries, values  # noqa: E402

CALLS = json.loads((BENCHMARKS / "results" / "kernels-h200.json").read_text())["calls"]
NOT_TO_THE_BYTE = {
    "_embedding_bag_backward",  # sparse gradients do not come this way
    "convolution",  # cuDNN's heuristics: a table has those that differ
    "convolution_backward",
    "index_put",  # several index tensors are checked one by one first
    "topk",  # sorts what it selected
}
MEASURED = {call["op"].split(".")[1] for call in CALLS}


@pytest.mark.parametrize("name", sorted(KERNELS.keys() & MEASURED - NOT_TO_THE_BYTE))
def test_a_formula_says_what_every_measured_call_took(name):
    """Sizes, types, layouts: all that were measured."""
    (line,) = check([call for call in CALLS if call["op"].split(".")[1] == name])
    right, _, total = line.removeprefix(f"{name}: ").removesuffix(" calls as said").partition(" of ")
    assert right == total


def test_a_reduction_by_several_blocks_needs_their_partial_results():
    """The gradient of a bias of 32,000 outputs took 147 MB on an H200."""
    assert reductions.temporaries((4096, 32000), (32000, 1), (0,), 4, 132, 2048) == [147456000, 1000]


@pytest.mark.parametrize(
    ("mode", "rows", "hidden", "directions", "itemsize", "seen"),
    [(2, 4480, 650, 1, 4, 128492256), (2, 8192, 512, 2, 2, 186646784), (3, 8192, 768, 1, 2, 164364544)],
)
def test_cudnn_keeps_what_it_was_seen_to_keep(mode, rows, hidden, directions, itemsize, seen):
    """Two LSTMs and a GRU of two layers, with dropout between them."""
    assert reserve_bytes(mode, rows, hidden, 2, directions, itemsize, dropout=True) == seen


@pytest.mark.parametrize(
    ("mode", "values", "itemsize", "weights", "most"),
    [
        (2, 4480 * 650, 4, 4 * 4 * 650 * 651, 124),
        (2, 5044 * 650, 4, 4 * 4 * 650 * 651, 136),
        (2, 8192 * 1024, 2, 8 * 512 * (512 + 512 + 2) + 8 * 512 * (1024 + 512 + 2), 176),
        (3, 8192 * 768, 2, 4 * 3 * 768 * 769, 104),
        (3, 9312 * 768, 2, 4 * 3 * 768 * 769, 114),
    ],
)
def test_cudnn_needs_what_reserved_peaks_tell(mode, values, itemsize, weights, most):
    """Segments come in steps of 2 MiB: with one more or fewer, the peaks of the real runs do not come out."""
    assert most - 2 < workspace_bytes(mode, values, 2, itemsize, weights) / 2**20 <= most


def test_temporaries_are_told_from_results():
    """What stays divides what does not."""
    assert temporaries([5, 10, 7, -7, 20, 8, -8, -5])[:3] == [[5], [7], [8]]


def allocations(function) -> list[int]:
    """Return the sizes that a function asks a virtual H200 for."""
    with virtual_gpu("H200") as gpu:
        weight = torch.randn(512, 1024, device="cuda", requires_grad=True)
        hidden = weight * 2
        loss = function(hidden)
        asked: list[int] = []
        gpu.memory.observers.append(
            lambda kind, _device, _address, size: asked.append(size) if kind == "alloc" else None
        )
        loss.backward()
        return [size for size in asked if size == weight.numel() * 4]


def test_gradients_are_added_up_in_place_as_on_a_real_device():
    """A third branch costs its own gradient's steps, and no block for a sum."""
    two = allocations(lambda h: (h.sin() + h.cos()).sum())
    three = allocations(lambda h: (h.sin() + h.cos() + h.exp()).sum())
    assert len(three) - len(two) == 1


def test_a_gradient_that_a_program_keeps_is_not_added_to():
    """The one a hook was given stays as it was."""
    with virtual_gpu("H200"):
        weight = torch.randn(8, 8, device="cuda", requires_grad=True)
        kept = []
        one, other = weight * 2, weight * 3
        one.register_hook(lambda grad: kept.append(grad))
        (one.sin() + other.cos()).sum().backward()
        assert kept[0].data_ptr() != weight.grad.data_ptr()


def test_a_sparse_gradient_holds_the_rows_that_were_used():
    """And an optimizer can use it."""
    with virtual_gpu("H200"):
        bag = torch.nn.EmbeddingBag(100_000, 64, mode="sum", sparse=True).cuda()
        bag(torch.zeros(50, dtype=torch.int64, device="cuda"), torch.arange(0, 50, 5, device="cuda")).sum().backward()
        assert bag.weight.grad.is_sparse
        assert bag.weight.grad._values().shape == (50, 64)
        torch.optim.SGD(bag.parameters(), lr=0.1).step()


def test_an_operator_without_a_meta_kernel_gets_its_shape_from_the_host():
    """`logcumsumexp` has none."""
    with virtual_gpu("H200"):
        assert torch.logcumsumexp(torch.randn(5, 7, device="cuda"), 1).shape == (5, 7)


# Convolutions with a batch that was not measured


def measured_backward():
    """Yield card, arguments and what was taken for both gradients, of each measured backward convolution."""
    card = parse_cards("H200")[0]
    for call in CALLS:
        if call["op"].startswith("aten.convolution_backward"):
            args, _ = values(call)
            if args[10][0] and args[10][1]:
                took = temporaries(call["events"])
                yield card, args, [max(sizes, default=0) for sizes in took[1:3]]


def test_a_workspace_of_another_batch_is_taken_from_the_measured_one(monkeypatch):
    """Without its own line in the table, a layer is more often right by its other batch than by formula."""
    table = convolutions.measured()
    layers = {}
    for name in table:
        layers.setdefault(convolutions.layer_of(name)[0], []).append(name)
    by_batch, by_formula, total = 0, 0, 0
    for card, args, took in measured_backward():
        name = convolutions.key("backward", args[1], args[2], args[4:10])
        if len(layers.get(convolutions.layer_of(name)[0], ())) < 2 or name not in table:
            continue
        without = {other: sizes for other, sizes in table.items() if other != name}
        monkeypatch.setattr(convolutions, "measured", lambda without=without: without)
        convolutions._batches.cache_clear()
        seen = convolutions._seen("backward", args[1], args[2], args[0], args[4:10])
        formula = convolutions.backward_formula(card, args)
        for one, other, real in zip(seen, formula, took, strict=True):
            by_batch += abs(one - real) <= max(65536, 0.003 * real)
            by_formula += abs(other - real) <= max(65536, 0.003 * real)
            total += 1
    monkeypatch.undo()
    convolutions._batches.cache_clear()
    assert total >= 30
    assert by_batch >= 0.8 * total
    assert by_batch > 1.3 * by_formula


def test_copies_in_a_workspace_grow_with_the_batch():
    """Input and output once each, with a rest that stays: 64 pictures as measured, from what 32 took."""
    x = torch.empty(64, 64, 56, 56, dtype=torch.bfloat16, device="meta")
    assert convolutions._grown(27681447, 32, 64, x, x) == 53371559
    assert convolutions._grown(131, 32, 64, x, x) == 131
    few = torch.empty(64, 3, 224, 224, dtype=torch.float16, device="meta")
    out = torch.empty(64, 64, 112, 112, dtype=torch.float16, device="meta")
    assert convolutions._grown(64250384, 32, 64, few, out) == 128475664, "three channels are filled up to four"


# Layouts and places of results


def usual(tensor):
    """Return a tensor of this shape in another order of dimensions."""
    return torch.randn(*reversed(tensor.shape), device="cuda").permute(*reversed(range(tensor.dim())))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:]),
        lambda x: torch.log_softmax(x, -1),
        lambda x: torch.nn.functional.mse_loss(x, torch.zeros_like(x), reduction="none"),
    ],
)
def test_gradients_that_cuda_gives_in_the_usual_layout(function):
    """Whatever the order of what comes in."""
    with virtual_gpu("H200"):
        x = torch.randn(4, 5, 6, device="cuda", requires_grad=True)
        out = function(x)
        (grad,) = torch.autograd.grad(out, x, usual(out))
        assert grad.is_contiguous()


def test_layouts_that_results_take_over():
    """Also where PyTorch first makes an empty result; and a size that is there already changes nothing."""
    with virtual_gpu("H200"):
        x = usual(torch.empty(4, 5))
        assert torch.abs(x).stride() == x.stride()
        assert torch.isinf(x).stride() == x.stride()
        assert x.clone().resize_(4, 5).stride() == x.stride()
        assert x.clone().resize_(5, 4).stride() == (4, 1)


def test_attention_keeps_its_state_of_random_numbers_where_cuda_does():
    """In host memory for the efficient kernel; and cuDNN keeps no sums where no gradient will be asked for."""
    with virtual_gpu("H200") as gpu:
        single = torch.randn(2, 4, 128, 64, device="cuda", requires_grad=True)
        asked: list[int] = []
        gpu.memory.observers.append(
            lambda kind, _device, _address, size: asked.append(size) if kind == "alloc" else None
        )
        out = torch.nn.functional.scaled_dot_product_attention(single, single, single)
        assert asked == [out.numel() * 4, 2 * 4 * 128 * 4]
        asked.clear()
        with torch.no_grad():
            half = single.half()
            asked.clear()
            torch.nn.functional.scaled_dot_product_attention(half, half, half)
        assert asked == [half.numel() * 2, 8, 8, 256]


@pytest.mark.parametrize(("kind", "kept"), [(torch.nn.GRUCell, 5), (torch.nn.LSTMCell, 4)])
def test_cells_of_recurrent_layers_keep_their_gates(kind, kept):
    """A GRU's cell keeps five values for each of its state's, an LSTM's four; both learn."""
    with virtual_gpu("H200") as gpu:
        x, cell = torch.randn(8, 16, device="cuda"), kind(16, 32).cuda()
        asked: list[int] = []
        gpu.memory.observers.append(
            lambda what, _device, _address, size: asked.append(size) if what == "alloc" else None
        )
        state = cell(x)
        hidden = state if kept == 5 else state[0]
        assert asked[-1] == 8 * 32 * kept * 4
        assert hidden.shape == (8, 32)
        hidden.sum().backward()
        assert [param.grad.shape for param in cell.parameters()] == [param.shape for param in cell.parameters()]


def test_a_recurrent_layer_under_autocast_allocates_in_the_order_of_the_real_one():
    """First cuDNN's random numbers, then the copy of the weights; gradients from the weight that was copied last."""
    with virtual_gpu("H200") as gpu:
        layer = torch.nn.LSTM(512, 256, 2, dropout=0.5, bidirectional=True).cuda()
        x = torch.randn(8, 4, 512, device="cuda")
        asked: list[int] = []
        gpu.memory.observers.append(
            lambda what, _device, _address, size: asked.append(size) if what == "alloc" else None
        )
        with torch.autocast("cuda", torch.bfloat16):
            loss = layer(x)[0].float().sum()
        card = gpu.memory.cards[0]
        copy = sum(param.numel() for param in layer.parameters()) * 2
        assert asked.index(card.multiprocessors * card.threads * 24) < asked.index(copy)
        asked.clear()
        loss.backward()
        sizes = [param.numel() * 4 for param in layer.parameters()]
        assert len(set(sizes)) == 3
        assert asked[-len(sizes) :] == sizes[::-1]


@pytest.mark.parametrize(("batch_first", "copies"), [(False, 0), (True, 2)])
def test_a_recurrent_layer_copies_its_input_only_where_the_batch_comes_first(batch_first, copies):
    """Backward, cuDNN gets time first: a copy for the gradient of the input, and one for those of the weights."""
    with virtual_gpu("H200") as gpu:
        layer = torch.nn.LSTM(512, 64, batch_first=batch_first).cuda()
        x = torch.randn(8, 4, 512, device="cuda", requires_grad=True)
        out = layer(x)[0]
        grad = torch.ones_like(out)
        asked: list[int] = []
        gpu.memory.observers.append(
            lambda what, _device, _address, size: asked.append(size) if what == "alloc" else None
        )
        of_input, *_ = torch.autograd.grad(out, [x, *layer.parameters()], grad)
        assert of_input.shape == x.shape
        assert asked.count(x.numel() * 4) == copies + 1


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_compute_in_half_precision_under_any_autocast(kind):
    """PyTorch casts to float16 for cuDNN also where bfloat16 is asked for; double precision stays."""
    with virtual_gpu("H200"):
        x, layer = torch.randn(8, 4, 16, device="cuda"), kind(16, 32).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            assert layer(x)[0].dtype == torch.float16
            assert layer.double()(x.double())[0].dtype == torch.float64
