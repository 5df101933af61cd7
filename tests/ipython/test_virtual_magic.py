"""`%gpumem_virtual` in a shell: what it does, how it refuses, completes and ends."""

from __future__ import annotations

import sys

import pytest

from jupyter_gpumem import devices
from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.units import MiB
from jupyter_gpumem.virtual import session

pytest.importorskip("torch")

HINT = "; %gpumem_virtual --help lists what there is"
OFF = "No virtual GPU is on\n  %gpumem_virtual on --gpu NAME gives this session one."
NOTHING = (
    "Nothing is computed on it: tensors have a shape and a type but no values, and their memory is modelled.\n"
    "    %gpumem_virtual off ends it."
)

REFUSED = {
    "%gpumem_virtual on --gpu A100": (
        "%gpumem_virtual: 'A100' comes in more than one size; write A100-40GB or A100-80GB"
    ),
    "%gpumem_virtual on --gpu L40": (
        "%gpumem_virtual: no card is known as 'L40'; write a size such as 24GiB, or one of: L40S, L4, RTX-4090"
    ),
    "%gpumem_virtual on --gpu T4 --gpu 16xT4": "%gpumem_virtual: 'T4,16xT4' is more than 16 cards; write fewer",
    "%gpumem_virtual on --gpu": "%gpumem_virtual: argument --gpu: expected at least one argument" + HINT,
    "%gpumem_virtual --gpu T4": "%gpumem_virtual: --gpu goes with on: %gpumem_virtual on --gpu A100-80GB",
    "%gpumem_virtual off --gpu T4": "%gpumem_virtual: --gpu goes with on: %gpumem_virtual on --gpu A100-80GB",
    "%gpumem_virtual up": ("%gpumem_virtual: argument state: invalid choice: 'up' (choose from 'on', 'off')" + HINT),
}


@pytest.fixture
def cells(cells, monkeypatch):
    """The cells, in a process whose virtual GPU is off again afterwards."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    yield cells
    session.stop()


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_is_one_line(cells, line):
    """What cannot be is one `UsageError`, and nothing is on."""
    outcome = cells(line)
    assert type(outcome.error).__name__ == "UsageError"
    assert outcome.stderr.replace("expected one argument", "expected at least one argument") == (
        f"UsageError: {REFUSED[line]}\n"
    )
    assert outcome.displays == []
    assert session.active() is None


def test_without_an_argument_it_says_what_is_on(cells):
    """Off, on, and with what was assumed."""
    assert cells("%gpumem_virtual").texts == [OFF]
    cells("%gpumem_virtual on --gpu T4")
    [text] = cells("%gpumem_virtual").texts
    assert text == (
        "cuda:0 · virtual T4 · 14.74 GiB\n"
        "  Compute capability 7.5; the CUDA context takes 198.00 MiB (as seen on such a card) once the card is used.\n"
        f"  {NOTHING}"
    )
    with pytest.warns(UserWarning, match="has no value on a virtual GPU"):
        cells("import torch\nif torch.rand(1, device='cuda') > 0:\n    pass")
    [text] = cells("%gpumem_virtual").texts
    assert "198.00 MiB (as seen on such a card).\n" in text
    assert text.endswith(":2: a tensor has no value on a virtual GPU; it was given False")


def test_on_and_off(cells):
    """On, a session has a CUDA device and every magic works on it; off, it has what it had."""
    before = devices.backends()
    outcome = cells("%gpumem_virtual on")
    assert outcome.error is None
    assert outcome.texts[0].startswith("cuda:0 · virtual A100-80GB · 79.26 GiB\n")
    assert "text/html" in outcome.displays[0]
    assert cells("import torch\ntorch.cuda.get_device_name(), torch.cuda.device_count()").value == (
        "NVIDIA A100-SXM4-80GB",
        1,
    )
    outcome = cells("%%gpumem -v cost\nx = torch.empty(3 * MiB, dtype=torch.uint8, device='cuda')\n'last'")
    assert outcome.value == "last"
    usage = cells["cost"].devices[-1]
    assert (usage.device.name, usage.peak_allocated, usage.delta_allocated) == ("virtual A100-80GB", 3 * MiB, 3 * MiB)
    assert "A virtual GPU: nothing is computed on it; its memory is modelled." in outcome.texts[0]
    assert "allocated by tensors            3.00 MiB" in cells("%gpumem").texts[0]
    assert cells("del x\n%gpumem_virtual off").displays == []
    assert cells("torch.cuda.is_available()").value is False
    assert cells("%gpumem_virtual off").displays == []
    assert devices.backends() == before


def test_several_cards(cells):
    """`--gpu` can be repeated, and names more than one."""
    outcome = cells("%gpumem_virtual on --gpu 2xA100-40GB --gpu 'RTX 4090' --gpu 24GiB")
    heads = [line for line in outcome.texts[0].splitlines() if line.startswith("cuda:")]
    assert heads == [
        "cuda:0 · virtual A100-40GB · 39.39 GiB",
        "cuda:1 · virtual A100-40GB · 39.39 GiB",
        "cuda:2 · virtual RTX 4090 · 23.52 GiB",
        "cuda:3 · virtual 24.00 GiB card, compute capability 8.6 assumed · 24.00 GiB",
    ]
    cells("import torch\ny = torch.zeros(MiB, device='cuda:2')")
    assert cells("torch.cuda.memory_allocated(2), torch.cuda.memory_allocated(0)").value == (4 * MiB, 0)


def test_only_one_at_a_time(cells):
    """Another one is refused, and the first stays."""
    cells("%gpumem_virtual on --gpu T4")
    outcome = cells("%gpumem_virtual on --gpu L4")
    assert outcome.stderr == (
        "UsageError: %gpumem_virtual: this session has a virtual GPU already (virtual T4); "
        "first write %gpumem_virtual off\n"
    )
    assert session.active().cards[0].name == "T4"


def test_settings_of_the_environment(cells, monkeypatch):
    """The allocator starts with what PyTorch would have read, or says what is wrong with it."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    cells("%gpumem_virtual on --gpu T4\nimport torch\nz = torch.zeros(1, device='cuda')")
    assert "Allocator settings: expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF)." in cells("%gpumem").texts[0]
    cells("%gpumem_virtual off")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:yes")
    outcome = cells("%gpumem_virtual on --gpu T4")
    assert outcome.stderr == (
        "UsageError: %gpumem_virtual: the environment variable PYTORCH_CUDA_ALLOC_CONF is wrong: "
        "expandable_segments:yes is not understood; write exactly True or False\n"
    )


