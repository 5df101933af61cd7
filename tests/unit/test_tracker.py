"""The log of a loop's steps: rows, table, drawing and how it ends."""

from __future__ import annotations

import gc
import json

import pytest
from IPython.lib.pretty import pretty

import jupyter_gpumem as gm
from jupyter_gpumem import devices
from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.errors import DeviceNotFoundError
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.report.plot import plot_steps
from jupyter_gpumem.units import GiB, MiB


@pytest.fixture(autouse=True)
def clean(ledger):
    """Every test here gives the ledger back clean."""


@pytest.fixture
def plt(monkeypatch):
    """Pyplot without a screen; figures are closed afterwards."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    yield plt
    plt.close("all")


@pytest.fixture
def two_steps(fake):
    """A stopped tracker with two steps: one that spikes, one that keeps."""
    with gm.Tracker() as tracker:
        fake.free(fake.allocate(64 * MiB))
        tracker.step("spike")
        fake.allocate(16 * MiB)
        tracker.step("keep")
        fake.allocate(MiB)
    return tracker


def test_each_step_is_what_happened_since_the_one_before(two_steps):
    """Steps have their own peaks and names, and what came after the last one is dropped."""
    assert [step.label for step in two_steps.steps] == ["spike", "keep"]
    assert [step.peak_allocated for step in two_steps.steps] == [64 * MiB, 16 * MiB]
    assert [step[0].delta_allocated for step in two_steps.steps] == [0, 16 * MiB]
    assert len(two_steps) == 2
    assert LEDGER.open_intervals == 0


def test_a_step_returns_its_measurement(fake):
    """The loop can look at each step at once."""
    tracker = gm.Tracker()
    fake.allocate(MiB)
    step = tracker.step("one")
    assert step is tracker.steps[0]
    assert (step.label, step.peak_allocated) == ("one", MiB)
    tracker.stop()


def test_rows_are_flat_and_complete(two_steps):
    """One dict for each step and device, in bytes, ready for any table."""
    first, second = two_steps.rows()
    elapsed = first.pop("elapsed_s")
    assert elapsed > 0
    assert first == {
        "step": "spike", "device": "fake:0", "peak_allocated": 64 * MiB, "peak_over_start": 64 * MiB,
        "delta_allocated": 0, "allocated": 0, "peak_reserved": 64 * MiB, "reserved": 64 * MiB, "retries": 0,
        "exact": True,
    }  # fmt: skip
    assert (second["step"], second["allocated"], second["delta_allocated"]) == ("keep", 16 * MiB, 16 * MiB)


def test_the_table_holds_the_rows(two_steps):
    """The DataFrame has one row for each step and device, and sizes stay whole numbers."""
    frame = two_steps.to_dataframe()
    assert frame.to_dict("records") == two_steps.rows()
    assert list(frame["peak_allocated"]) == [64 * MiB, 16 * MiB]
    assert frame["peak_allocated"].dtype == "int64"


def test_the_log_becomes_json(two_steps):
    """`to_dict` is plain and complete."""
    plain = two_steps.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert [step["label"] for step in plain["steps"]] == ["spike", "keep"]


def test_several_devices_have_rows_of_their_own():
    """Rows name their device; a filter leaves the others out."""
    pair = FakeBackend("pair", devices=2)
    devices.add_backend(pair)
    try:
        with gm.Tracker() as every, gm.Tracker(devices=["pair:1"]) as second:
            pair.allocate(MiB, 1)
            every.step("a")
            second.step("a")
        assert [row["device"] for row in every.rows()] == ["pair:0", "pair:1"]
        assert [row["device"] for row in second.rows()] == ["pair:1"]
        with pytest.raises(DeviceNotFoundError):
            gm.Tracker(devices=["pair:2"])
    finally:
        devices.remove_backend(pair)


def test_after_stop_no_step_can_be_added(fake):
    """Stopping twice is harmless, and a step afterwards is refused in one line."""
    tracker = gm.Tracker()
    tracker.stop()
    tracker.stop()
    with pytest.raises(RuntimeError, match="this tracker was stopped; make a new one"):
        tracker.step("late")
    assert repr(tracker) == "<gpumem tracker, 0 steps, stopped>"


def test_a_step_that_an_exception_ends_is_kept(fake):
    """The failed step has the error and no name, and the exception passes through."""
    tracker = gm.Tracker()

    def loop():
        with tracker:
            tracker.step("good")
            fake.free(fake.allocate(GiB))
            raise LookupError

    with pytest.raises(LookupError):
        loop()
    assert [(step.label, step.error) for step in tracker.steps] == [("good", None), (None, "LookupError")]
    assert tracker.steps[1].peak_allocated == GiB
    assert LEDGER.open_intervals == 0


def test_an_exception_after_stop_adds_nothing(fake):
    """A tracker that was stopped inside its block has nothing left to end."""
    tracker = gm.Tracker()

    def stop_and_fail():
        tracker.stop()
        raise LookupError

    with pytest.raises(LookupError), tracker:
        stop_and_fail()
    assert tracker.steps == []


def test_a_stopped_tracker_goes_on_when_it_is_entered_again(fake):
    """A cell with `with tracker:` can run twice, and what happened in between is in no step."""
    tracker = gm.Tracker()
    with tracker:
        tracker.step(0)
    kept = fake.allocate(5 * MiB)
    with tracker:
        tracker.step(1)
    assert [step.label for step in tracker] == ["0", "1"]
    assert [step[0].peak_over_start for step in tracker] == [0, 0]
    assert "0" in str(tracker)
    assert "<table" in tracker._repr_html_()
    fake.free(kept)


def test_a_long_log_shows_its_ends(fake):
    """Thousands of steps do not become thousands of rows in the notebook."""
    with gm.Tracker(devices="fake:0") as tracker:
        for number in range(300):
            fake.free(fake.allocate(MiB))
            tracker.step(f"step {number}")
    text = str(tracker)
    assert len(text.splitlines()) < 60
    assert "... 250 more" in text
    assert "step 0 " in text
    assert "step 299 " in text


def test_a_tracker_that_is_replaced_ends(fake):
    """A cell that runs again makes a new tracker; the old one does not stay open."""
    tracker = gm.Tracker()
    tracker = gm.Tracker()
    gc.collect()
    assert LEDGER.open_intervals == 1
    tracker.stop()


def test_a_tracker_shows_its_steps(two_steps):
    """Printed, it is the table of steps; without steps it says so."""
    text = str(two_steps)
    assert text.splitlines()[0] == "fake:0 · scripted device · 2 steps"
    assert "spike" in text
    assert pretty(two_steps) == text
    assert "keep" in two_steps._repr_html_()
    empty = gm.Tracker()
    assert str(empty) == repr(empty) == "<gpumem tracker, 0 steps>"
    assert empty._repr_html_() is None
    empty.stop()


def bars(axes):
    """Return `(centre, height)` of the bars drawn, by the width that each series has."""
    drawn = {}
    for patch in axes.patches:
        width = round(patch.get_width(), 3)
        drawn.setdefault(width, []).append((round(patch.get_x() + width / 2, 3), patch.get_height()))
    return [drawn[width] for width in sorted(drawn, reverse=True)]


def test_the_drawing_has_the_right_heights(two_steps, plt):
    """Reserved, peak and level stand at their step, in MiB, with the steps' names below."""
    axes = two_steps.plot()
    reserved, peak, level = bars(axes)
    assert reserved == [(0, 64), (1, 64)]
    assert peak == [(0, 64), (1, 16)]
    assert level == [(0, 0), (1, 16)]
    assert axes.get_ylabel() == "MiB"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["spike", "keep"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "peak reserved", "peak allocated", "allocated at the end",
    ]  # fmt: skip


