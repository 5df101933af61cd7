"""`%gpumem_record` and `%gpumem_whatif` in a shell: what they do, how they refuse, complete and show progress."""

from __future__ import annotations

import functools
import io
import itertools
import shutil
import sys
from pathlib import Path

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher

from jupyter_gpumem import recorder
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.magics import whatif as magics
from jupyter_gpumem.recording import read_recording
from jupyter_gpumem.records import WhatIf
from jupyter_gpumem.report.progress import Progress
from jupyter_gpumem.units import GiB
from tests.recording_torch import RecordingTorch, own_recorder

DATA = Path(__file__).parents[1] / "data" / "recordings"
RESNET = DATA / "resnet50-default.pickle.gz"
RECORD_HINT = "; %gpumem_record --help lists what there is"
WHATIF_HINT = "; %gpumem_whatif --help lists what there is"


@pytest.fixture
def here(cells, tmp_path, monkeypatch):
    """The cells, in a folder of their own that holds a recording `run.pickle.gz`, with a recorder of their own."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(RESNET, "run.pickle.gz")
    own = own_recorder()
    monkeypatch.setattr(recorder, "RECORDER", own)
    monkeypatch.setattr(magics, "RECORDER", own)
    return cells


@pytest.fixture
def torch(here, monkeypatch):
    """A stand-in torch that can record."""
    torch = RecordingTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    yield torch
    recorder.RECORDER.close()
    assert torch.memory._record_memory_history == torch.original


# Recording


def test_recording_from_start_to_whatif(here, torch):
    """Start, work, look, save, stop, what-if: each says in a line what is, and the file is the same recording."""
    on = "recording · {} events (the newest 1,000,000 are kept) · with Python stacks"
    assert here("%gpumem_record").texts == ["not recording"]
    assert here("%gpumem_record start").texts == [on.format(0)]
    torch.work(4)
    assert here("%gpumem_record status").texts == [on.format(13)]
    assert here("%gpumem_record save new.pickle").texts == ["saved new.pickle"]
    assert here("%gpumem_record stop").texts == ["not recording · 13 events in the recording stopped last"]
    assert len(read_recording("new.pickle").events(0)) == 13
    outcome = here("%gpumem_whatif --set expandable_segments:True -j 1")
    assert outcome.texts[0].startswith("this session · card 0 · 13 events · card of 8.00 GiB · cap 4.00 GiB\n")
    assert [sorted(bundle) for bundle in outcome.displays] == [["text/html", "text/plain"]]
    assert here("%gpumem_whatif new.pickle -o -j 1 --set ''").value.check.exact


def test_recording_with_options(here, torch):
    """The number of events and the stacks are the user's choice."""
    assert here("%gpumem_record start --no-stacks --max-entries 5").texts == [
        "recording · 0 events (the newest 5 are kept) · without Python stacks"
    ]
    assert torch.calls == [(("all",), {"context": None, "stacks": "python", "max_entries": 5})]


def test_a_name_with_blanks(here, torch):
    """A file whose name has blanks is quoted, as in a shell."""
    here("%gpumem_record start")
    assert here("%gpumem_record save 'my run.pickle'").error is None
    assert here("%gpumem_whatif 'my run.pickle' -o").stderr.startswith(
        "UsageError: %gpumem_whatif: my run.pickle has no events"
    )


def test_a_name_with_a_variable_or_the_home_folder(here, torch, tmp_path, monkeypatch):
    """Names are what they are in other magics: a variable's value, and `~` for the home; not one literal file."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    here("step, setting = 7, 'expandable_segments:True'")
    here("%gpumem_record start")
    torch.work()
    for name, file in (("run{step}.pickle", "run7.pickle"), ("$step", "7"), ("~/run.pickle", "home/run.pickle")):
        assert here(f"%gpumem_record save {name}").error is None
        assert len(read_recording(tmp_path / file).events(0)) == 4
    assert (
        here("%gpumem_whatif ~/run.pickle -o --set {setting}").value.results[1].settings == "expandable_segments:True"
    )
    assert here("%gpumem_record save run{unknown}.pickle").texts == ["saved run{unknown}.pickle"]


def test_unloading_ends_our_recording(here, torch):
    """`%unload_ext` stops what we started and gives PyTorch's function back."""
    here("%gpumem_record start")
    assert torch.enabled
    here("%unload_ext jupyter_gpumem")
    assert not torch.enabled
    assert torch.memory._record_memory_history == torch.original


def test_unloading_leaves_the_users_recording(here, torch):
    """The user's recording goes on, whoever loads or unloads."""
    here("%gpumem_record status")
    torch.memory._record_memory_history(max_entries=9)
    assert here("%gpumem_record").texts == ["recording, not started by this extension · 0 events"]
    here("%unload_ext jupyter_gpumem")
    assert torch.enabled
    torch.memory._record_memory_history(None)


