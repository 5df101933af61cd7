"""The command line: what it prints, its exit codes and its progress; in this process and as it is installed."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import subprocess
import sys

import pytest
from command_line import CAPPED, RESNET, installed

import jupyter_gpumem
from jupyter_gpumem import cli
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.recording import read_recording, write_recording
from jupyter_gpumem.records import Device, DeviceStatus, DriverMemory, Status
from jupyter_gpumem.report.progress import Progress
from jupyter_gpumem.units import GiB, MiB

# Help, version, status


@pytest.mark.parametrize(
    "arguments", [("--help",), ("status", "-h"), ("whatif", "--help"), ("report", "--help"), ("demo", "-h")]
)
def test_help_is_printed(command, arguments):
    """`--help` of the command and of each of its parts goes to stdout and is no error."""
    done = command(*arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"usage: jupyter gpumem{' ' + arguments[0] if len(arguments) > 1 else ''} [-h]")


def test_help_explains_every_option(command):
    """The help of what-if names its options, and shows no doubled percent sign."""
    out = command("whatif", "--help").out
    for option in ("--set KEY:VALUE,...", "--memory SIZE", "--limit SIZE|off", "-d", "-j", "--json", "%gpumem_record"):
        assert option in out
    assert "%%" not in out


def test_the_version_is_printed(command):
    """`--version` prints the package's."""
    assert command("--version").out == f"jupyter_gpumem {jupyter_gpumem.__version__}\n"


def test_the_installed_command_starts_without_torch():
    """It is on the path, and neither it nor a what-if imports torch, IPython or matplotlib."""
    assert installed("--version").out == f"jupyter_gpumem {jupyter_gpumem.__version__}\n"
    code = (
        "import sys; from jupyter_gpumem.cli import main; main(['whatif', sys.argv[1], '--set', ''])\n"
        "print(sorted({'torch', 'IPython', 'matplotlib', 'ipywidgets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, RESNET], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


def test_the_status_of_devices(command, fake):
    """With a device its layers are shown, as text and as JSON, and the exit code is 0."""
    fake.allocate(3 * MiB)
    done = command("status")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("fake:0 · scripted device · 8.00 GiB\n")
    data = command("status", "--json").json
    assert sum(size for _, size in data["devices"][0]["layers"]) == 8 * GiB


def test_the_status_is_the_machines(command, monkeypatch):
    """A process of its own has never used a GPU: the cards are shown, as the driver sees them, and nothing about it."""
    card = DeviceStatus(
        Device("GPU", 0, "NVIDIA H200", 8 * GiB), None, DriverMemory(8 * GiB, 2 * GiB, 6 * GiB, None, "nvml")
    )
    monkeypatch.setattr(cli, "status", lambda: Status((card,), {}, {}, "this process has not used a GPU yet"))
    done = command("status")
    assert (done.code, done.err) == (0, "")
    assert done.out == ("GPU:0 · NVIDIA H200 · 8.00 GiB\n  in use  2.00 GiB  25.0 %\n  free    6.00 GiB  75.0 %\n")
    assert command("status", "--json").json["missing"] is None


@pytest.mark.parametrize("missing", ["this process has not used a GPU yet", "PyTorch is not installed in this ..."])
def test_the_status_without_devices(command, monkeypatch, missing):
    """Where there is no card, one line says that of the driver, not of this process, and the exit code is 1."""
    monkeypatch.setattr(cli, "status", lambda: Status((), {}, {}, missing))
    done = command("status")
    assert (done.code, done.out, done.err) == (1, "The driver shows no GPU on this machine; try nvidia-smi.\n", "")
    done = command("status", "--json")
    assert (done.code, done.json["missing"]) == (1, "the driver shows no GPU on this machine; try nvidia-smi")


def test_the_demo(command):
    """It shows a status, a report and a what-if of a run that the model made up, and how to do that for one's own."""
    done = command("demo")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("A made-up training run: 60 steps on batches of changing length")
    parts = ["cuda:0 · a made-up card · 24.00 GiB", "demo, device 0 ·", "best: expandable_segments:True", "Checked: a"]
    places = [done.out.index(part) for part in (*parts, "For a run of your own", "jupyter gpumem whatif run.pickle.gz")]
    assert places == sorted(places)
    assert command("demo", "-j", "2").out == done.out, "the same every time"


def test_the_demo_as_json(command):
    """As JSON it is that of a what-if, with the status."""
    data = command("demo", "--json").json
    assert list(data) == ["status", "recording", "check", "results"]
    assert data["check"]["mismatches"] == 0
    layers = data["status"]["devices"][0]["layers"]
    assert sum(size for _, size in layers) == data["recording"]["total_memory"] == 24 * GiB
    first, best = data["results"][0], next(row for row in data["results"] if row["best"])
    assert best["settings"] == "expandable_segments:True"
    assert best["gain"] > first["peak_reserved"] // 4


def test_the_demo_without_torch():
    """It needs neither torch nor a GPU."""
    code = (
        "import sys; sys.modules['torch'] = None; from jupyter_gpumem.cli import main; code = main(['demo'])\n"
        "print(code, sorted({'IPython', 'matplotlib', 'ipywidgets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n0 []\n")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_tables_as_wide_as_it_is(command, monkeypatch, columns):
    """On a terminal no table is wider; elsewhere lines are as long as they are."""
    arguments = ("whatif", RESNET, "--set", "expandable_segments:True,roundup_power2_divisions:8")
    wide = command(*arguments).out
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 24)))
    assert command(*arguments).out == wide
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert cli.main(list(arguments)) == 0
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= columns < max(map(len, wide.splitlines()))


