"""Recording and what-if through a real kernel, as a front end sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpumem.comparison import whatif

DATA = Path(__file__).parents[1] / "data" / "recordings"
RESNET = DATA / "resnet50-default.pickle.gz"
CHOICES = ["max_split_size_mb:128", "expandable_segments:True"]
LINE = f"%gpumem_whatif {RESNET} --set {CHOICES[0]} --set {CHOICES[1]} -j 1"
HEAVY = "sorted({'torch', 'matplotlib', 'ipywidgets', 'anywidget', 'pandas'} & set(__import__('sys').modules))"
START = "UsageError: %gpumem_record: allocator events cannot be recorded: "

CLOCK = """
import itertools
from jupyter_gpumem.magics import whatif as module
from jupyter_gpumem.report.progress import Progress
class Paced(Progress):
    def __init__(self, write, clear=None):
        super().__init__(write, clear, itertools.count(0, {seconds}).__next__)
module.Progress = Paced
"""
REAL_CLOCK = "module.Progress = Progress"

STAND_IN = """
import sys
from tests.recording_torch import RecordingTorch
before = sys.modules.get("torch")
torch = sys.modules["torch"] = RecordingTorch()
"""


@pytest.fixture
def quick(kernel):
    """The module's kernel, where a replay takes no time on the clock of the progress bar."""
    kernel.run(CLOCK.format(seconds=0), store_history=False)
    yield kernel
    kernel.run(REAL_CLOCK, store_history=False)


@pytest.fixture
def stand_in(fresh_kernel):
    """A fresh kernel with the extension loaded, whose torch is a stand-in that can record."""
    fresh_kernel.run("%load_ext jupyter_gpumem")
    fresh_kernel.run(f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})")
    reply = fresh_kernel.run(STAND_IN)
    assert reply.status == "ok", reply.shown
    return fresh_kernel


def test_whatif_on_a_file(quick):
    """A recording is replayed in the kernel and shown once, in both forms, as anywhere else."""
    reply = quick.run(LINE)
    assert (reply.status, reply.stdout, reply.stderr, reply.updates, reply.results) == ("ok", "", "", [], [])
    assert [sorted(bundle) for bundle in reply.displays] == [["text/html", "text/plain"]]
    assert reply.reports == [str(whatif(RESNET, CHOICES))]


def test_whatif_in_two_processes(quick):
    """Other processes work for a kernel too, and give the same."""
    assert quick.run(LINE.replace("-j 1", "-j 2")).reports == [str(whatif(RESNET, CHOICES))]


def test_whatif_returns_its_result(quick):
    """`-o` makes the result the value of the cell, which shows as its report, and can be assigned."""
    reply = quick.run(LINE + " -o")
    assert (reply.status, reply.displays, reply.result) == ("ok", [], str(whatif(RESNET, CHOICES)))
    assert quick.run(f"r = {LINE} -o").results == []
    assert quick.value("r.best, len(r.results)") == "('expandable_segments:True', 3)"


def test_progress_is_updated_in_place(kernel):
    """Progress is one display; its last update is the report, or nothing when the result is returned."""
    kernel.run(CLOCK.format(seconds=3), store_history=False)
    shown, returned = kernel.run(LINE), kernel.run(LINE + " -o")
    kernel.run(REAL_CLOCK, store_history=False)
    for reply in (shown, returned):
        assert reply.status == "ok", reply.shown
        assert reply.reports == ["replaying [############............] 1 of 2"]
    assert shown.updates[-1]["text/plain"] == str(whatif(RESNET, CHOICES))
    assert returned.updates[-1] == {"text/plain": ""}
    assert returned.result == shown.updates[-1]["text/plain"]


def test_what_is_wrong_is_one_line(kernel):
    """A missing file and a wrong setting are one line, no traceback, and Run All stops there."""
    for line, said in (
        ("%gpumem_whatif missing.pickle", "'missing.pickle' cannot be read: No such file or directory; "),
        (f"%gpumem_whatif {RESNET} --set max_split_size:1", "unknown allocator setting 'max_split_size'; did you mean"),
        ("%gpumem_whatif", "nothing was recorded; start a recording first"),
    ):
        reply = kernel.run(line)
        assert (reply.status, reply.content["ename"], reply.errors, reply.displays) == ("error", "UsageError", [], [])
        assert reply.stderr.startswith(f"UsageError: %gpumem_whatif: {said}")
        assert reply.stderr.count("\n") == 1


def test_completion(kernel):
    """Tab offers actions and settings through the protocol, too."""
    assert kernel.complete("%gpumem_record sta") == ["start", "status"]
    assert kernel.complete("%gpumem_whatif --set expandable_segments:T") == ["expandable_segments:True"]


def test_before_torch_is_imported(fresh_kernel):
    """Both magics work without torch: recording says what is missing, what-if needs nothing; nothing heavy comes in."""
    fresh_kernel.run("%load_ext jupyter_gpumem")
    reply = fresh_kernel.run("%gpumem_record start")
    assert (reply.status, reply.stderr) == ("error", f"{START}torch was not imported; import torch first\n")
    assert fresh_kernel.run("%gpumem_record").reports == ["not recording"]
    assert fresh_kernel.run("%gpumem_record stop").stderr == (
        "UsageError: %gpumem_record: no recording of ours is running; start one first\n"
    )
    assert fresh_kernel.run(LINE).reports == [str(whatif(RESNET, CHOICES))]
    assert fresh_kernel.value(HEAVY) == "[]"


def test_with_a_torch_that_has_no_gpu(fresh_kernel):
    """With a real torch for CPU, start says why in one line, and CUDA stays as it was."""
    fresh_kernel.run("%load_ext jupyter_gpumem")
    fresh_kernel.run("import torch; torch.version.cuda = torch.version.hip = None")
    version = fresh_kernel.value("str(torch.__version__)").strip("'")
    reply = fresh_kernel.run("%gpumem_record start")
    assert (reply.status, reply.stderr) == ("error", f"{START}this PyTorch ({version}) is built without GPU support\n")
    assert fresh_kernel.run("%gpumem_record").reports == ["not recording"]
    assert fresh_kernel.run("with __import__('jupyter_gpumem').record():\n    pass").error == "UnavailableError"
    assert fresh_kernel.value("torch.cuda.is_initialized()") == "False"


def test_recording_and_unloading(stand_in):
    """A recording is taken and replayed; a second one ends with the extension, and nothing stays replaced."""
    assert "recording · 0 events" in stand_in.run("%gpumem_record start").reports[0]
    stand_in.run("torch.work(3)")
    assert stand_in.run("%gpumem_record stop").reports == ["not recording · 10 events in the recording stopped last"]
    assert "Checked: " in stand_in.run("%gpumem_whatif --set '' -j 1").reports[0]
    stand_in.run("%gpumem_record start")
    assert stand_in.value("torch.enabled, torch.memory._record_memory_history == torch.original") == "(True, False)"
    assert stand_in.run("%unload_ext jupyter_gpumem").status == "ok"
    assert stand_in.value("torch.enabled, torch.memory._record_memory_history == torch.original") == "(False, True)"


def test_reloading_ends_our_recording_too(stand_in):
    """`%reload_ext` leaves one copy of everything, and no recording that nobody could stop any more."""
    stand_in.run("%gpumem_record start")
    stand_in.run("%reload_ext jupyter_gpumem")
    assert stand_in.run("%gpumem_record").reports == ["not recording"]
    assert stand_in.value("torch.enabled, torch.memory._record_memory_history == torch.original") == "(False, True)"
