"""The panel in the kernel: what it sends and when, what buttons do, how it ends. No browser, no real time."""

from __future__ import annotations

import json
import math
import sys
import threading

import pytest

from jupyter_gpumem import devices, live
from jupyter_gpumem.errors import UnavailableError
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.live import controller, placement, widget
from jupyter_gpumem.live.actions import Actions
from jupyter_gpumem.live.attention import SILENCE, Attention
from jupyter_gpumem.live.controller import CHUNK, Panel
from jupyter_gpumem.live.spans import KEPT, Spans
from jupyter_gpumem.measurement import Measure
from jupyter_gpumem.pacing import Clock
from jupyter_gpumem.records import OomExplanation, OomText
from jupyter_gpumem.sampler import ROW
from tests.model_backend import ModelBackend

MiB = 2**20
REASON = OomExplanation(
    verdict="too much",
    sentence="Too much <b>for</b> the card",
    text=OomText("allocator", "cuda", 20 * MiB),
    device="cuda:0",
    evidence=(),
    details=(),
    actions=(),
    seen="when it happened",
)


class Steps(Clock):
    """A clock that lets the thread beat once for each `step()`, and tells when it has."""

    def __init__(self):
        self.time = 10.0
        self.go = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)

    def now(self):
        return self.time

    def wait(self, wake, seconds):
        self.waiting.release()
        self.go.acquire()


class Pipe:
    """What stands for the widget: keeps what was sent."""

    identity = "m"

    def __init__(self):
        self.sent = []
        self.closed = False
        self.broken = None

    def send(self, message):
        if self.broken:
            raise self.broken
        self.sent.append(message)

    def close(self):
        self.closed = True

    def mimebundle(self):
        return {widget.MIME_TYPE: {"model_id": "m"}}

    def kinds(self):
        """Return what was sent since the last time."""
        kinds = [message.content["kind"] for message in self.sent]
        self.sent.clear()
        return kinds


class Driven:
    """A panel whose thread is led step by step."""

    def __init__(self):
        self.clock = Steps()
        self.pipe = Pipe()
        self.panel = Panel(channel=self.pipe, clock=self.clock)
        self.clock.waiting.acquire()

    def step(self, seconds=0.25):
        """Let one beat happen."""
        self.clock.time += seconds
        self.clock.go.release()
        heart = self.panel._heart
        while not self.clock.waiting.acquire(timeout=0.1):
            if not heart.running:
                return

    def close(self):
        """Close it as a user does."""
        self.clock.go.release()
        self.panel.close()


@pytest.fixture
def gpu():
    """A modelled device that the process uses."""
    backend = ModelBackend()
    devices.add_backend(backend)
    yield backend
    LEDGER.detach()
    devices.remove_backend(backend)


@pytest.fixture
def driven(gpu):
    """A panel on that device."""
    one = Driven()
    yield one
    one.close()


def hello(driven, **more):
    """A view comes."""
    driven.panel.received({"kind": "hello", "view": "v", "slot": 0, **more})
    driven.step()


def test_a_view_gets_everything_when_it_comes(driven, gpu):
    """State, cells, the rows so far, the map; then one row for each beat, and a map every two seconds."""
    gpu.allocate(MiB)
    for _ in range(3):
        driven.step()
    driven.pipe.kinds()
    hello(driven)
    assert driven.pipe.kinds() == ["state", "cells", "samples", "samples", "map"]
    for _ in range(7):
        driven.step()
    assert driven.pipe.kinds() == ["samples"] * 7
    driven.step()
    assert driven.pipe.kinds() == ["samples", "map"]


def test_a_refresh_is_small(driven):
    """A message of a refresh has at most 1 KiB, JSON included."""
    hello(driven)
    driven.pipe.kinds()
    driven.step()
    (message,) = driven.pipe.sent
    assert message.size + len(json.dumps(message.content)) <= 1024
    assert message.size == ROW.size


def test_long_histories_come_in_pieces(driven):
    """Older rows are sent in messages that no server holds back."""
    sample = driven.panel._sampler.latest()[0]
    for n in range(2 * CHUNK):
        driven.panel._sampler.ring.append(sample._replace(time=float(n)))
    driven.panel.received({"kind": "hello", "view": "v", "slot": 0})
    pieces = [m for m in driven.panel._outbox if m.content.get("history")]
    assert len(pieces) == 3
    assert all(piece.size <= CHUNK * ROW.size < 400_000 for piece in pieces)
    assert sum(piece.size for piece in pieces) == len(driven.panel._sampler.ring) * ROW.size