def test_the_installed_status():
    """The exit code of the installed command says whether there was a device to show."""
    done = installed("status", "--json")
    assert done.code == (0 if done.json["devices"] else 1)
    assert done.err == ""


# What-if and report on recordings


def test_whatif_prints_the_documented_json(command):
    """Recording, check and results: the recorded settings first, then those given, in their order; bytes as integers.

    Without `--set` a search is made, and the best follow the recorded ones.
    """
    given = ["max_split_size_mb:128", "", "expandable_segments:True"]
    done = command("whatif", RESNET, "--json", *itertools.chain(*(("--set", text) for text in given)))
    assert (done.code, done.err) == (0, "")
    assert list(done.json) == ["recording", "check", "results"]
    assert done.json["check"] == {"segment_events": 114, "mismatches": 0, "max_difference": 0}
    rows = done.json["results"]
    assert [row["settings"] for row in rows] == ["", *given]
    assert [row["recorded"] for row in rows] == [True, False, False, False]
    for row in rows:
        assert list(row)[:1] == ["settings"]
        for key in ("peak_allocated", "peak_reserved", "retries", "ooms", "stranded", "device_frees", "gain"):
            assert type(row[key]) is int, key
    assert rows[0]["peak_reserved"] == read_recording(RESNET).extra["memory_stats"]["reserved_bytes.all.peak"]
    assert done.json == json.loads(json.dumps(whatif(RESNET, given).to_dict()))
    searched = command("whatif", RESNET, "--json").json["results"]
    peaks = [row["peak_reserved"] for row in searched]
    assert searched[0]["recorded"]
    assert len(searched) >= 10
    assert peaks[1:] == sorted(peaks[1:])


def test_whatif_prints_a_table(command):
    """As text it is the report of the same result, in one block."""
    done = command("whatif", RESNET, "--set", "expandable_segments:True")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{whatif(RESNET, ['expandable_segments:True'])}\n"
    assert "  best: expandable_segments:True  " in done.out


def test_whatif_on_another_card(command):
    """`--memory` assumes a card of that size."""
    data = command("whatif", RESNET, "--memory", "6GiB", "--set", "", "--json").json
    assert data["recording"]["assumed_memory"] == 6 * GiB
    assert data["recording"]["total_memory"] == read_recording(RESNET).circumstances(0).total_memory
    assert data["results"][0]["retries"] > 0


def test_whatif_under_another_cap(command):
    """The recorded cap stays unless `--limit` lifts or replaces it."""
    limits = {
        given: command("whatif", CAPPED, "--set", "", "--json", *(("--limit", given) if given else ())).json
        for given in (None, "recorded", "off", "3GiB")
    }
    recorded = read_recording(CAPPED).circumstances(0).limit
    assumed = [data["recording"]["assumed_limit"] for data in limits.values()]
    assert assumed == [recorded, recorded, None, 3 * GiB]
    assert {data["recording"]["limit"] for data in limits.values()} == {recorded}
    assert [data["results"][0]["ooms"] for data in limits.values()][:3] == [1, 1, 0]


def test_processes_change_nothing(command):
    """`-j 2` gives the very same output as one process, for what-if and for the report."""
    for name in ("whatif", "report"):
        one, two = (command(name, RESNET, "--json", "-j", jobs) for jobs in ("1", "2"))
        assert (one.code, one.out, one.err) == (two.code, two.out, two.err) == (0, one.out, "")


def test_report_prints_what_a_recording_holds(command):
    """The report is what the recording holds and then the what-if."""
    done = command("report", CAPPED)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == (
        "encoder-default-cap4.3-oom.pickle.gz, device 0 · NVIDIA H200 · torch 2.11.0+cu130 · settings: PyTorch defaults"
    )
    assert "  events                    6,172" in lines
    assert "  out-of-memory errors          1" in lines
    assert done.out.endswith(command("whatif", CAPPED).out)


