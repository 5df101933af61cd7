"""The virtual device in this process: what programs see of it, and what its memory does, to the byte."""

from __future__ import annotations

import copy
import io
import math
import threading
import warnings

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem.errors import UnavailableError
from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from jupyter_gpumem.virtual import registry, session  # noqa: E402
from jupyter_gpumem.virtual.values import VirtualValueWarning  # noqa: E402

WORKSPACES = 65 * MiB  # on an H200: cuBLAS forwards and backwards 32 MiB each, cuBLASLt 1 MiB


@pytest.fixture
def gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VirtualValueWarning)
        started = session.start("H200")
        yield started
        left = session.stop()
    assert left == []


def allocated() -> int:
    return torch.cuda.memory_allocated()


def randn(*size, **options):
    return torch.randn(*size, device="cuda", **options)


# What users write and read


def test_a_tensor_of_a_virtual_gpu_that_was_on_before_says_nothing_of_streams():
    """Its address is given out again: what lies there now is not put off for a stream that the old one was used on."""
    with gm.virtual_gpu("T4"):
        old = torch.empty(32 * MiB, dtype=torch.uint8, device="cuda")
    with gm.virtual_gpu("T4"):
        new = torch.empty(32 * MiB, dtype=torch.uint8, device="cuda")
        assert new.data_ptr() == old.data_ptr()
        old.record_stream(torch.cuda.Stream())
        del new
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0
        new = torch.empty(32 * MiB, dtype=torch.uint8, device="cuda")
        new.record_stream(torch.cuda.Stream())
        del new
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 32 * MiB


def test_every_way_to_get_to_the_device(gpu):
    host = torch.ones(2, 3)
    made = (
        torch.zeros(2, 3, device="cuda"),
        torch.empty(2, 3, device=torch.device("cuda")),
        torch.tensor([1.0], device="cuda:0"),
        torch.as_tensor([1, 2], device="cuda"),
        torch.ones_like(host, device="cuda"),
        torch.arange(5, device=0),
        host.cuda(),
        host.cuda(0, non_blocking=True),
        host.to("cuda"),
        host.to(0),
        host.to(device="cuda", dtype=torch.float16, non_blocking=True),
        host.to(torch.zeros(1, device="cuda")),
        host.new_zeros(3, device="cuda"),
        host.pin_memory().cuda(),
        nn.Linear(2, 2, device="cuda").weight,
        nn.Linear(2, 2).cuda().weight,
        nn.Linear(2, 2).to("cuda").weight,
        torch.cuda.FloatTensor(2) if hasattr(torch.cuda.FloatTensor, "dtype") else host.cuda(),
        torch.randn(2, device="cuda", generator=torch.Generator("cuda").manual_seed(0)),
    )
    for tensor in made:
        assert tensor.device == torch.device("cuda", 0)
        assert tensor.is_cuda
        assert not tensor.is_cpu
    assert str(made[0].device) == "cuda:0"
    assert made[0].type() == "torch.cuda.FloatTensor"
    assert repr(made[0]) == "tensor(..., device='cuda:0', size=(2, 3))"
    assert "cuda:0" in repr(nn.Parameter(made[0]))
    assert made[0].untyped_storage().device == torch.device("cuda", 0)


def test_default_devices(gpu):
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda
        assert torch.tensor([1.0]).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
    torch.set_default_device("cuda")
    try:
        assert torch.arange(3).is_cuda
        assert torch.tensor(3).is_cuda
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).is_cpu


def test_a_function_imported_before_is_translated_too(gpu):
    # It is the plain C function: nothing of ours sees the device's name.
    assert PLAIN_ZEROS(3, device="cuda").device == torch.device("cuda", 0)


PLAIN_ZEROS = torch.zeros


def test_threads_see_the_same_device(gpu):
    found = []

    def work():
        layer = nn.Linear(4, 4).cuda()
        layer(randn(2, 4)).sum().backward()
        found.append(layer.weight.grad.device)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [torch.device("cuda", 0)]