def test_nothing_is_sent_to_nobody(driven):
    """When no view looks and no cell runs the panel is silent, and still samples."""
    hello(driven)
    driven.panel.received({"kind": "look", "view": "v", "slot": None})
    driven.pipe.kinds()
    before = len(driven.panel._sampler.ring)
    for _ in range(20):
        driven.step()
    assert driven.pipe.kinds() == []
    assert len(driven.panel._sampler.ring) == before + 20
    driven.panel.received({"kind": "look", "view": "v", "slot": 0})
    driven.step()
    assert driven.pipe.sent[0].size == 21 * ROW.size  # who looks again gets what was missed


def test_without_a_device_there_are_signs_of_life(monkeypatch):
    """A view that waits for the first use of a GPU hears from the kernel, and learns why there is none after a cell."""
    one = Driven()
    hello(one)
    one.pipe.kinds()
    for _ in range(3):
        one.step()
    assert [(message.content, message.buffers) for message in one.pipe.sent] == [({"kind": "samples"}, [])] * 3
    one.pipe.kinds()
    monkeypatch.setattr(devices, "explain_absence", lambda: "no support")
    one.panel.began(1)
    one.panel.ended()
    one.step()
    assert [message.content["absent"] for message in one.pipe.sent if message.content["kind"] == "state"] == [
        "no support"
    ]
    one.close()


def test_a_device_that_is_used_first_in_a_cell_is_described_last(gpu):
    """What a cell's end says of the devices may be older than what the thread has read since: the newest stays."""
    devices.remove_backend(gpu)
    one = Driven()
    hello(one)
    one.pipe.kinds()
    one.panel.began(1)
    devices.add_backend(gpu)
    one.panel.ended()
    one.step()
    states = [message.content for message in one.pipe.sent if message.content["kind"] == "state"]
    assert [len(state["devices"]) for state in states] == [0, 1]
    one.close()


def test_a_device_that_is_gone_is_said_to_be(driven, gpu):
    """A virtual GPU that was switched off has no numbers any more, neither as text nor in the browser."""
    other = ModelBackend()
    hello(driven)
    gpu.allocate(MiB)
    driven.step()
    devices.add_backend(other)
    devices.remove_backend(gpu)
    try:
        other.allocate(2 * MiB)
        driven.step()
        (state,) = [message.content for message in driven.pipe.sent if message.content["kind"] == "state"][-1:]
        assert [device["gone"] for device in state["devices"]] == [True, False]
        assert str(driven.panel) == "GPU memory panel: fake:0 2.00 MiB allocated, 20.00 MiB reserved"
        driven.pipe.kinds()
        for _ in range(9):
            driven.step()
        assert "map" not in driven.pipe.kinds()
        devices.remove_backend(other)
        driven.step()
        assert driven.pipe.sent[0].content["devices"][1]["gone"]
        assert str(driven.panel) == "GPU memory panel: no GPU is used yet in this process"
    finally:
        devices.add_backend(gpu)


def test_a_cell_is_shown_also_to_views_that_cannot_be_heard(driven):
    """While a cell runs samples are sent whoever looks: a page loaded meanwhile cannot say hello before its end."""
    driven.panel.received({"kind": "look", "view": "opening", "slot": None})
    driven.step()
    driven.pipe.kinds()
    driven.panel.began(4)
    driven.step()
    driven.step()
    assert driven.pipe.kinds() == ["cells", "samples", "samples"]
    driven.panel.ended()
    driven.step()
    assert driven.pipe.kinds() == ["cells"]


def test_a_closed_page_is_forgotten(driven):
    """A view that gives no sign of life between cells is gone; while a cell runs it is not expected to."""
    hello(driven)
    driven.panel.began(1)
    driven.step(10 * SILENCE)
    driven.pipe.kinds()
    driven.panel.ended()
    driven.step(SILENCE / 2)
    assert "samples" in driven.pipe.kinds()
    driven.step(SILENCE)
    assert driven.pipe.kinds() == []