REFUSED = {
    "%gpumem_record stop": "no recording of ours is running; start one first",
    "%gpumem_record save": "save needs the name of a file: %gpumem_record save run.pickle.gz",
    "%gpumem_record save x.pickle": "nothing was recorded; start a recording first",
    "%gpumem_record start x.pickle": "start takes no file, got 'x.pickle'; save does",
    "%gpumem_record --max-entries 0": "argument --max-entries: not a number of at least 1: '0'" + RECORD_HINT,
    "%gpumem_record save a b": "unrecognized arguments: b" + RECORD_HINT,
    "%gpumem_whatif": "nothing was recorded; start a recording first",
    "%gpumem_whatif missing.pickle": (
        "'missing.pickle' cannot be read: No such file or directory; name a file saved as a recording"
    ),
    "%gpumem_whatif .": ". is a directory; name a recording in it",
    "%gpumem_whatif run.pickle.gz --set max_split_size:1": (
        "unknown allocator setting 'max_split_size'; did you mean 'max_split_size_mb'?"
    ),
    "%gpumem_whatif run.pickle.gz --memory lots": (
        "not a size: 'lots'; write a number and a unit, such as 512MiB or 1.5GiB"
    ),
    "%gpumem_whatif run.pickle.gz --limit 0": "a limit of '0' is not possible; write a size such as 24GiB",
    "%gpumem_whatif run.pickle.gz -d 7": "run.pickle.gz has no device 7; it has 0",
    "%gpumem_whatif -d cuda": "argument -d/--device: not a device's index: 'cuda'" + WHATIF_HINT,
    "%gpumem_whatif -j 0": "argument -j/--jobs: not a number of at least 1: '0'" + WHATIF_HINT,
    "%gpumem_whatif --set": "argument --set: expected one argument" + WHATIF_HINT,
    "%gpumem_whatif 'run": 'cannot read "\'run" (No closing quotation)' + WHATIF_HINT,
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_done_is_refused_in_one_line(here, torch, line):
    """Wrong options, files, settings and states are one `UsageError` line, with nothing displayed."""
    outcome = here(line)
    assert type(outcome.error).__name__ == "UsageError"
    assert outcome.stderr == f"UsageError: {line.split()[0]}: {REFUSED[line]}\n"
    assert (outcome.stdout, outcome.displays, outcome.value) == ("", [], None)
    assert torch.calls == []


def test_recording_without_torch(here, monkeypatch):
    """Where torch is not installed, start says so in one line, and status is no error."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert here("%gpumem_record start").stderr == (
        "UsageError: %gpumem_record: allocator events cannot be recorded: PyTorch is not installed in this kernel's "
        "environment; install torch and restart the kernel\n"
    )
    assert here("%gpumem_record").texts == ["not recording"]


def test_a_second_start_is_refused(here, torch):
    """While ours runs, and while the user's does, start says which."""
    here("%gpumem_record start")
    assert here("%gpumem_record start").stderr == (
        "UsageError: %gpumem_record: a recording is running already; stop it first\n"
    )
    torch.memory._record_memory_history(max_entries=9)
    assert here("%gpumem_record start").stderr == (
        "UsageError: %gpumem_record: a recording that is not ours is running and is left alone; "
        "it can be saved as it is\n"
    )
    torch.memory._record_memory_history(None)


# What-if


def test_options_of_whatif(here):
    """Settings, card, cap and device are those of `whatif()`, and `-o` returns its result and shows nothing."""
    outcome = here(
        "%gpumem_whatif run.pickle.gz --set max_split_size_mb:128 --set expandable_segments:True --memory 6GiB "
        "--limit off -d 0 -j 1 -o"
    )
    assert (outcome.displays, outcome.stderr) == ([], "")
    settings = ["max_split_size_mb:128", "expandable_segments:True"]
    assert outcome.value == whatif("run.pickle.gz", settings, memory=6 * GiB, limit="off")


def test_a_result_can_be_assigned(here):
    """`r = %gpumem_whatif -o FILE` binds the result."""
    here("r = %gpumem_whatif -o run.pickle.gz --set expandable_segments:True -j 1")
    assert isinstance(here["r"], WhatIf)
    assert here("r.best").value == "expandable_segments:True"


def test_a_whatif_is_displayed_once(here):
    """Without `-o` the report is displayed in both forms, and there is no value."""
    outcome = here("%gpumem_whatif run.pickle.gz --set expandable_segments:True -j 1")
    assert (outcome.value, outcome.stdout, outcome.stderr) == (None, "", "")
    assert outcome.texts == [str(whatif("run.pickle.gz", ["expandable_segments:True"]))]
    assert outcome.displays[0]["text/html"].startswith("<div")


@pytest.mark.parametrize("name", ["gpumem_record", "gpumem_whatif"])
def test_help_is_printed(here, name):
    """`--help` prints the help, with single percent signs, and does nothing."""
    outcome = here(f"%{name} --help")
    assert outcome.error is None
    assert outcome.stdout.startswith(f"usage: %{name} [")
    assert "%%" not in outcome.stdout
    assert outcome.displays == []


COMPLETIONS = {
    "%gpumem_record ": ["start", "stop", "save", "status"],
    "%gpumem_record st": ["start", "stop", "status"],
    "%gpumem_record save ": ["other.pickle", "run.pickle.gz"],
    "%gpumem_record save r": ["run.pickle.gz"],
    "%gpumem_record start --": ["--help", "--max-entries", "--no-stacks"],
    "%gpumem_record save run.pickle.gz ": ["--help", "--max-entries", "--no-stacks"],
    "%gpumem_whatif ": ["other.pickle", "run.pickle.gz"],
    "%gpumem_whatif o": ["other.pickle"],
    "%gpumem_whatif -j 2 r": ["run.pickle.gz"],
    "%gpumem_whatif run.pickle.gz --s": ["--set"],
    "%gpumem_whatif --set e": ["expandable_segments:"],
    "%gpumem_whatif run.pickle.gz --set max_split": ["max_split_size_mb:"],
    "%gpumem_whatif run.pickle.gz --set expandable_segments:": [
        "expandable_segments:True",
        "expandable_segments:False",
    ],
    "%gpumem_whatif --set expandable_segments:True,roundup_power2_divisions:8": [
        "expandable_segments:True,roundup_power2_divisions:8"
    ],
    "r = %gpumem_whatif -o r": ["run.pickle.gz"],
}


@pytest.mark.parametrize("line", COMPLETIONS)
def test_actions_files_and_settings_are_completed(here, line):
    """Tab offers what can stand there: actions, the folder's recordings, options, or settings."""
    for name in ("other.pickle", "notes.txt"):
        Path(name).touch()
    assert here.complete(line) == COMPLETIONS[line]


# Progress


def pace(monkeypatch, seconds):
    """Make each replay take so long, on the clock of the progress bar."""

    class Paced(Progress):
        def __init__(self, write, clear=None, clock=None):
            super().__init__(write, clear, itertools.count(0, seconds).__next__)

    monkeypatch.setattr(magics, "Progress", Paced)


@pytest.fixture
def slow(monkeypatch):
    """Make each replay take three seconds."""
    pace(monkeypatch, 3)


@pytest.fixture
def quick(monkeypatch):
    """Make replays take no time."""
    pace(monkeypatch, 0)


class FrontEnd:
    """Runs a line in a shell whose front end can update what it shows."""

    def __init__(self, shell, monkeypatch):
        self.shell = shell
        monkeypatch.setattr(type(shell), "kernel", object(), raising=False)

    def __call__(self, line):
        publisher = self.shell.display_pub = CapturingDisplayPublisher()
        self.result = self.shell.run_cell(line)
        ids = {output["transient"]["display_id"] for output in publisher.outputs}
        assert len(ids) <= 1, "all of it is one display"
        return [(output["update"], output["data"]) for output in publisher.outputs]


@pytest.fixture
def front_end(here, monkeypatch):
    """The shell, as one of a notebook."""
    return FrontEnd(here.shell, monkeypatch)


LINE = "%gpumem_whatif run.pickle.gz --set expandable_segments:True --set '' -j 1"
HALF = {"text/plain": "replaying [############............] 1 of 2"}


def test_the_report_takes_the_place_of_the_progress(front_end, slow):
    """What takes long shows one display that is updated, and in the end is the report."""
    shown = front_end(LINE)
    assert shown[0] == (False, HALF)
    assert all(updated for updated, _ in shown[1:])
    assert shown[-1][1]["text/plain"] == str(whatif("run.pickle.gz", ["expandable_segments:True", ""]))
    assert "text/html" in shown[-1][1]


def test_no_progress_stays_with_a_returned_result(front_end, slow):
    """With `-o` nothing stays to be seen of the progress."""
    shown = front_end(LINE + " -o")
    assert shown[0] == (False, HALF)
    assert shown[-1] == (True, {"text/plain": ""})
    assert isinstance(front_end.result.result, WhatIf)


def test_no_progress_stays_after_an_error(front_end, slow, monkeypatch):
    """When something fails halfway the progress goes, and the error stays."""

    def broken(*_, progress, **__):
        progress(1, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(magics, "whatif", broken)
    shown = front_end(LINE)
    assert shown == [(False, HALF), (True, {"text/plain": ""})]
    assert isinstance(front_end.result.error_in_exec, KeyboardInterrupt)


def test_quick_replays_show_no_progress(front_end, quick):
    """What is done within a second is one display, the report."""
    publisher = front_end.shell.display_pub = CapturingDisplayPublisher()
    front_end.shell.run_cell("%gpumem_whatif run.pickle.gz --set '' -j 1")
    assert [output["update"] for output in publisher.outputs] == [False]


def test_a_terminal_shows_progress_on_one_line(here, monkeypatch):
    """A terminal cannot update a display: the progress overwrites its own line on stderr, and is gone in the end."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, clock = Terminal(), itertools.count(0, 3).__next__
    monkeypatch.setattr(magics.Progress, "on_terminal", functools.partial(Progress.on_terminal, clock=clock))
    monkeypatch.setattr(magics.sys, "stderr", terminal)
    outcome = here(LINE)
    assert len(outcome.displays) == 1
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().startswith("\rreplaying [############............] 1 of 2")
    assert terminal.getvalue().endswith("\r\x1b[K")
