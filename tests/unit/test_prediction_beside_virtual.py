"""Predictions while a virtual GPU is on: it is where they begin, and is as before afterwards."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from predicted_training import make, take, train  # noqa: E402

import jupyter_gpumem as gm  # noqa: E402
from jupyter_gpumem.prediction import predict  # noqa: E402
from jupyter_gpumem.units import GiB, KiB, MiB  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_gpu_is_left")


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


def test_what_was_made_before_is_other():
    """Tensors that no graph holds are what the user made; the graph of an earlier forward pass is activations."""
    with gm.virtual_gpu("T4"):
        made, model = take(50 * MiB), torch.nn.Linear(1024, 1024, bias=False).cuda()
        batch = torch.ones(3072, 1024, device="cuda")
        out = model(batch).relu()
        ((model.weight * 2).sum()).backward()
        parts = dict(predict(lambda: take(10 * MiB)).devices[0].parts)
        assert parts["other"] == 60 * MiB + batch.nbytes
        assert parts["activations"] == out.nbytes  # in place of its input, of which only the graph of a product knows
        assert (parts["parameters"], parts["gradients"]) == (4 * MiB, 4 * MiB)
        assert made.is_cuda


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