def test_cells_carry_what_they_cost(driven, gpu):
    """The end of a cell comes with its exact peak, and what it left behind."""
    driven.panel.began(7)
    measure = Measure().start()
    gpu.free(gpu.allocate(40 * MiB))
    gpu.allocate(MiB)
    driven.panel.ended(measure.stop(ValueError, search_workspaces=False))
    (span,) = driven.panel._spans.all()
    assert span["number"] == 7
    assert span["error"] == "ValueError"
    assert span["devices"] == {"fake:0": {"peak": 40 * MiB, "over": 40 * MiB, "stays": MiB, "exact": True}}


def test_a_cell_that_ran_out_of_memory_carries_the_reason(driven):
    """Why memory ran out comes after the end of the cell, with the parts of the record that the browser shows."""
    driven.panel.explained(REASON)  # no cell was seen
    driven.panel.began(7)
    driven.panel.explained(REASON)  # a cell inside the one that runs
    driven.panel.ended()
    hello(driven)
    driven.pipe.sent.clear()
    driven.panel.explained(REASON)
    driven.step()
    (message,) = [message for message in driven.pipe.sent if message.content["kind"] == "cells"]
    assert driven.panel._spans.all() == message.content["cells"]
    (span,) = message.content["cells"]
    assert span["oom"] == {"device": "cuda:0", "verdict": "too much", "sentence": "Too much <b>for</b> the card"}
    assert span["end"] is not None
    json.dumps(message.content)


def test_cells_are_bounded():
    """Only the latest cells are remembered, and an end without a beginning is nothing."""
    spans = Spans(lambda: 5.0)
    assert spans.ended(None) is None
    for number in range(3 * KEPT):
        spans.began(number)
        assert spans.running
        spans.ended(None)
    assert [spans.all()[0]["number"], len(spans.all())] == [2 * KEPT, KEPT]
    assert not spans.running


def test_an_error_is_shown_and_raised_once(driven, gpu):
    """What ends the thread is in the panel and in its line of text, is raised once, and opening anew starts over."""
    hello(driven)
    gpu.broken = ZeroDivisionError("broken counters")
    driven.step()
    assert driven.pipe.sent[-1].content["error"] == "ZeroDivisionError: broken counters"
    assert "broken counters" in repr(driven.panel)
    with pytest.raises(ZeroDivisionError, match="broken counters"):
        driven.panel.check()
    driven.panel.check()
    assert driven.panel.failed
    gpu.broken = None


def test_a_lost_context_ends_the_panel(driven):
    """After a device-side assert nothing is asked any more, and the panel says what to do."""
    driven.panel.began(1)
    driven.clock.go.release()
    devices.note_loss(RuntimeError("CUDA error: device-side assert triggered\nCompile with ..."))
    driven.panel.ended()
    assert not driven.panel._heart.running
    assert driven.pipe.sent[-1].content["error"] == devices.lost_context()
    with pytest.raises(UnavailableError, match="restart the kernel"):
        driven.panel.check()


def test_a_recording_that_a_magic_started_shows_at_the_end_of_its_cell(driven, monkeypatch):
    """The buttons say what can be done now, whoever began to record; a cell that changes nothing says nothing."""
    hello(driven)
    for now in ({"running": True, "kept": False}, {"running": False, "kept": True}):
        driven.panel.began(1)
        monkeypatch.setattr(controller, "recording", lambda now=now: now)
        driven.panel.ended()
        driven.step()
        states = [message.content for message in driven.pipe.sent if message.content["kind"] == "state"]
        assert states[-1]["recording"] == now
        driven.pipe.kinds()
        driven.panel.began(2)
        driven.panel.ended()
        driven.step()
        assert "state" not in driven.pipe.kinds()


def test_other_errors_leave_it_alone(driven):
    """An error of the user's own ends nothing."""
    driven.panel.began(1)
    devices.note_loss(RuntimeError("CUDA out of memory"))
    driven.panel.ended()
    driven.step()
    assert driven.panel._heart.running
    driven.panel.check()


def test_a_click_while_a_cell_runs_waits_for_its_end(driven, gpu):
    """Ten clicks are one action, done when the cell has ended, by the thread that runs cells."""
    gpu.free(gpu.allocate(64 * MiB))
    driven.panel.began(2)
    for n in range(10):
        driven.panel.received({"kind": "act", "id": f"click-{n}", "name": "empty"})
    assert gpu.emptied == 0
    driven.panel.ended()
    assert gpu.emptied == 1
    driven.step()
    answers = [m.content["answer"] for m in driven.pipe.sent if "answer" in m.content]
    (answer,) = answers
    assert (answer["id"], answer["failed"]) == ("click-0", False)
    assert "64.00 MiB returned to the driver" in answer["text"]


