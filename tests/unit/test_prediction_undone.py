"""After a prediction, models, optimizers, objects, names and settings are as before."""

from __future__ import annotations

import importlib
import os
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque

import pytest

torch = pytest.importorskip("torch")

from predicted_training import take  # noqa: E402

import jupyter_gpumem as gm  # noqa: E402
from jupyter_gpumem.prediction import predict  # noqa: E402
from jupyter_gpumem.units import KiB  # noqa: E402
from jupyter_gpumem.virtual.patches import Patches  # noqa: E402
from jupyter_gpumem.virtual.undo import Undo  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_gpu_is_left")


def state_of(model, optimizer):
    tensors = [*model.parameters(), *model.buffers()]
    return {
        "values": [tensor.detach().clone() for tensor in tensors],
        "memory": [tensor.data_ptr() for tensor in tensors],
        "grads": [None if tensor.grad is None else (id(tensor.grad), tensor.grad.clone()) for tensor in tensors],
        "versions": [tensor._version for tensor in tensors],
        "modes": [module.training for module in model.modules()],
        "state": [
            {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in one.items()}
            for one in optimizer.state.values()
        ],
        "groups": [{**group, "params": list(map(id, group["params"]))} for group in optimizer.param_groups],
    }


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def trained():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    model.eval()
    return model, optimizer


def on_the_gpu(model, optimizer):
    model.cuda().train()
    for one in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            one[name] = one[name].cuda()
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()


def on_the_cpu(model, optimizer):
    model.train()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def there_and_back(model, optimizer):
    for _ in range(3):
        model.cuda()
        model.cpu()


def half(model, optimizer):
    model.half().cuda().float()


def taken_apart(model, optimizer):
    model[0] = torch.nn.Linear(8, 4)
    model.add_module("more", torch.nn.ReLU())
    del model[1]
    model.register_forward_hook(lambda *_: None)
    model[0].weight.requires_grad_(False)
    optimizer.param_groups[0]["lr"] = 7
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    optimizer.state.clear()


def written_to(model, optimizer):
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.zero_()
        model[0].weight.data = torch.ones(2, 2)
        model[3].weight.set_(torch.ones(3))
    model[0].weight.grad = None


@pytest.mark.parametrize("change", [on_the_gpu, on_the_cpu, there_and_back, half, taken_apart, written_to])
def test_a_model_and_its_optimizer_are_as_before(change):
    """Values, memory, device, gradients, modes, hooks and state of an existing CPU model are untouched."""
    model, optimizer = trained()
    before, modules = state_of(model, optimizer), list(model.named_modules())
    result = predict(change, model, optimizer, gpu="T4")
    assert result.not_undone == ()
    assert list(model.named_modules()) == modules
    assert same(state_of(model, optimizer), before)
    assert {tensor.device.type for tensor in model.parameters()} == {"cpu"}
    assert not model._forward_hooks
    model.train()
    model(torch.randn(4, 8)).sum().backward()  # and it is of use
    optimizer.step()
    assert not same(state_of(model, optimizer), before)


def test_a_tensor_that_grows_in_place():
    """It has its shape and values again."""
    tensor = torch.arange(4.0)
    assert predict(lambda: tensor.resize_(5000).fill_(1)).not_undone == ()
    assert tensor.tolist() == [0, 1, 2, 3]
    assert tensor.untyped_storage().nbytes() == 16


def test_a_pending_backward_pass_is_still_possible():
    """A graph that was built before keeps its leaves: its gradients arrive."""
    model = torch.nn.Linear(4, 1, bias=False)
    loss = model(torch.ones(1, 4)).sum()
    predict(lambda: model.cuda()(torch.ones(2, 4, device="cuda")).sum().backward())
    assert model.weight.grad is None
    loss.backward()
    assert torch.equal(model.weight.grad, torch.ones(1, 4))


def test_objects_are_as_before():
    """Lists, dicts, sets, queues, closures, classes and attributes hold what they held, in the same order."""

    class Log:
        lines = 0

        def __init__(self):
            self.seen = []

    Log.__module__ = "__main__"
    count = 0

    def counted():
        nonlocal count
        count += 1

    log, ordered = Log(), OrderedDict(a=1, b=2)
    things = types.SimpleNamespace(
        list=[1, [2]], dict={"x": {"y": 1}}, set={1}, deque=deque([1, 2], maxlen=2), bytes=bytearray(b"ab"),
        default=defaultdict(list, a=[1]), kind=Log, ordered=ordered, dice=random.Random(1), draw=torch.Generator(),
        array=__import__("numpy").ones(3), tuple=([0],),
    )  # fmt: skip
    dice = things.dice.getstate()

    def code(things, log):
        things.list[1].append(3)
        things.list.insert(0, 0)
        things.dict["x"].clear()
        things.dict["new"] = 1
        things.set.add(2)
        things.deque.append(3)
        things.bytes += b"c"
        things.default["b"].append(1)
        things.kind.lines += 1
        things.ordered.move_to_end("a")
        things.dice.random()
        things.draw.manual_seed(3)
        things.array += 1
        things.tuple[0].append(1)
        things.extra = 1
        log.seen.append("x")
        log.step = 3
        counted()
        for _ in range(3):
            things.list.append(take(3))

    seed = things.draw.initial_seed()
    result = predict(code, things, log)
    assert result.not_undone == ()
    assert (things.list, things.dict, things.set) == ([1, [2]], {"x": {"y": 1}}, {1})
    assert (list(things.deque), things.bytes, dict(things.default)) == ([1, 2], b"ab", {"a": [1]})
    assert (Log.lines, list(ordered), things.tuple, count) == (0, ["a", "b"], ([0],), 0)
    assert (things.dice.getstate(), things.draw.initial_seed(), things.array.tolist()) == (dice, seed, [1, 1, 1])
    assert (log.seen, hasattr(log, "step"), hasattr(things, "extra")) == ([], False, False)


