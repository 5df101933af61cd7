"""Every way in which programs say `cuda`: contexts, defaults, types, threads, loaders, scripts. All mean the card."""

from __future__ import annotations

import threading
import warnings
from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch")
nn, data = torch.nn, torch.utils.data
contexts = pytest.importorskip("torch.utils._device")

from jupyter_gpumem.virtual import session  # noqa: E402

FACTORIES = {
    "arange": lambda: torch.arange(4),
    "asarray": lambda: torch.asarray([1.0]),
    "eye": lambda: torch.eye(3),
    "fftfreq": lambda: torch.fft.fftfreq(4),
    "full": lambda: torch.full((2,), 1.0),
    "hann_window": lambda: torch.hann_window(4),
    "kaiser_window": lambda: torch.kaiser_window(4, True, 3.0),
    "nested_tensor": lambda: torch.nested.nested_tensor([torch.ones(2)]),
    "randperm": lambda: torch.randperm(4),
    "scalar_tensor": lambda: torch.scalar_tensor(1.0),
    "tensor": lambda: torch.tensor([1.0]),
    "tril_indices": lambda: torch.tril_indices(3, 3),
}
PLAIN_TRIANGLE = torch.triu_indices
SECOND = torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values do not exist, and are not asked for here
        yield session.start("2xH200")
    torch.set_default_device(None)
    assert session.stop() == []


def places(*tensors):
    return [str(tensor.device) for tensor in tensors]


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_inside_a_context(name):
    """Each makes its tensor on the card, as on a real one."""
    with torch.device("cuda"):
        assert FACTORIES[name]().is_cuda
    assert FACTORIES[name]().is_cpu


def test_contexts_nest():
    """The innermost wins, an explicit device wins over all, and each ends as it began."""
    with torch.device("cuda"):
        with torch.device("cpu"):
            host = torch.ones(2)
        with torch.device("cuda:1"):
            second = torch.ones(2)
            with torch.device("meta"):
                meta = torch.ones(2)
        again, said = torch.ones(2), torch.ones(2, device="cpu")
    assert places(host, second, meta, again, said, torch.ones(2)) == ["cpu", "cuda:1", "meta", "cuda:0", "cpu", "cpu"]


def test_contexts_by_other_means():
    """By hand, on a stack, as PyTorch's own class, and as a decorator of a function or a generator."""
    device = torch.device("cuda")
    device.__enter__()
    by_hand = torch.ones(1)
    device.__exit__(None, None, None)
    with ExitStack() as stack:
        stack.enter_context(torch.device("cuda"))
        stacked = torch.ones(1)
    with contexts.DeviceContext(SECOND):
        own = torch.ones(1)

    @contexts.set_device("cuda")
    def decorated():
        return torch.ones(1)

    @contexts.set_device("cuda:1")
    def yielding():
        yield torch.ones(1)

    assert places(by_hand, stacked, own, decorated(), *yielding()) == ["cuda:0", "cuda:0", "cuda:1", "cuda:0", "cuda:1"]