def test_a_click_between_cells_acts_at_once_and_once(driven, gpu):
    """A request that comes twice is done once; another one is done again."""
    for identity in ("a", "a", "b"):
        driven.panel.received({"kind": "act", "id": identity, "name": "empty"})
    assert gpu.emptied == 2


def test_clicks_from_two_threads_never_overlap():
    """While one thread acts, another one's request waits for it instead of running beside it."""
    inside, clash, answers = [], [], []
    entered, leave = threading.Event(), threading.Event()

    def work():
        clash.append(len(inside))
        inside.append(1)
        entered.set()
        leave.wait(30)
        inside.pop()
        return "done"

    actions = Actions(lambda: False, lambda *answer: answers.append(answer), {"work": work})
    thread = threading.Thread(target=actions.request, args=("a", "work"))
    thread.start()
    entered.wait(30)
    actions.request("b", "work")
    leave.set()
    thread.join(30)
    assert clash == [0, 0]
    assert [answer[0] for answer in answers] == ["a", "b"]


def test_actions_that_fail_say_so():
    """A refusal is its sentence, a bug its type; neither is lost, and unknown buttons are nothing."""
    answers = []

    def bug():
        raise KeyError("x")

    actions = Actions(lambda: False, lambda *answer: answers.append(answer[2:]), {"bug": bug})
    actions.request("1", "bug")
    actions.request("2", "save")
    actions.request("3", "format the disk")
    assert answers == [("KeyError: 'x'", True), ("nothing was recorded; start a recording first", True)]


def test_audit_is_the_report(driven, gpu):
    """The audit says what is stranded."""
    gpu.fragment(2)
    driven.panel.received({"kind": "act", "id": "1", "name": "audit"})
    driven.step()
    text = next(m.content["answer"]["text"] for m in driven.pipe.sent if "answer" in m.content)
    assert "stranded" in text
    assert "32.00 MiB" in text


def test_restarting_the_peak(driven, gpu):
    """The peak begins anew, and the panel says since when."""
    gpu.free(gpu.allocate(64 * MiB))
    hello(driven)
    assert driven.panel._sampler.latest()[0].peak == 64 * MiB
    before = driven.panel._sampler.now()
    driven.clock.time += 5
    driven.panel.received({"kind": "act", "id": "1", "name": "mark"})
    driven.step()
    assert driven.panel._sampler.latest()[0].peak == 0
    assert [m.content["since"] for m in driven.pipe.sent if m.content["kind"] == "state"][-1] == before + 5


def test_closing_ends_everything(driven):
    """Thread, interval and widget are gone; closing twice and messages afterwards are harmless."""
    driven.clock.go.release()
    driven.panel.close()
    assert driven.pipe.closed
    assert LEDGER.open_intervals == 0
    assert not driven.panel._heart.running
    driven.panel.close()
    driven.panel.received({"kind": "hello", "view": "v", "slot": 0})
    assert driven.panel.closed


def test_a_broken_connection_ends_the_thread_quietly(driven, capfd):
    """When sending fails the thread ends, keeps the error and prints nothing."""
    driven.pipe.broken = LookupError("shell_parent")
    hello(driven)
    assert driven.panel.failed
    assert capfd.readouterr() == ("", "")


def test_the_line_of_text(driven, gpu):
    """Where no widget can be shown there is a line with the newest numbers."""
    gpu.allocate(3 * MiB)
    driven.step()
    assert driven.panel.mimebundle() == {
        "text/plain": "GPU memory panel: fake:0 3.00 MiB allocated, 20.00 MiB reserved",
        widget.MIME_TYPE: {"model_id": "m"},
    }
    assert live.opening.text_line().startswith("fake:0 3.00 MiB allocated, 20.00 MiB reserved. ")


def test_colab_is_told_after_each_cell(driven, gpu, monkeypatch):
    """Colab shows what the main thread sends: after a cell a sample goes out from there."""
    hello(driven)
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    driven.panel.began(1)
    driven.step()
    driven.pipe.kinds()
    driven.panel.ended()
    assert driven.pipe.kinds()[:2] == ["cells", "samples"]
    assert not placement.can_dock()