def test_names_and_settings_are_as_before(tmp_path, monkeypatch):
    """Global names, random numbers, modes, the environment and the folder are as they were."""
    monkeypatch.setitem(globals(), "shared", 1)
    numpy = __import__("numpy")
    before = (random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].tolist(), os.getcwd())

    def code():
        global shared, fresh
        shared, fresh = 2, 3
        random.seed(0), torch.manual_seed(0), numpy.random.seed(0)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("cuda")
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        os.environ["GPUMEM_TEST"] = "1"
        os.chdir(tmp_path)
        torch.rand(3)

    predict(code)
    assert globals()["shared"] == 1
    assert "fresh" not in globals()
    now = (random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].tolist(), os.getcwd())
    assert same(now, before)
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.ones(1).device.type == "cpu"
    assert "GPUMEM_TEST" not in os.environ
    assert not torch.nn.modules.module._global_forward_hooks


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("module", ["borrowed_tool.py", "borrowed_tool/__init__.py"])
def test_what_is_installed_is_left_alone_wherever_it_lies(tmp_path, monkeypatch, module, installed):
    """A kernel's own objects, say, which other threads use: a message in a queue that is put back is sent twice."""
    path = tmp_path / module
    path.parent.mkdir(exist_ok=True)
    path.write_text("class Queue:\n    def __init__(self): self.waiting = ['first']\n")
    if installed:  # as `pip install --target` does it
        about = tmp_path / "borrowed_tool-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: borrowed-tool\nVersion: 1.0\n")
        (about / "RECORD").write_text(f"{module},,\nborrowed_tool-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    queue = importlib.import_module("borrowed_tool").Queue()

    def code(things):
        things[0].waiting.clear()

    try:
        predict(code, [queue])
    finally:
        del sys.modules["borrowed_tool"]
    assert queue.waiting == ([] if installed else ["first"])


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_what_cannot_be_undone_is_said(rounds):
    """A generator that was advanced is named, also if it stands at the same line again; one that was not is not."""
    numbers, others = (n for n in range(10)), (n for n in range(10))
    for _ in range(rounds):
        next(numbers), next(others)

    def code(things):
        next(things[0])

    [text] = predict(code, [numbers, others]).not_undone
    assert text == "the generator <genexpr>() was advanced, which cannot be undone"


def test_values_that_do_not_fit_into_host_memory_are_named(monkeypatch):
    """Where there is no room for copies, what was written to in place is said, not hidden."""
    memory = types.SimpleNamespace(available=0)
    monkeypatch.setattr("jupyter_gpumem.virtual.undo.psutil.virtual_memory", lambda: memory)
    kept = torch.ones(4)
    [text] = predict(lambda: kept.add_(1)).not_undone
    assert text == "1 CPU tensors, too large to be copied before, were written to in place"
    assert kept.tolist() == [2, 2, 2, 2]


def test_real_devices_are_stood_in_for():
    """Tensors of a real device are virtual meanwhile, with their views, ties and gradients, and then themselves."""
    model = torch.nn.Linear(16, 16)
    model.tied = torch.nn.Linear(16, 16)
    model.tied.weight = model.weight
    model.weight.grad = torch.ones(16, 16)
    row = model.weight.detach()[2]
    pointers = model.weight.data_ptr(), row.data_ptr(), model.weight.grad.data_ptr()
    patches = Patches()
    with gm.virtual_gpu("T4") as gpu:
        undo = Undo([{"model": model, "row": row}], 1, patches)
        with gpu.trial():
            undo.stand_in(gpu.memory, kind="cpu")
            assert model.weight.is_cuda
            assert model.weight.grad.is_cuda
            assert model.tied.weight is model.weight
            assert row.untyped_storage().data_ptr() == model.weight.untyped_storage().data_ptr()
            assert row.storage_offset() == 32
            model(torch.ones(1, 16, device="cuda")).sum().backward()
            assert torch.cuda.memory_allocated() > 3 * KiB
            undo.restore()
        patches.undo()
        assert torch.cuda.memory_allocated() == 0
    assert (model.weight.data_ptr(), row.data_ptr(), model.weight.grad.data_ptr()) == pointers
    assert torch.equal(model.weight.grad, torch.ones(16, 16))
