"""The virtual device in this process: what programs see of it, which values they read, and what stays afterwards."""

from __future__ import annotations

import math
import threading
import warnings

import pytest
from on_h200 import randn

import jupyter_gpumem as gm
from jupyter_gpumem.errors import UnavailableError
from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")
nn = torch.nn

from jupyter_gpumem.virtual import registry, session  # noqa: E402
from jupyter_gpumem.virtual.notes import VirtualValueWarning  # noqa: E402

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


def test_every_way_to_get_to_the_device(h200):
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


def test_default_devices(h200):
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


def test_a_function_imported_before_is_translated_too(h200):
    # It is the plain C function: nothing of ours sees the device's name.
    assert PLAIN_ZEROS(3, device="cuda").device == torch.device("cuda", 0)


PLAIN_ZEROS = torch.zeros


def test_threads_see_the_same_device(h200):
    found = []

    def work():
        layer = nn.Linear(4, 4).cuda()
        layer(randn(2, 4)).sum().backward()
        found.append(layer.weight.grad.device)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [torch.device("cuda", 0)]


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
def test_devices_do_not_mix(h200, mix):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device") as error:
        mix()
    assert "cuda" in str(error.value)
    assert "cpu" in str(error.value)


def test_scalars_on_the_host_do_mix(h200):
    assert (torch.zeros(2, device="cuda") * torch.tensor(2.0)).is_cuda
    assert torch.zeros(4, device="cuda")[torch.tensor([1, 2])].shape == (2,)


def test_numpy_wants_the_host(h200):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.zeros(2, device="cuda").numpy()
    assert torch.zeros(2, device="cuda").cpu().numpy().shape == (2,)


def test_cards_that_are_not_there(h200):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1, device="cuda:1")


def test_a_sparse_adjacency_matrix(h200):
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


def test_one_note_for_each_place(h200):
    for _ in range(3):
        float(randn(()))
    assert len(h200.notes) == 1


def test_what_follows_from_the_host_is_known(h200):
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


def test_steps_that_are_counted_on_the_device_are_known(h200):
    """Optimizers count so under a default device, with one operator for all, and divide by what comes of it."""
    steps = [torch.tensor(0.0, device="cuda") for _ in range(2)]
    torch._foreach_add_(steps, 1)
    torch._foreach_mul_(steps, [2.0, 3.0])
    assert [step.item() for step in steps] == [2, 3]
    weights = [torch.ones(4, device="cuda"), steps[0]]
    torch._foreach_add_(weights, 1)  # of some the values are not followed
    with pytest.warns(UserWarning, match="no value"):
        weights[1].item()


def test_what_is_random_is_not_known_and_takes_nothing_from_the_host(h200):
    state = torch.random.get_rng_state()
    ids = torch.randint(0, 100, (4,), device="cuda")
    randn(4).normal_()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert ids.tolist() == [0, 0, 0, 0]
    assert len(h200.notes) == 1


def test_unknown_writes_make_unknown(h200):
    known = torch.zeros(3, dtype=torch.long, device="cuda")
    known[1] = torch.randint(0, 5, (), device="cuda")
    known.sum().item()
    assert len(h200.notes) == 1
    known.fill_(2)
    assert known.tolist() == [2, 2, 2]
    assert len(h200.notes) == 1


def test_a_placeholder_changed_in_place_stays_one(h200):
    # PyTorch does it with the tensor as its own `out=`, and nothing of that is read from fresh host memory.
    for _ in range(50):
        junk = [torch.full((256,), 3.7) for _ in range(20)]
        del junk
        assert randn(8).sum(0, keepdim=True).mul_(12.5).item() == 0


def test_sizes_that_depend_on_values(h200):
    x = randn(3, 4)
    assert x.nonzero().shape == (12, 2)
    assert x[x > 0].shape == (12,)
    assert torch.unique(x).shape == (12,)
    with pytest.raises(RuntimeError, match=r"depends on values.*test_virtual_device.py:\d+; pass minlength="):
        torch.bincount(torch.randint(0, 9, (5,), device="cuda"))


def test_loops_that_wait_for_a_value_end(h200):
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


def test_work_on_the_host_is_not_touched(h200):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    out = layer(torch.ones(2, 3))
    out.sum().backward()
    assert math.isfinite(out.sum().item())
    assert torch.equal(layer.weight.grad, torch.full((3, 3), 2.0))
    assert len(h200.notes) == 0


def test_only_one_at_a_time(h200):
    with pytest.raises(gm.UnavailableError, match="is on already"):
        session.start("T4")


def test_a_storage_cannot_be_resized_and_says_so(h200):
    """Nothing has changed then, and storages in host memory are resized as ever."""
    tensor = torch.ones(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    with pytest.raises(UnavailableError, match="cannot be resized; resize a tensor of it"):
        tensor.untyped_storage().resize_(0)
    assert (torch.cuda.memory_allocated(), tensor.untyped_storage().nbytes()) == (before, 4000)
    host = torch.ones(1000).untyped_storage()
    assert host.resize_(8000).nbytes() == 8000
