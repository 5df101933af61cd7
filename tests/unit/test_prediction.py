"""Predictions: the peak by part, where it is, where it fits; and that everything is afterwards as before."""

from __future__ import annotations

import gc
import importlib
import os
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque

import pytest

torch = pytest.importorskip("torch")

import jupyter_gpumem as gm  # noqa: E402
from jupyter_gpumem.errors import InvalidValueError  # noqa: E402
from jupyter_gpumem.prediction import predict  # noqa: E402
from jupyter_gpumem.units import GiB, KiB, MiB  # noqa: E402
from jupyter_gpumem.virtual import session  # noqa: E402
from jupyter_gpumem.virtual.patches import Patches  # noqa: E402
from jupyter_gpumem.virtual.undo import Undo  # noqa: E402

WIDTH = 1024


def make(layers=4):
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def train(model, batch=64, steps=2, **options):
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for _ in range(steps):
        loss = model(torch.randn(batch, WIDTH, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


WEIGHTS = 4 * WIDTH * WIDTH * 4


@pytest.fixture(autouse=True)
def _no_gpu_is_left():
    """No prediction leaves a virtual GPU."""
    yield
    assert session.active() is None
    assert not torch.cuda.is_available()


# What it says


def test_parts_add_up_to_the_peak():
    """Parameters, gradients and state are what they must be, and all parts are the peak, to the byte."""
    result = predict(train, make(), gpu="T4")
    [use] = result.devices
    parts = dict(use.parts)
    assert sum(parts.values()) == use.peak_allocated
    assert parts["parameters"] == parts["gradients"] == parts["optimizer temporaries"] == WEIGHTS
    assert 2 * WEIGHTS <= parts["optimizer state"] < 2 * WEIGHTS + 8 * KiB
    assert parts["workspaces"] >= 8 * MiB
    assert use.phase == "optimizer step"
    assert use.text == "optimizer.step()"
    assert result["t4"].ran


def test_parameters_of_a_virtual_gpu_that_was_on_before():
    """Their addresses are given out again, and what lies there now is no parameter."""
    with gm.virtual_gpu("T4"):
        model = make(1).cuda()
        address = model[0].weight.data_ptr()
    with gm.virtual_gpu("T4"):
        data = take(4 * MiB)
        assert data.data_ptr() == address
        parts = dict(predict(lambda: data + 1).devices[0].parts)
    assert parts == {"activations": 8 * MiB}


def test_parameters_that_are_made_on_the_device():
    """Weights made there are parameters, also without an optimizer, under a default device, or frozen."""

    def code():
        with torch.device("cuda"):
            model = make(2).requires_grad_(False)
        inputs = torch.ones(4, WIDTH, device="cuda")
        return model(inputs)

    parts = dict(predict(code, gpu="T4").devices[0].parts)
    assert parts["parameters"] == WEIGHTS / 2
    assert parts["other"] == 4 * WIDTH * 4


def test_under_a_default_device():
    """A default device of the session changes nothing: what is there is there again afterwards."""
    with gm.virtual_gpu("T4"):
        torch.set_default_device("cuda")
        try:
            model = make(1)
            before = torch.cuda.memory_allocated(), model[0].weight.data_ptr()
            result = predict(train, model)
            assert dict(result.devices[0].parts)["parameters"] == WEIGHTS / 4
            assert (torch.cuda.memory_allocated(), model[0].weight.data_ptr()) == before
        finally:
            torch.set_default_device(None)


def test_without_foreach_there_are_no_temporaries_of_that_size():
    """The part that a setting saves is seen to go."""
    result = predict(train, make(), gpu="T4", foreach=False)
    parts = dict(result.devices[0].parts)
    assert parts.get("optimizer temporaries", 0) < WEIGHTS


def test_activations_are_the_peak_of_a_large_batch():
    """With a large batch the peak is in the backward pass, and activations are most of it."""
    result = predict(train, make(), batch_size := 50_000, gpu="H200")
    [use] = result.devices
    assert (use.phase, use.text) == ("backward pass", "loss.backward()")
    assert use.parts[0][0] == "activations"
    assert use.parts[0][1] >= 4 * batch_size * WIDTH * 4


def test_the_peak_is_the_sessions():
    """What is predicted is what the counters of a virtual GPU say of the same code."""
    result = predict(train, make(), gpu="L4")
    with gm.virtual_gpu("L4"):
        train(make())
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    assert (result.devices[0].peak_allocated, result.devices[0].peak_reserved) == peaks


def test_resetting_the_counter_changes_nothing():
    """The code may reset its peak, or empty the cache."""

    def code():
        take(50 * MiB)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return take(MiB)

    result = predict(code)
    assert (result.devices[0].peak_allocated, result.devices[0].peak_reserved) == (50 * MiB, 50 * MiB)


def test_fits_or_not():
    """What is too large says so, where memory runs out, and on which card it would fit; that is no error."""

    def code():
        small = take(GiB)
        large = take(16 * GiB)
        return small, large

    result = predict(code, gpu=["T4", "A100-40GB"])
    assert [(fit.gpu, fit.fits) for fit in result.fits] == [("T4", False), ("A100-40GB", True)]
    assert result["T4"].line == code.__code__.co_firstlineno + 2
    assert result["T4"].left < 0
    assert result["A100-40GB"].left == result["A100-40GB"].usable - 17 * GiB
    assert predict(code, gpu="T4").smallest == "L4"
    assert result.smallest is None


def test_a_flush_may_be_enough():
    """What fits only because the cache is given back in between is said to."""

    def code():
        for size in (6, 7, 8):
            take(size * GiB)

    fit = predict(code, gpu="T4")["T4"]
    assert (fit.fits, fit.retries > 0) == (True, True)
    assert fit.left < 0


def test_all_cards_by_default():
    """Without a card there is one run, and a row for each card with its own workspaces."""
    runs = []

    def code():
        runs.append(1)
        x = torch.ones(256, 256, device="cuda")
        return x @ x

    result = predict(code)
    assert runs == []  # what it appended is undone
    assert [fit.usable for fit in result.fits] == sorted(fit.usable for fit in result.fits)
    assert [fit.gpu for fit in result.fits if fit.ran] == ["A100-80GB"]
    assert result["H100"].peak_reserved > result["A100-80GB"].peak_reserved  # 32 MiB of cuBLAS instead of 8.125
    assert predict(code, gpu="H100")["H100"].peak_reserved == result["H100"].peak_reserved


def test_several_devices():
    """A machine of two has a record for each, and a verdict for the fuller."""

    def code():
        a = torch.empty(GiB, dtype=torch.uint8, device="cuda:0")
        return a, torch.empty(20 * GiB, dtype=torch.uint8, device="cuda:1")

    result = predict(code, gpu=["2xA100-40GB", "2xT4"])
    assert [use.peak_allocated for use in result.devices] == [GiB, 20 * GiB]
    assert [(fit.gpu, fit.fits) for fit in result.fits] == [("2xA100-40GB", True), ("2xT4", False)]


def test_the_largest_batch():
    """The largest value of an argument that fits is found, and one more does not fit."""
    model = make()
    result = predict(train, model, batch="batch", gpu=["8GiB", "T4"], runs=60)
    for fit in result.fits:
        assert fit.largest_is_exact
        assert predict(train, model, fit.largest_batch, gpu=fit.gpu.removesuffix(" card"))[fit.gpu].fits
        assert not predict(train, model, fit.largest_batch + 1, gpu=fit.gpu.removesuffix(" card"))[fit.gpu].fits
    assert result.batch.value == 64
    assert result.batch.runs <= 60


def test_what_the_batch_argument_must_be():
    """A name that is none, or a value that is no number, is refused in one line."""
    with pytest.raises(InvalidValueError, match="'size' is no argument of train; it has model, batch, steps"):
        predict(train, make(), batch="size")
    with pytest.raises(InvalidValueError, match="must be a whole number of at least 1, got 0"):
        predict(train, make(), 0, batch="batch")


def test_placeholders_are_said(recwarn):
    """Where a value was asked for is in the result; there is no warning beside it."""

    def code():
        return take(1).item()

    [text] = predict(code).placeholders
    assert text == f"line {code.__code__.co_firstlineno + 1}: a tensor has no value on a virtual GPU; it was given 0"
    assert not [one for one in recwarn if "virtual GPU" in str(one.message)]


def test_an_error_of_the_code_is_its_own(capsys):
    """It passes unchanged, what was printed before it is shown, and everything is undone."""
    model = make(1)

    def code():
        print("before")
        model.cuda()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        predict(code)
    assert capsys.readouterr().out == "before\n"
    assert model[0].weight.device.type == "cpu"


def test_nothing_is_printed(capsys):
    """What the code prints would be placeholders."""
    predict(lambda: print(take(3)))
    assert capsys.readouterr() == ("", "")


def test_code_that_uses_no_gpu():
    """It fits everywhere."""
    result = predict(lambda: torch.ones(3))
    assert result.devices[0].peak_allocated == 0
    assert all(fit.fits for fit in result.fits)


# That everything is as before


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


# While a virtual GPU is on


def test_beside_the_sessions_own_virtual_gpu():
    """What is on the session's device is the starting state, and its allocator is as it was."""
    with gm.virtual_gpu("T4") as gpu:
        x = torch.ones(GiB // 4, device="cuda")
        square = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
        index = torch.tensor([1, 2, 3], device="cuda")
        before = torch.cuda.memory_stats(), torch.cuda.memory_snapshot(), len(gpu.notes)
        kept = []

        def code():
            x.add_(1)
            index.add_(1)
            kept.append(x * 2)
            kept.append(square @ square)
            torch.cuda.manual_seed(3)
            kept.append(index.sum().item())

        seed = torch.cuda.initial_seed()
        result = predict(code, gpu=["T4", "A100-40GB"])
        [use] = result.devices
        assert use.start_allocated == before[0]["allocated_bytes.all.current"]
        assert use.peak_allocated == use.start_allocated + GiB + 16 * KiB + 512
        assert dict(use.parts)["workspaces"] >= 8 * MiB
        assert [(fit.gpu, fit.ran) for fit in result.fits] == [("T4", True), ("A100-40GB", False)]
        assert kept == []
        assert (torch.cuda.memory_stats(), torch.cuda.memory_snapshot(), len(gpu.notes)) == before
        assert torch.cuda.initial_seed() == seed
        assert index.tolist() == [1, 2, 3]
        x = square = index = None
        gc.collect()
        gpu.kernels.clear_workspaces()
        assert torch.cuda.memory_allocated() == 0


def test_a_recording_that_runs_knows_nothing_of_it(tmp_path):
    """On the session's own virtual GPU, what is recorded is what happened, and is replayed to the byte."""
    with gm.virtual_gpu("T4"), gm.record(tmp_path / "run.pickle") as recorded:
        x = take(3 * MiB)
        predict(lambda: take(40 * MiB).add_(take(1)))
        del x
        take(5 * MiB)
    events = [(event["action"], event["size"] // MiB) for event in recorded.recording.events(0)]
    assert [event for event in events if event[0] in ("alloc", "free_completed")] == [
        ("alloc", 3),
        ("free_completed", 3),
        ("alloc", 5),
        ("free_completed", 5),
    ]
    assert gm.whatif(recorded.recording, []).check.exact


def test_what_outlives_a_trial_is_of_no_account():
    """A tensor that is kept alive behind our back, and one that goes during a trial, upset no allocator."""
    hidden = type("Hidden", (), {"__slots__": ("it",)})()
    with gm.virtual_gpu("T4"):
        cycle = [take(MiB)]
        cycle.append(cycle)
        del cycle

        def code():
            hidden.it = take(7 * MiB)
            gc.collect()

        assert torch.cuda.memory_allocated() == MiB
        predict(code)
        assert torch.cuda.memory_allocated() == 0
        y = take(3 * MiB)
        predict(code)
        hidden.it = None
        assert torch.cuda.memory_allocated() == 3 * MiB
        del y
        gc.collect()
        assert torch.cuda.memory_allocated() == 0


def test_a_virtual_model_is_as_before():
    """A model on the session's device can be moved, trained and halved, and is then where it was."""
    with gm.virtual_gpu("T4"):
        model = make(1).cuda()
        allocated, where = torch.cuda.memory_allocated(), model[0].weight.data_ptr()

        def code():
            model.half().cpu()
            model.cuda().float()

        predict(code)
        assert (model[0].weight.data_ptr(), model[0].weight.dtype) == (where, torch.float32)
        assert torch.cuda.memory_allocated() == allocated
        train(model)
