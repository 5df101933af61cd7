"""The panel's buttons in the kernel: what clicks do, when, and how often. No browser, no real time."""

from __future__ import annotations

import threading

from panel_steps import hello

from jupyter_gpumem.live import controller
from jupyter_gpumem.live.actions import Actions
from jupyter_gpumem.units import MiB


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