def test_large_steps_are_drawn_in_gib(fake, plt):
    """The unit follows the highest bar."""
    with gm.Tracker() as tracker:
        fake.allocate(3 * GiB)
        tracker.step("a")
    axes = tracker.plot()
    assert axes.get_ylabel() == "GiB"
    assert bars(axes)[1] == [(0, 3)]


def test_the_drawing_goes_into_given_axes(two_steps, plt):
    """No figure is made then, and the same axes come back."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    open_figures = plt.get_fignums()
    assert two_steps.plot(axes) is axes
    assert plt.get_fignums() == open_figures
    assert len(axes.patches) == 6


def test_devices_stand_apart_in_the_drawing(plt):
    """With several devices each group is labelled with its device, and a gap lies between them."""
    rows = [
        {"step": "a", "device": f"pair:{index}", "peak_allocated": 2 * MiB, "peak_reserved": 4 * MiB,
         "reserved": 4 * MiB, "allocated": MiB}
        for index in (0, 1)
    ]  # fmt: skip
    axes = plot_steps(rows)
    assert bars(axes)[0] == [(0, 4), (2, 4)]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["pair:0\na", "pair:1\na"]


def test_missing_numbers_and_an_empty_log_can_be_drawn(plt):
    """A device without peaks has bars of height zero for them, and its reserved level stands in."""
    row = {
        "step": None,
        "device": "mps:0",
        "peak_allocated": None,
        "peak_reserved": None,
        "reserved": MiB,
        "allocated": 0,
    }
    axes = plot_steps([row])
    assert bars(axes) == [[(0, 1)], [(0, 0)], [(0, 0)]]
    axes = plot_steps([])
    assert len(axes.patches) == 0