def test_modules_keep_their_parameters(gpu):
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([1, 2])).sum().backward()
    seen = []
    weight.register_hook(lambda grad: seen.append(grad.device.type))
    model.cuda()
    assert model[0].weight is weight
    assert model[1].weight is weight
    assert weight.is_cuda
    assert weight.grad.is_cuda
    assert weight.requires_grad
    assert weight.is_leaf
    assert optimizer.param_groups[0]["params"][0] is weight
    model(torch.tensor([1, 2], device="cuda")).sum().backward()
    optimizer.step()
    assert seen == ["cuda"]
    assert optimizer.state[weight]["exp_avg"].is_cuda
    model.cpu()
    assert model[0].weight is weight
    assert weight.is_cpu


def test_casts_of_modules_on_the_device(gpu):
    layer = nn.Linear(4, 4).cuda()
    weight = layer.weight
    layer.to(torch.bfloat16)
    assert layer.weight is weight
    assert weight.dtype == torch.bfloat16
    assert layer(randn(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "mix",
    [
        lambda: torch.zeros(2, device="cuda") + torch.zeros(2),
        lambda: nn.Linear(2, 2).cuda()(torch.zeros(2, 2)),
        lambda: nn.Linear(2, 2)(torch.zeros(2, 2, device="cuda")),
        lambda: nn.Embedding(4, 2).cuda()(torch.zeros(2, dtype=torch.long)),
        lambda: torch.cat([torch.zeros(2, device="cuda"), torch.zeros(2)]),
    ],
)
def test_devices_do_not_mix(gpu, mix):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device") as error:
        mix()
    assert "cuda" in str(error.value)
    assert "cpu" in str(error.value)


def test_scalars_on_the_host_do_mix(gpu):
    assert (torch.zeros(2, device="cuda") * torch.tensor(2.0)).is_cuda
    assert torch.zeros(4, device="cuda")[torch.tensor([1, 2])].shape == (2,)


def test_numpy_wants_the_host(gpu):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.zeros(2, device="cuda").numpy()
    assert torch.zeros(2, device="cuda").cpu().numpy().shape == (2,)


def test_cards_that_are_not_there(gpu):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1, device="cuda:1")


def test_several_cards():
    with gm.virtual_gpu("2xA100-40GB"):
        first, second = nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 4).to("cuda:1")
        second(first(torch.randn(2, 4, device="cuda:0")).to("cuda:1")).sum().backward()
        assert first.weight.grad.device == torch.device("cuda", 0)
        assert second.weight.grad.device == torch.device("cuda", 1)
        with pytest.raises(RuntimeError, match=r"found at least two devices, cuda:\d and cuda:\d"):
            second(torch.zeros(1, 4, device="cuda:0"))
        del first, second


def test_data_parallel_on_two_cards():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gm.virtual_gpu("2xT4"):
            model = nn.DataParallel(
                nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 2))
            )
            model.cuda()
            weights = [torch.cuda.memory_allocated(card) for card in (0, 1)]
            out = model(torch.randn(6, 3, 8, 8))
            assert (str(out.device), tuple(out.shape)) == ("cuda:0", (6, 2))
            out.sum().backward()
            assert {str(param.grad.device) for param in model.parameters()} == {"cuda:0"}
            assert weights[1] == 0
            # Half of the batch, a replica of the weights, and cuBLAS's workspaces.
            assert torch.cuda.max_memory_allocated(1) > weights[0] + 2 * 8519680
            del out


def test_copies_among_cards():
    comm = pytest.importorskip("torch.nn.parallel.comm")
    with gm.virtual_gpu("2xT4"):
        x = torch.arange(6, device="cuda").view(6, 1)
        parts = comm.scatter(x, [0, 1], [2, 4])
        assert [(part.get_device(), part[:, 0].tolist()) for part in parts] == [(0, [0, 1]), (1, [2, 3, 4, 5])]
        assert parts[0].data_ptr() == x.data_ptr(), "a part that is there already is not copied"
        assert comm.gather(parts, destination=1).device == torch.device("cuda", 1)
        assert comm.gather(parts, destination="cpu").flatten().tolist() == [0, 1, 2, 3, 4, 5]
        assert [one.get_device() for one in comm.broadcast(x, [0, 1])] == [0, 1]
        small = [torch.ones(2, device="cuda"), torch.ones(3, device="cuda")]
        same, copies = comm.broadcast_coalesced(small, [0, 1])
        assert same[0] is small[0]
        assert [tuple(one.shape) for one in copies] == [(2,), (3,)]
        assert copies[0].untyped_storage().data_ptr() == copies[1].untyped_storage().data_ptr()
        assert comm.reduce_add([small[0], copies[0]], 1).get_device() == 1
        with pytest.raises(RuntimeError, match=r"all tensors must be on devices\[0\]"):
            comm.broadcast_coalesced(small, [1, 0])


