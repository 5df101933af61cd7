"""The panel in the kernel: what it sends, when, and to whom. No browser, no real time."""

from __future__ import annotations

import json
import math
import sys

from panel_steps import Driven, hello

from jupyter_gpumem import devices
from jupyter_gpumem.live import placement
from jupyter_gpumem.live.attention import SILENCE, Attention
from jupyter_gpumem.live.controller import CHUNK
from jupyter_gpumem.live.spans import KEPT, Spans
from jupyter_gpumem.measurement import Measure
from jupyter_gpumem.records import OomExplanation, OomText
from jupyter_gpumem.sampler import ROW
from jupyter_gpumem.units import MiB
from tests.model_backend import ModelBackend

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