def test_report_prints_json(command):
    """The JSON of a report is that of a what-if."""
    assert command("report", CAPPED, "--json").json == command("whatif", CAPPED, "--json").json


def test_report_of_a_snapshot_without_events(command, tmp_path):
    """A snapshot of the memory alone can be reported, though there is nothing to replay."""
    segments = read_recording(RESNET).snapshot["segments"]
    path = write_recording({"segments": segments}, tmp_path / "memory.pickle")
    done = command("report", str(path))
    assert (done.code, done.err) == (0, "")
    assert "\n  events                        0\n" in done.out
    data = command("report", str(path), "--json").json
    assert list(data) == ["recording", "check", "results"]
    assert (data["check"], data["results"]) == (None, [])


def test_the_installed_command_on_a_recording():
    """The installed command prints what the function in this process prints."""
    done = installed("whatif", RESNET, "--set", "expandable_segments:True", "--json", "-j", "2")
    assert (done.code, done.err) == (0, "")
    assert done.json == json.loads(json.dumps(whatif(RESNET, ["expandable_segments:True"]).to_dict()))


# Progress


class Terminal(io.StringIO):
    """A stream that people look at."""

    def isatty(self):
        return True


def lines_of(terminal):
    """Return the states of the line that a terminal showed."""
    return terminal.getvalue().split("\r")[1:]


@pytest.fixture
def slow(monkeypatch):
    """Make each replay take three seconds, on the clock of the progress bar."""
    clock = itertools.count(0, 3).__next__
    monkeypatch.setattr(cli.Progress, "on_terminal", functools.partial(Progress.on_terminal, clock=clock))


def test_a_terminal_sees_the_progress(command, monkeypatch, slow):
    """What takes long shows one line on stderr that grows, and is gone in the end; stdout is untouched."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    done = command("whatif", RESNET, "--set", "", "--set", "expandable_segments:True", "-j", "1")
    *shown, last = lines_of(terminal)
    assert list(dict.fromkeys(line.removesuffix("\x1b[K") for line in shown)) == [
        "replaying [############............] 1 of 2",
        "replaying [########################] 2 of 2",
        "replaying [########################] 3 of 3",
    ]
    assert last == "\x1b[K"
    assert done.out == f"{whatif(RESNET, ['', 'expandable_segments:True'])}\n"


def test_only_a_terminal_sees_it(command, slow):
    """A file or a pipe gets no progress."""
    assert command("whatif", RESNET, "--set", "", "-j", "1").err == ""


def test_nothing_is_shown_within_a_second(command, monkeypatch):
    """What is done before a second is over shows no progress at all."""
    clock = itertools.count(0, 0.1).__next__
    monkeypatch.setattr(cli.Progress, "on_terminal", functools.partial(Progress.on_terminal, clock=clock))
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert command("whatif", RESNET, *["--set", ""] * 4, "-j", "1").code == 0
    assert terminal.getvalue() == ""


def test_the_progress_is_gone_when_something_fails(command, monkeypatch, slow):
    """An error is printed on a line of its own."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())

    def broken(*_, progress, **__):
        progress(1, 3)
        return whatif(RESNET, memory="lots")

    monkeypatch.setattr(cli, "whatif", broken)
    assert command("whatif", RESNET).code == 2
    assert lines_of(terminal)[-1].startswith("\x1b[Kjupyter gpumem: not a size: 'lots'")


def test_progress_writes_at_most_ten_times_a_second():
    """However often it is called, a line is written every tenth of a second, the first after one."""
    now, shown, cleared = [0.0], [], []
    with Progress(shown.append, lambda: cleared.append(now[0]), lambda: now[0]) as progress:
        for step in range(300):
            now[0] = step / 100
            progress(step, 300)
    counts = [int(line.split("] ")[1].split()[0]) for line in shown]
    assert counts[0] == 100
    assert all(b - a >= 10 for a, b in itertools.pairwise(counts))
    assert 15 <= len(counts) <= 21
    assert cleared == [2.99]
    assert len({line.index("]") for line in shown}) == 1


def test_progress_of_nothing_is_not_cleared():
    """Where nothing was written there is nothing to clear, and no plan is no division by zero."""
    cleared = []
    with Progress(cleared.append, lambda: cleared.append(""), lambda: 0.0) as progress:
        progress(1, 1)
    assert cleared == []
    shown = []
    Progress(shown.append, clock=itertools.count(0, 2).__next__)(0, 0)
    assert shown == [f"replaying [{'.' * 24}] 0 of 0"]


def test_a_stream_that_is_none_gets_no_progress():
    """Where Python has no stderr, as without a console, nothing is written."""
    with Progress.on_terminal(None, itertools.count(0, 2).__next__) as progress:
        progress(1, 2)