def test_a_sparse_adjacency_matrix(gpu):
    places_ = torch.randint(0, 100, (2, 500))
    adjacency = torch.sparse_coo_tensor(places_, torch.ones(500), (100, 100), check_invariants=False).coalesce().cuda()
    x = randn(100, 16, requires_grad=True)
    out = torch.sparse.mm(adjacency, x)
    assert (out.shape, out.device.type) == ((100, 16), "cuda")
    out.sum().backward()
    assert x.grad.shape == x.shape
    assert (adjacency @ x).shape == (100, 16)
    assert adjacency.to_dense().shape == (100, 100)
    assert adjacency.t().coalesce().indices().device.type == "cuda"
    with pytest.raises(RuntimeError, match="Expected dim 0 size 100, got 16"):
        torch.sparse.mm(adjacency, x.t())


def test_saving_and_loading(gpu):
    layer = nn.Linear(3, 3)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    assert torch.load(file, map_location="cuda")["weight"].is_cuda
    file = io.BytesIO()
    torch.save(layer.cuda().state_dict(), file)
    file.seek(0)
    assert torch.load(file)["weight"].is_cuda
    file.seek(0)
    assert torch.load(file, map_location="cpu")["weight"].is_cpu


def test_copies_have_memory_of_their_own(gpu):
    layer = nn.Linear(256, 256).cuda()
    before = allocated()
    other = copy.deepcopy(layer)
    assert other.weight.is_cuda
    assert other.weight.data_ptr() != layer.weight.data_ptr()
    assert allocated() - before == 256 * 256 * 4 + 256 * 4


def test_data_loaders_pin(gpu):
    data = torch.utils.data.TensorDataset(torch.ones(4, 2))
    for (batch,) in torch.utils.data.DataLoader(data, 2, pin_memory=True):
        assert batch.is_pinned()
        assert batch.cuda(non_blocking=True).is_cuda


# Values


def test_values_are_placeholders_and_said_so():
    with gm.virtual_gpu("T4") as gpu:
        x = torch.randn(3, device="cuda")
        with pytest.warns(VirtualValueWarning, match=r"no value on a virtual GPU; it was given 0\.0"):
            value = x.sum().item()
        with pytest.warns(VirtualValueWarning, match="False"):
            flag = bool((x > 0).all())
        with pytest.warns(VirtualValueWarning, match="zeros"):
            numbers = x.tolist()
        assert (value, flag, numbers) == (0.0, False, [0.0, 0.0, 0.0])
        assert {note.file for note in gpu.notes} == {__file__}
        assert len({note.line for note in gpu.notes}) == 3


def test_one_note_for_each_place(gpu):
    for _ in range(3):
        float(randn(()))
    assert len(gpu.notes) == 1


def test_what_follows_from_the_host_is_known(gpu):
    with warnings.catch_warnings():
        warnings.simplefilter("error", VirtualValueWarning)
        mask = torch.tensor([[1, 1, 0], [1, 1, 1]], device="cuda")
        assert mask.sum().item() == 5
        assert not mask.bool().all()
        assert mask.sum(1).max().item() == 3
        assert mask.nonzero().shape == (5, 2)
        assert torch.arange(4, device="cuda").tolist() == [0, 1, 2, 3]
        lengths = torch.zeros(3, dtype=torch.long, device="cuda")
        lengths[1] = 7
        lengths += 1
        assert lengths.cpu().tolist() == [1, 8, 1]
        assert torch.repeat_interleave(torch.tensor([1, 2], device="cuda")).tolist() == [0, 1, 1]
        assert torch.full((), 2.5, device="cuda").item() == 2.5


def test_steps_that_are_counted_on_the_device_are_known(gpu):
    """Optimizers count so under a default device, with one operator for all, and divide by what comes of it."""
    steps = [torch.tensor(0.0, device="cuda") for _ in range(2)]
    torch._foreach_add_(steps, 1)
    torch._foreach_mul_(steps, [2.0, 3.0])
    assert [step.item() for step in steps] == [2, 3]
    weights = [torch.ones(4, device="cuda"), steps[0]]
    torch._foreach_add_(weights, 1)  # of some the values are not followed
    with pytest.warns(UserWarning, match="no value"):
        weights[1].item()


