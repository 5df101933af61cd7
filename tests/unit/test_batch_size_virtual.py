"""The largest batch size with a prediction: on a virtual GPU, and beside a card that stands for a real one."""

from __future__ import annotations

import pytest
from controlled_device import ControlledBackend

import jupyter_gpumem as gm
from jupyter_gpumem import devices, expectation
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.records import Device
from jupyter_gpumem.units import GiB, MiB
from jupyter_gpumem.virtual import session
from tests.notebooks import take

torch = pytest.importorskip("torch")


@pytest.fixture
def gpu():
    """A virtual GPU of 24 GiB that is in use."""
    with gm.virtual_gpu("24GiB"):
        first = take(1)
        yield
        del first


def test_a_session_with_a_virtual_gpu_predicts(gpu):
    """By default there, and a few trials are enough; what is kept free and held already counts."""
    held = take(4096)

    def fn(n):
        take(40 * n)

    found, plain = (gm.find_batch_size(fn, margin=0.25, predict=predict) for predict in (None, False))
    assert found.batch_size == plain.batch_size == found.predicted
    assert [trial.batch_size for trial in found.trials] == [1, found.batch_size, found.batch_size + 1]
    assert len(plain.trials) > 10
    assert (found.notes, plain.predicted) == ((), None)
    del held


def test_the_margin_is_not_explained_as_a_cap_to_raise(gpu):
    """Where nothing runs because of what is kept free, less of that helps; where the user's own cap is lower, that."""
    held = take(20 << 10)

    def fn(n):
        take(2800 * n)

    (action,) = gm.find_batch_size(fn).oom.actions
    assert action.text == "keep less free than 5 % of the card: a smaller margin, or margin=0"
    assert action.checked
    torch.cuda.set_per_process_memory_fraction(0.9)
    try:
        (action,) = gm.find_batch_size(fn).oom.actions
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert action.text.startswith("raise the cap: torch.cuda.set_per_process_memory_fraction(0.9")
    del held


def test_the_prediction_leaves_no_trace(gpu, capsys):
    """Neither in what the function changes, nor in memory, nor in what is shown."""
    calls, model = [], torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def fn(n):
        print("batch", n)
        calls.append(n)
        optimizer.zero_grad()
        model(torch.ones(n << 20, 64, device="cuda")).sum().backward()
        optimizer.step()

    found = gm.find_batch_size(fn)
    assert found.predicted is not None
    assert calls == [trial.batch_size for trial in found.trials for _ in range(2 if trial.fits else 1)]
    assert capsys.readouterr().out.split() == [word for n in calls for word in ("batch", str(n))]
    before = torch.cuda.memory_allocated()
    gm.find_batch_size(fn)
    assert torch.cuda.memory_allocated() == before


def test_what_cannot_be_put_back_is_said(gpu, tmp_path):
    """A generator that the function advances, and a file that it saves."""
    batches = (take(1) for _ in range(1000))

    def fn(n):
        next(batches)
        take(400 * n)
        torch.save({}, tmp_path / "model.pt")

    advanced, unsaved = gm.find_batch_size(fn).notes
    assert advanced == (
        "the prediction ran fn too, and could not put everything back: "
        "the generator <genexpr>() was advanced, which cannot be undone"
    )
    assert unsaved.startswith("what fn saves was written by the trials only, not by the prediction: ")
    assert "model.pt" in unsaved
    assert (tmp_path / "model.pt").exists()


def test_a_function_that_cannot_be_predicted(gpu):
    """The search goes on without, and says so in one note."""

    def fn(n):
        if session.active().memory.allocators[0].driver.free is None:
            raise NotImplementedError("not in memory without end")
        take(400 * n)

    found = gm.find_batch_size(fn)
    assert found.predicted is None
    assert found.notes == ("no prediction to begin with: NotImplementedError: not in memory without end",)
    assert found.batch_size == gm.find_batch_size(fn, predict=False).batch_size


class Real(ControlledBackend):
    """A scripted CUDA device in the place of a real one."""

    def count(self):
        return 2


class NoDriver:
    """A driver that knows no card."""

    def memory(self, device):
        return None

    def cards(self):
        return ()


@pytest.fixture
def real():
    """A card of 8 GiB that is in use, one of two."""
    backend = Real("cuda")
    restore = devices.stand_in(backend, NoDriver())
    yield backend
    LEDGER.detach()
    restore()


def test_a_real_card_is_predicted_when_asked(real):
    """The function runs on virtual cards like those that are there, and they are there again for the trials."""
    seen = []

    def fn(n):
        gpu = session.active()
        if gpu is not None:
            seen.append([card.total for card in gpu.cards])
            return take(100 * n)
        handle = real.allocate(100 * n * MiB)
        real.free(handle)
        return None

    plain = gm.find_batch_size(fn, margin=0)
    assert seen == []
    found = gm.find_batch_size(fn, margin=0, predict=True)
    assert seen == []  # it is put back as everything is
    assert found.batch_size == plain.batch_size == found.predicted == (8 * GiB - real.context) // (100 * MiB)
    assert [trial.batch_size for trial in found.trials] == [1, found.batch_size, found.batch_size + 1]
    assert session.active() is None


@pytest.mark.parametrize(
    ("name", "total", "expected"),
    [
        ("NVIDIA H200", 139 * GiB, ("H200", (9, 0))),
        ("NVIDIA GeForce RTX 4090", 23 * GiB, ("RTX 4090", (8, 9))),
        ("NVIDIA Unheard-of", 31 * GiB, ("31.00 GiB card", (8, 6))),
        (None, 5 * GiB, ("5.00 GiB card", (8, 6))),
    ],
)
def test_cards_like_real_ones(real, name, total, expected):
    """A known kind is that kind, with the memory that is there; another one is a card of its size."""
    cards = expectation._cards_like([Device("cuda", 1, name, total)])
    assert [(card.name, card.capability, card.total) for card in cards] == [(*expected, total)] * 2
