"""Modules on the virtual device, and on several: moved, cast, copied, saved, fed and trained."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
from on_h200 import allocated, randn

import jupyter_gpumem as gm

torch = pytest.importorskip("torch")
nn = torch.nn


def test_modules_keep_their_parameters(h200):
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


def test_casts_of_modules_on_the_device(h200):
    layer = nn.Linear(4, 4).cuda()
    weight = layer.weight
    layer.to(torch.bfloat16)
    assert layer.weight is weight
    assert weight.dtype == torch.bfloat16
    assert layer(randn(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


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


def test_saving_and_loading(h200):
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


def test_copies_have_memory_of_their_own(h200):
    layer = nn.Linear(256, 256).cuda()
    before = allocated()
    other = copy.deepcopy(layer)
    assert other.weight.is_cuda
    assert other.weight.data_ptr() != layer.weight.data_ptr()
    assert allocated() - before == 256 * 256 * 4 + 256 * 4


def test_data_loaders_pin(h200):
    data = torch.utils.data.TensorDataset(torch.ones(4, 2))
    for (batch,) in torch.utils.data.DataLoader(data, 2, pin_memory=True):
        assert batch.is_pinned()
        assert batch.cuda(non_blocking=True).is_cuda


def test_scaled_training_takes_its_steps(h200):
    layer = nn.Linear(4, 4).cuda()
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = layer(randn(2, 4)).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 65536.0


def test_lazy_modules_move_before_they_know_their_shapes(h200):
    """They take their parameters along, and make the rest there at the first call."""
    for move in (lambda net: net.cuda(), lambda net: net.to("cuda")):
        net = move(torch.nn.Sequential(torch.nn.LazyConv2d(4, 3), torch.nn.LazyBatchNorm2d(), torch.nn.LazyLinear(5)))
        assert net(torch.randn(2, 3, 8, 8, device="cuda")).shape == (2, 4, 6, 5)
        assert {value.device for value in net.state_dict().values()} == {torch.device("cuda", 0)}