def test_what_is_random_is_not_known_and_takes_nothing_from_the_host(gpu):
    state = torch.random.get_rng_state()
    ids = torch.randint(0, 100, (4,), device="cuda")
    randn(4).normal_()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert ids.tolist() == [0, 0, 0, 0]
    assert len(gpu.notes) == 1


def test_unknown_writes_make_unknown(gpu):
    known = torch.zeros(3, dtype=torch.long, device="cuda")
    known[1] = torch.randint(0, 5, (), device="cuda")
    known.sum().item()
    assert len(gpu.notes) == 1
    known.fill_(2)
    assert known.tolist() == [2, 2, 2]
    assert len(gpu.notes) == 1


def test_a_placeholder_changed_in_place_stays_one(gpu):
    # PyTorch does it with the tensor as its own `out=`, and nothing of that is read from fresh host memory.
    for _ in range(50):
        junk = [torch.full((256,), 3.7) for _ in range(20)]
        del junk
        assert randn(8).sum(0, keepdim=True).mul_(12.5).item() == 0


def test_sizes_that_depend_on_values(gpu):
    x = randn(3, 4)
    assert x.nonzero().shape == (12, 2)
    assert x[x > 0].shape == (12,)
    assert torch.unique(x).shape == (12,)
    with pytest.raises(RuntimeError, match=r"depends on values.*test_virtual_device.py:\d+; pass minlength="):
        torch.bincount(torch.randint(0, 9, (5,), device="cuda"))


def test_loops_that_wait_for_a_value_end(gpu):
    unfinished, ids = torch.ones(2, dtype=torch.long, device="cuda"), torch.zeros(2, 1, dtype=torch.long, device="cuda")
    steps = 0
    while unfinished.max() > 0 and steps < 100:
        ids = torch.cat([ids, torch.multinomial(torch.rand(2, 9, device="cuda"), 1)], 1)
        done = torch.full((2,), ids.shape[1] >= 6, device="cuda") | torch.isin(
            ids[:, -1], torch.tensor([5], device="cuda")
        )
        unfinished = unfinished & ~done
        steps += 1
    assert steps == 5


# Memory


def test_memory_is_that_of_the_rounded_sizes(gpu):
    start = allocated()
    x = torch.zeros(1000, device="cuda")
    assert allocated() - start == 4096
    view = x[10:20].view(2, 5).t()
    assert view.data_ptr() == x.data_ptr() + 40
    y = x + 1
    assert allocated() - start == 2 * 4096
    x.add_(1)
    x.copy_(torch.ones(1000))
    assert allocated() - start == 2 * 4096
    del x
    assert allocated() - start == 2 * 4096
    del view
    assert allocated() - start == 4096
    del y
    assert allocated() == start


def test_a_linear_layer_by_hand(gpu):
    layer, x = nn.Linear(1024, 2048).cuda(), randn(512, 1024)
    start = allocated()
    out = layer(x)
    workspaces = 33 * MiB  # cuBLAS and cuBLASLt
    assert allocated() - start == 512 * 2048 * 4 + workspaces
    out.sum().backward()
    del out
    assert allocated() - start == 1024 * 2048 * 4 + 2048 * 4 + WORKSPACES


def test_eight_linear_layers_and_adamw_as_on_an_h200(gpu):
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = randn(1024, 4096)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.cuda.max_memory_allocated() / MiB == pytest.approx(2641.625)
    del model, optimizer, x
    assert allocated() == WORKSPACES


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}])
def test_what_an_optimizer_needs_at_its_peak(gpu, options):
    weight = nn.Parameter(torch.empty(1 << 20, device="cuda"))
    other = nn.Parameter(torch.empty(1 << 20, device="cuda"))
    optimizer = torch.optim.AdamW([weight, other], **options)
    weight.grad, other.grad = torch.zeros_like(weight), torch.zeros_like(other)
    optimizer.step()
    before = allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    one = 4 * MiB
    # for all parameters at once; for one, with the last one's denominator still there; and inside the kernel
    expected = {"foreach": 2 * one, "single": 3 * one, "fused": 0}
    kind = "fused" if options.get("fused") else "single" if options else "foreach"
    assert torch.cuda.max_memory_allocated() - before == pytest.approx(expected[kind], abs=4096)