@pytest.mark.parametrize("version", ["7.0.0", "7.0.1"])
def test_ipykernel_7_0_is_refused_in_one_line(monkeypatch, version):
    """On an ipykernel whose threads cannot send, one line says to upgrade."""
    monkeypatch.setattr(widget, "installed", lambda package: version)
    with pytest.raises(UnavailableError, match=rf"ipykernel {version} cannot show .*pip install -U ipykernel"):
        Panel()
    assert LEDGER.open_intervals == 0


def test_missing_packages_are_named(monkeypatch, tmp_path):
    """Without anywidget, or without a bundle, one line says what to do."""
    monkeypatch.setattr(widget, "installed", lambda package: None if package == "anywidget" else "8.0")
    with pytest.raises(UnavailableError, match="pip install anywidget"):
        widget.check_front_end()
    monkeypatch.setattr(widget, "installed", lambda package: "8.0")
    monkeypatch.setattr(widget, "STATIC", tmp_path)
    with pytest.raises(UnavailableError, match="make bundle"):
        widget.check_front_end()


def test_vs_code_has_no_sidebar(monkeypatch):
    """The sidebar is not tried where it cannot be."""
    monkeypatch.setattr(placement, "installed", lambda package: "0.8")
    monkeypatch.delenv("VSCODE_PID", raising=False)
    assert placement.can_dock()
    monkeypatch.setenv("VSCODE_PID", "1")
    assert not placement.can_dock()


@pytest.mark.parametrize(
    ("session", "title"),
    [
        (None, "GPU memory"),
        ("train.ipynb", "GPU memory · train"),
        ("/home/me/deep/train.v2.ipynb", "GPU memory · train.v2"),
        ("a-notebook-with-a-name-that-is-very-long.ipynb", "GPU memory · a-notebook-with-a-name-that-i…"),
        ("0a1b/", "GPU memory"),
    ],
)
def test_the_tab_has_the_notebooks_name(monkeypatch, session, title):
    """Of two notebooks with panels, each tab says whose it is; where no server has told, none."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    if session is not None:
        monkeypatch.setenv("JPY_SESSION_NAME", session)
    assert placement.title() == title


def test_which_server_surely_serves_lab(monkeypatch):
    """The command that started the server tells; without one, nothing is sure."""
    commands = {
        ("python", "/usr/bin/jupyter-lab", "--no-browser"): True,
        ("python", "-m", "jupyterlab"): True,
        ("jupyterhub-singleuser",): False,
        ("python", "/usr/bin/jupyter-notebook"): False,
    }
    for command, expected in commands.items():
        monkeypatch.setenv("JPY_PARENT_PID", "1")
        monkeypatch.setattr(placement.psutil.Process, "cmdline", lambda self, c=command: list(c))
        assert placement.surely_lab() is expected, command
    monkeypatch.delenv("JPY_PARENT_PID")
    assert not placement.surely_lab()


def test_attention_is_by_view():
    """Each view looks at a device of its own; what nobody looks at is not in the list."""
    attention = Attention()
    attention.note("a", 0, 0.0)
    attention.note("b", 3, 0.0)
    assert attention.slots(1.0) == (0, 3)
    attention.note("a", None, 2.0)
    assert attention.slots(2.0) == (3,)
    attention.busy(SILENCE)
    assert attention.anyone(SILENCE + 70)
    assert not attention.anyone(3 * SILENCE)
    assert not attention.anyone(math.inf)


def test_there_is_one_panel(gpu, monkeypatch):
    """Opening twice gives the same panel; after it was closed, or has failed, a new one."""
    made = []

    class Fresh(Panel):
        def __init__(self, *, docked):
            made.append(docked)
            super().__init__(docked=False, channel=Pipe())

    monkeypatch.setattr(live.opening, "Panel", Fresh)
    first = live.panel(inline=True)
    assert live.panel() is first is live.opened()
    first._failed(UnavailableError("no more"))
    second = live.panel()
    assert second is not first
    assert first.closed
    live.close()
    assert live.opened() is None
    assert made == [False, True]
    live.close()


def test_controller_numbers_are_formatted_in_one_place():
    """A device without counters is a dash, not a crash."""
    assert controller.numbers("mps:0", 1024, None) == "mps:0 1.00 KiB allocated, - reserved"