@pytest.mark.parametrize(
    ("variable", "value", "asked"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "backend:cudaMallocAsync"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    ],
)
def test_another_allocator_is_refused(cells, monkeypatch, variable, value, asked):
    """What is modelled is PyTorch's own caching allocator: numbers of it would be wrong for another."""
    monkeypatch.setenv(variable, value)
    for line in ("%gpumem_virtual on", "import torch\n%gpumem_predict torch.empty(1, device='cuda')"):
        assert f"own caching allocator, and {asked} asks for another" in cells(line).stderr
    assert session.active() is None


def test_beside_real_tensors_it_is_refused(cells, monkeypatch):
    """`cuda` means one device only: where tensors of a real one are alive, there is no virtual one."""
    real = FakeBackend(kind="cuda")
    real.allocate(5 * MiB)
    monkeypatch.setattr(devices.registry, "_backends", [real])
    outcome = cells("%gpumem_virtual on")
    monkeypatch.undo()
    assert outcome.stderr.startswith(
        "UsageError: %gpumem_virtual: 5.00 MiB are allocated on the real cuda:0, and cuda "
    )
    assert session.active() is None


def test_without_pytorch(cells, monkeypatch):
    """It says what is missing."""
    monkeypatch.setitem(sys.modules, "torch", None)
    outcome = cells("%gpumem_virtual on")
    assert outcome.stderr == (
        "UsageError: %gpumem_virtual: a virtual GPU needs PyTorch, which is not installed here; install torch and try "
        "again\n"
    )


def test_off_says_what_is_left(cells):
    """Tensors that are still alive are counted; workspaces are not."""
    cells("%gpumem_virtual on --gpu T4\nimport torch\nx = torch.ones(64, 64, device='cuda'); x @ x; None")
    assert cells("%gpumem_virtual off").texts == [
        "1 allocation was still on the virtual GPU; tensors that use it cannot be used any more"
    ]


def test_unloading_switches_it_off(cells):
    """`%unload_ext` leaves no virtual GPU."""
    cells("%gpumem_virtual on --gpu T4")
    assert cells("%unload_ext jupyter_gpumem").displays == []
    assert session.active() is None


def test_reloading_switches_it_off(cells):
    """`%reload_ext` leaves one copy of everything: a virtual GPU is not among it."""
    cells("%gpumem_virtual on --gpu T4\n%reload_ext jupyter_gpumem")
    assert session.active() is None
    assert cells("%gpumem_virtual").texts == [OFF]


def test_switching_inside_a_measured_cell(cells):
    """A measured cell may switch it on, and off: it ends as any cell does."""
    outcome = cells(
        "%%gpumem -v cost\n%gpumem_virtual on --gpu T4\nimport torch\n"
        "x = torch.empty(5 * MiB, dtype=torch.uint8, device='cuda'); del x\n"
        "torch.cuda.reset_peak_memory_stats()\n"
        "x = torch.empty(MiB, dtype=torch.uint8, device='cuda')\n'last'"
    )
    assert (outcome.value, outcome.error) == ("last", None)
    usage = cells["cost"].devices[-1]
    assert (usage.device.name, usage.peak_allocated, usage.delta_allocated, usage.doubt) == (
        "virtual T4",
        5 * MiB,
        MiB,
        None,
    )
    outcome = cells("%%gpumem\ndel x\n%gpumem_virtual off\n'last'")
    assert (outcome.value, outcome.error) == ("last", None)


def test_help(cells):
    """The help names the cards' syntax."""
    text = cells("%gpumem_virtual --help").stdout
    assert "usage: %gpumem_virtual [on [--gpu NAME|SIZE]...|off]" in text
    assert "%gpumem_virtual on --gpu 2xA100-40GB" in text


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%gpumem_virtual o", {"on", "off"}),
        ("%gpumem_virtual on --g", {"--gpu"}),
        ("%gpumem_virtual on --gpu A100", {"A100-40GB", "A100-80GB"}),
        ("%gpumem_virtual on --gpu RTX-50", {"RTX-5060-Ti-16GB", "RTX-5070-Ti", "RTX-5080", "RTX-5090"}),
    ],
)
def test_completion(cells, line, offered):
    """Tab offers states, options and cards, and nothing of the notebook's."""
    assert set(cells.complete(line)) == offered