def test_autocast_keeps_cast_weights_until_it_ends(gpu):
    layer, x = nn.Linear(1024, 1024, bias=False).cuda(), randn(64, 1024)
    with torch.no_grad():
        layer(x)  # the workspace
    start = allocated()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        out = layer(x)
        assert out.dtype == torch.bfloat16
        half, cast_x, result = 1024 * 1024 * 2, 64 * 1024 * 2, 64 * 1024 * 2
        assert allocated() - start == half + cast_x + result
        again = layer(x)
        assert allocated() - start == half + 2 * (cast_x + result)
        assert F.softmax(out, -1).dtype == torch.float32
        assert (out + x).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert layer(x).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")
    del out, again
    assert allocated() == start


def test_autocast_without_a_graph_keeps_nothing(gpu):
    layer, x = nn.Linear(256, 256, bias=False).cuda(), randn(4, 256)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        layer(x)
    start = allocated()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        layer(x)
    assert allocated() == start


def test_scaled_training_takes_its_steps(gpu):
    layer = nn.Linear(4, 4).cuda()
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = layer(randn(2, 4)).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 65536.0


def test_a_running_sum_of_losses_keeps_the_graphs(gpu):
    # pytorch/pytorch#1840
    head = nn.Linear(256, 1).cuda()
    total = 0
    head(randn(1, 256))
    start = allocated()
    for _ in range(5):
        total = total + head(randn(64, 256)).pow(2).mean()
    held = allocated() - start
    assert held >= 5 * 64 * 256 * 4
    total = total.detach()
    assert allocated() - start <= 512


def test_evaluation_without_no_grad_keeps_activations(gpu):
    # pytorch/pytorch#4932
    net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).cuda().eval()
    x = randn(1024, 512)
    net(x)
    start = allocated()
    out = net(x)
    assert allocated() - start == 8 * 1024 * 512 * 4
    del out
    with torch.no_grad():
        out = net(x)
    assert allocated() - start == 1024 * 512 * 4
    assert out.grad_fn is None


def test_checkpointing_saves_memory(gpu):
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(6)).cuda()

    def peak(wrap):
        x = randn(2048, 512, requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        for block in blocks:
            x = wrap(block, x)
        x.sum().backward()
        return torch.cuda.max_memory_allocated()

    peak(lambda block, x: block(x))
    plain = peak(lambda block, x: block(x))
    assert peak(lambda block, x: checkpoint(block, x, use_reentrant=False)) < plain - 6 * 2 * MiB
    assert peak(lambda block, x: checkpoint(block, x, use_reentrant=True)) < plain - 6 * 2 * MiB


@pytest.mark.parametrize("module", [False, True])
def test_attention_never_makes_the_scores(gpu, module):
    batch, heads, length, width = 2, 4, 2048, 256
    scores = batch * heads * length * length * 2
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.cuda.reset_peak_memory_stats()
        if module:
            layer = nn.TransformerEncoderLayer(width, heads, width, batch_first=True).cuda()
            layer(randn(batch, length, width)).sum().backward()
        else:
            q = randn(batch, heads, length, width // heads, requires_grad=True)
            F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    assert torch.cuda.max_memory_allocated() < scores + WORKSPACES


def test_which_attention_a_card_takes():
    from jupyter_gpumem.virtual.attention import choose
    from jupyter_gpumem.virtual.cards import find_card

    def taken(card, dtype, **options):
        q = torch.empty(1, 2, 8, options.pop("width", 64), dtype=dtype, device="meta")
        defaults = {"mask": None, "dropout": 0.0, "is_causal": False, "gqa": False} | options
        return choose(find_card(card), q, q, q, **defaults)

    assert taken("H200", torch.bfloat16) == "cudnn"
    assert taken("A100-40GB", torch.bfloat16) == "flash"
    assert taken("A100-40GB", torch.bfloat16, mask=torch.empty(8, 8, device="meta")) == "efficient"
    assert taken("A100-40GB", torch.float32) == "efficient"
    assert taken("T4", torch.float16) == "efficient"
    assert taken("T4", torch.bfloat16) == "math"
    assert taken("H200", torch.float32, width=63) == "math"


def test_a_full_card_raises_pytorchs_error():
    with gm.virtual_gpu("24GiB"):
        held = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(20)]
        with pytest.raises(
            torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 8\.00 GiB\. GPU 0 has"
        ):
            torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        del held
        assert torch.empty(8 << 30, dtype=torch.uint8, device="cuda").numel() == 8 << 30


def test_a_full_card_inside_a_backward_pass():
    with gm.virtual_gpu("4GiB"):
        layers = nn.Sequential(*[nn.Linear(8192, 8192, bias=False) for _ in range(8)]).cuda()
        loss = layers(torch.randn(16, 8192, device="cuda")).sum()
        with pytest.raises(torch.OutOfMemoryError):
            loss.backward()
        del loss
        layers.zero_grad()
        layers[0](torch.randn(16, 8192, device="cuda")).sum().backward()
        del layers


def test_a_large_model_costs_nothing(gpu):
    with torch.device("cuda"):
        model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16) for _ in range(100)])
    assert torch.cuda.memory_allocated() == 100 * 8192 * 8192 * 2
    del model