def test_modules_move_inside_a_context():
    """`.to()`, `.cuda()` and `.cpu()` do what they say whatever the context."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    seen = []
    with torch.device("cuda"):
        for move in (
            lambda: model.to("cuda"),
            model.cpu,
            model.cuda,
            lambda: model.to(SECOND),
            lambda: model.to(device="cuda:0", dtype=torch.float16),
        ):
            move()
            seen.append({str(one.device) for one in (*model.parameters(), *model.buffers())})
        assert nn.LSTM(4, 4, 2).weight_hh_l1.is_cuda
    assert seen == [{"cuda:0"}, {"cpu"}, {"cuda:0"}, {"cuda:1"}, {"cuda:0"}]
    assert model[0].weight.dtype == torch.float16


def test_the_default_device():
    """Set, set otherwise, asked for, and with a context inside."""
    torch.set_default_device("cuda")
    layer = nn.Linear(2, 2)
    layer(torch.rand(3, 2)).sum().backward()
    torch.optim.Adam(layer.parameters()).step()
    with torch.device("cpu"):
        host = torch.ones(2)
    asked = torch.get_default_device()
    torch.set_default_device(SECOND)
    second = torch.ones(2)
    torch.set_default_device("cpu")
    assert places(layer.weight, layer.weight.grad, host, second, torch.ones(2)) == [
        *("cuda:0", "cuda:0", "cpu", "cuda:1", "cpu"),
    ]
    assert asked.type == "cuda"


@pytest.mark.parametrize("kind", ["torch.cuda.FloatTensor", torch.cuda.FloatTensor])
def test_the_default_tensor_type(kind):
    """The old way to the default device still is one, there and back."""
    kind = kind if isinstance(kind, str) else torch.cuda.FloatTensor
    torch.set_default_tensor_type(kind)
    made = torch.ones(2), nn.Linear(2, 2).weight
    torch.set_default_tensor_type("torch.FloatTensor")
    assert places(*made, torch.ones(2)) == ["cuda:0", "cuda:0", "cpu"]


def test_old_types_move():
    """`.type()` takes them as text and as classes."""
    host = torch.ones(2)
    moved = host.type(torch.cuda.HalfTensor), host.type("torch.cuda.LongTensor"), host.cuda().type(torch.float64)
    assert places(*moved, moved[0].type("torch.FloatTensor")) == ["cuda:0", "cuda:0", "cuda:0", "cpu"]
    assert [one.dtype for one in moved] == [torch.float16, torch.int64, torch.float64]


def test_the_current_card():
    """`cuda` without a number is the current one, also in a context and for modules."""
    with torch.cuda.device(1):
        made = torch.ones(2, device="cuda"), torch.ones(2).cuda(), nn.Linear(2, 2).cuda().weight
        with torch.device("cuda"):
            inside = torch.ones(2)
        with torch.cuda.device(0):
            first = torch.ones(2, device="cuda")
    assert places(*made, inside, first) == ["cuda:1"] * 4 + ["cuda:0"]


def test_threads_have_contexts_of_their_own():
    """A context holds in its thread, and a default device in the one that set it."""
    torch.set_default_device("cuda")
    found = []

    def work():
        before = torch.ones(1)
        with torch.device("cuda:1"):
            layer = nn.Linear(2, 2)
            layer(torch.rand(2, 2)).sum().backward()
        found.append(places(before, layer.weight.grad, torch.ones(1)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["cpu", "cuda:1", "cpu"]] * 3


def test_other_modes_see_the_users_devices():
    """A function mode of the user's, outside or inside a context."""
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode(), torch.device("cuda"):
        made = torch.ones(2)
        moved = made.to("cpu"), nn.Linear(2, 2).weight
    with torch.device("cuda"), Mode():
        inner = torch.ones(2)
        kind = inner.device.type
    assert places(made, *moved, inner) == ["cuda:0", "cpu", "cuda:0", "cuda:0"]
    assert kind == "cuda"
    assert seen


class Numbers(data.Dataset):
    """Eight numbers, a tensor each."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class OnTheCard(Numbers):
    """The same many, made on the card."""

    def __getitem__(self, index):
        return torch.zeros(1, device="cuda")


def test_loaders_and_a_default_device():
    """Shuffling then needs a generator of the card, as on a real one."""
    torch.set_default_device("cuda")
    assert {str(batch.device) for batch in data.DataLoader(Numbers(), 4)} == {"cuda:0"}
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        list(data.DataLoader(Numbers(), 4, shuffle=True))
    generator = torch.Generator("cuda")
    assert len(list(data.DataLoader(Numbers(), 4, shuffle=True, generator=generator))) == 2
    assert [len(part) for part in data.random_split(Numbers(), [6, 2], generator=generator)] == [6, 2]


def test_workers_of_loaders():
    """They give tensors of the host, pinned where asked; a card they cannot use, as no forked process can."""
    batches = list(data.DataLoader(Numbers(), 4, num_workers=2, pin_memory=True))
    assert [(str(batch.device), batch.is_pinned()) for batch in batches] == [("cpu", True)] * 2
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        list(data.DataLoader(OnTheCard(), 4, num_workers=1))
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        list(data.DataLoader(data.TensorDataset(torch.ones(4, device="cuda")), 4, pin_memory=True))


def scripted(x: torch.Tensor, count: int):
    rows = torch.zeros(count, device=x.device)
    for index in range(count):
        rows[index] = x.sum()
    return rows + torch.arange(count, device="cuda") + torch.full([count], 1.0, device=x.device)


def test_scripted_code_means_the_card_too():
    """TorchScript knows the functions that are replaced, and knows them afterwards."""
    assert torch.jit.script(scripted)(torch.ones(3, device="cuda"), 4).is_cuda
    assert torch.jit.trace(nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda"))(torch.ones(1, 2).cuda()).is_cuda
    session.stop()
    assert torch.jit._builtins._find_builtin(torch.zeros) == "aten::zeros"
    session.start("H200")


def test_functions_that_were_imported_before():
    """PyTorch's own, which nothing of ours sees called."""
    assert PLAIN_TRIANGLE(3, 3, device="cuda").device == torch.device("cuda", 0)


def test_transforms_of_functions():
    """`vmap`, `grad`, `jacfwd` and `hessian` inside a context."""
    with torch.device("cuda"):
        x = torch.rand(3, 2)
        found = (
            torch.func.vmap(lambda row: row * torch.ones(2))(x),
            torch.func.grad(lambda row: (row * torch.arange(2)).sum())(x[0]),
            torch.func.jacfwd(lambda row: row.sin())(x[0]),
            torch.func.hessian(lambda row: row.sin().sum())(x[0]),
        )
    assert [(str(one.device), tuple(one.shape)) for one in found] == [
        *(("cuda:0", (3, 2)), ("cuda:0", (2,)), ("cuda:0", (2, 2)), ("cuda:0", (2, 2))),
    ]
