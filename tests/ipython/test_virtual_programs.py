"""Programs as people write them, each as a cell of a shell with a virtual GPU: none fails, and the card holds them."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from jupyter_gpumem.virtual import session
from jupyter_gpumem.virtual.notes import VirtualValueWarning

torch = pytest.importorskip("torch")

PROGRAMS = sorted((Path(__file__).parents[1] / "programs").glob("*.py"))


@pytest.fixture
def notebook(cells, tmp_path, monkeypatch):
    """The cells, in a process whose virtual GPU is off again afterwards."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    cells.shell.user_ns["folder"] = tmp_path
    flags = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.get_float32_matmul_precision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield cells
        cells.shell.reset(new_session=False)
        session.stop()
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, precision = flags
    torch.set_float32_matmul_precision(precision)


@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_a_program_runs_as_on_a_real_card(notebook, path):
    """Its own assertions hold, what it says of values is the placeholder, and its memory is on the card."""
    assert notebook("%gpumem_virtual on --gpu 2x24GiB").error is None
    outcome = notebook(path.read_text(encoding="utf-8"))
    assert outcome.error is None, outcome.stdout[-2000:]
    assert torch.cuda.max_memory_allocated() > 0
    assert not re.search(r"\bnan\b|\d\.\d+e[+-]?[1-9]\d|cuda_virtual", outcome.stdout), outcome.stdout
    for note in session.active().notes:
        assert re.match(r"<ipython-input-|/.*ipykernel_", note.file), note


def test_placeholders_are_no_accident(notebook):
    """A value that is not known is zero each time, also after it was changed in place in a fresh block of memory."""
    notebook("%gpumem_virtual on --gpu T4\nimport torch")
    notebook("values = []\nfor _ in range(20):\n    junk = [torch.full((64,), 3.7) for _ in range(50)]; del junk")
    code = "x = torch.randn(8, device='cuda').sum(0, keepdim=True)\nvalues.append(x.mul_(12.5).item())"
    for _ in range(20):
        notebook(code)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VirtualValueWarning)
        assert notebook["values"] == [0.0] * 20