# Off


def test_what_pytorch_says_without_a_gpu_is_its_own_afterwards():
    """It asks for CUDA once in a process, which a virtual GPU has answered: then an operator itself has to say it."""
    session.start("T4")
    torch.empty(1, device="cuda")
    session.stop()
    for name in ("empty.memory_format", "empty_strided"):
        with pytest.raises((AssertionError, RuntimeError), match=r"not compiled with CUDA|NVIDIA driver|No CUDA"):
            registry._places[name, "CUDA"].kernel([2])


def test_off_restores_everything():
    session.start("T4")
    session.stop()  # what PyTorch itself imports meanwhile
    owners = (
        torch,
        torch.Tensor,
        torch.UntypedStorage,
        torch.autograd,
        torch.autograd.graph,
        torch._tensor_str,
        torch.cuda,
    )
    before = [dict(vars(owner)) for owner in owners]
    session.start("T4")
    nn.Linear(2, 2).cuda()(torch.zeros(1, 2, device="cuda")).sum().backward()
    kept = torch.zeros
    assert session.stop() == []
    for owner, attributes in zip(owners, before, strict=True):
        now = dict(vars(owner))
        assert now.keys() == attributes.keys()
        assert all(now[name] is attributes[name] for name in attributes), owner
    assert kept(2).is_cpu
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    torch.optim.AdamW(layer.parameters()).step()
    torch.manual_seed(0)
    assert not torch.accelerator.is_available()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(2, device="cuda")
    assert not torch.cuda.is_available()


def test_work_on_the_host_is_not_touched(gpu):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    out = layer(torch.ones(2, 3))
    out.sum().backward()
    assert math.isfinite(out.sum().item())
    assert torch.equal(layer.weight.grad, torch.full((3, 3), 2.0))
    assert len(gpu.notes) == 0


def test_only_one_at_a_time(gpu):
    with pytest.raises(gm.UnavailableError, match="is on already"):
        session.start("T4")


def test_lazy_modules_move_before_they_know_their_shapes(gpu):
    """They take their parameters along, and make the rest there at the first call."""
    for move in (lambda net: net.cuda(), lambda net: net.to("cuda")):
        net = move(torch.nn.Sequential(torch.nn.LazyConv2d(4, 3), torch.nn.LazyBatchNorm2d(), torch.nn.LazyLinear(5)))
        assert net(torch.randn(2, 3, 8, 8, device="cuda")).shape == (2, 4, 6, 5)
        assert {value.device for value in net.state_dict().values()} == {torch.device("cuda", 0)}


def test_a_storage_cannot_be_resized_and_says_so(gpu):
    """Nothing has changed then, and storages in host memory are resized as ever."""
    tensor = torch.ones(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    with pytest.raises(UnavailableError, match="cannot be resized; resize a tensor of it"):
        tensor.untyped_storage().resize_(0)
    assert (torch.cuda.memory_allocated(), tensor.untyped_storage().nbytes()) == (before, 4000)
    host = torch.ones(1000).untyped_storage()
    assert host.resize_(8000).nbytes() == 8000
