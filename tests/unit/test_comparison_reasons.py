"""The reasons that what-if gives, and what it says when it is not sure."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

import pytest
from compared_recordings import BASE, DATA, recording, searched

from jupyter_gpumem import comparison
from jupyter_gpumem.allocator.check import check
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.recording import Recording, read_recording
from jupyter_gpumem.units import MiB, format_bytes


def test_the_reason_comes_from_the_models_memory():
    """It names how many free segments of which sizes were no use, for which request, and what changes that."""
    why = searched().why
    assert why.startswith("At event 13,921, where reserved memory peaks at 8.15 GiB, 81.4 % of it is not allocated: ")
    assert "79.9 % in 74 free segments of 2.00 MiB to 392.00 MiB (6.51 GiB)" in why
    assert "The request there, of 392.50 MiB, found no free block of its pool and stream above 392.00 MiB." in why
    assert "expandable segments make do with 2 segments that grow" in why.lower()
    assert len(why) < 500


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".pickle.gz") for path in DATA.glob("*.gz")))
def test_the_reason_adds_up(name):
    """The shares that the reason names are parts of one moment: together they are the share that the table states."""
    result = whatif(recording(name), ["max_split_size_mb:128", "expandable_segments:True"])
    first = result.results[0]
    stated = re.match(
        r"At event [\d,]+, where reserved memory peaks at ([^,]+), ([\d.]+) % of it is not al", result.why
    )
    if stated is None:
        assert result.why.startswith("Nothing tried needs less")
        return
    assert stated[1] == format_bytes(first.peak_reserved)
    assert float(stated[2]) == round(100 * first.unallocated_ratio, 1)
    shares = [Decimal(share) for share in re.findall(r"([\d.]+) % in ", result.why)]
    assert shares
    assert sum(shares) == Decimal(stated[2])


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".pickle.gz") for path in DATA.glob("*.gz")))
def test_the_layout_is_the_peaks(name):
    """Allocated memory and all parts of the layout are the reserved peak, to the byte, at the event that it names."""
    source = recording(name)
    outcome = check(source.trace(0), source.circumstances(0), source.held(0))[1]
    layout = outcome.layout
    assert layout.allocated + sum(layout.parts) == layout.reserved == outcome.peak_reserved
    assert outcome.unallocated_ratio == 1 - layout.allocated / layout.reserved
    events = source.events(0)
    assert events[layout.step.event]["action"] == "alloc"
    assert events[layout.step.event]["size"] == layout.step.request
    before = [event["action"] for event in events[layout.step.event - 1 :: -1]]
    assert before[0] in {"segment_alloc", "segment_map"}, "it got memory"
    assert outcome.step.event <= layout.step.event


def test_the_reason_follows_changes_of_settings():
    """What is explained is the recorded run with its change midway, not one under the settings at its end."""
    source = read_recording(DATA / "change-default.pickle.gz")
    change = {"time_us": source.events(0)[16865]["time_us"], "settings": "expandable_segments:True"}
    about = {**source.extra, "settings_at_start": "", "settings_changes": [change]}
    changed = Recording({**source.snapshot, "jupyter_gpumem": about})
    for more in ({}, {"memory": "100GiB"}):
        result = whatif(changed, ["expandable_segments:True"], **more)
        first, throughout = result.results
        assert result.changes == ((0, ""), (16865, "expandable_segments:True"))
        assert result.to_dict()["recording"]["settings_over_time"][1] == {
            "event": 16865,
            "settings": "expandable_segments:True",
        }
        assert first.peak_reserved == source.extra["memory_stats"]["reserved_bytes.all.peak"] > throughout.peak_reserved
        assert f"peaks at {format_bytes(first.peak_reserved)}, {100 * first.unallocated_ratio:.1f} %" in result.why
        assert "expandable segments make do with" in result.why.lower()
        assert first.as_recorded is (not more)


@pytest.mark.parametrize("name", ["streams-default", "streams-cap", "streams-expandable"])
def test_rows_of_streams_are_comparable(name):
    """Where delays are chance they are left out in every row, equal settings give equal numbers; a note says so."""
    source = recording(name)
    result = whatif(source, [str(source.settings)])
    first, same = (row.to_dict() for row in result.results)
    assert first == {**same, "recorded": True}
    assert not first["as_recorded"]
    assert result.confidence == "lowered"
    peak = format_bytes(source.extra["memory_stats"]["reserved_bytes.all.peak"])
    assert any(note.endswith(f"included (with them the peak was {peak})") for note in result.notes)


def test_peaks_above_the_cap_are_explained():
    """Expandable segments are mapped in pages that the cap does not count: a note says why a peak is above it."""
    source = recording("encoder-expandable")
    above = whatif(source, [], limit="4163MiB")
    first = above.results[0]
    assert 4163 * MiB < first.peak_reserved <= 4183 * MiB
    assert any("above the cap by up to a page" in note for note in above.notes)
    assert not any("above the cap" in note for note in whatif(source, [], limit="6GiB").notes)


@pytest.mark.parametrize(
    ("source", "choice", "said"),
    [
        ("encoder-maxsplit128", "", "may be split again"),
        ("encoder-default", "roundup_power2_divisions:4", "rounded sizes fit"),
        ("encoder-default", "large_segment_size_mb:64", "share segments of 64.00 mib"),
        ("encoder-maxsplit128-cap5", "garbage_collection_threshold:0.6", "given back early"),
        ("encoder-default-cap4.3-oom", "max_split_size_mb:128", "stay whole"),
    ],
)
def test_each_option_has_its_reason(source, choice, said):
    """Whatever option helps, the reason says what it does."""
    result = whatif(recording(source), [choice])
    assert result.best == choice
    assert said in result.why.lower()


def test_what_depends_on_the_drivers_order_is_told():
    """A second peak says what another order of addresses comes to; growing segments do not depend on it."""
    recorded, default, growing = whatif(recording("emptying-roundup4"), ["", "expandable_segments:True"]).results
    assert recorded.peak_reserved_otherwise is None, "what happened is known"
    assert default.peak_reserved_otherwise not in {None, default.peak_reserved}
    assert growing.peak_reserved_otherwise == growing.peak_reserved
    shown = whatif(recording("emptying-roundup4"), [""])
    peaks = f"{format_bytes(default.peak_reserved)} (or {format_bytes(default.peak_reserved_otherwise)})"
    assert peaks in str(shown)
    assert [note for note in shown.notes if "in another order" in note]
    assert not [note for note in searched().notes if "other streams are as late" in note]


def test_what_depends_on_delays_is_told():
    """Where other streams delayed frees, the second peak is what comes out if they do so again."""
    source = recording("streams-default")
    result = whatif(source, ["", "expandable_segments:True"])
    recorded, _, growing = result.results
    assert recorded.peak_reserved_otherwise == source.extra["memory_stats"]["reserved_bytes.all.peak"]
    assert growing.peak_reserved_otherwise > growing.peak_reserved
    assert [note for note in result.notes if "other streams are as late" in note]


def test_of_long_recordings_only_the_best_is_tried_again(monkeypatch):
    """Trying everything twice would take too long; what is recommended is still tried."""
    source = recording("encoder-maxsplit128")
    monkeypatch.setattr(comparison, "_LONG", 0)
    result = whatif(source, ["", "max_split_size_mb:512"])
    tried = [row.settings for row in result.results if row.peak_reserved_otherwise is not None]
    assert tried == [result.best] == [""]


def test_doubt_is_told():
    """A trace whose beginning is lost, or that was changed, lowers the confidence and says why."""
    source = recording()
    events = source.events(0)
    cut = whatif(Recording({**source.snapshot, "device_traces": [events[5000:]]}), [])
    assert cut.confidence == "lowered"
    assert any("before the first recorded event" in note for note in cut.notes)
    bare = {key: value for key, value in source.snapshot.items() if key != "jupyter_gpumem"}
    plain = whatif(Recording(bare), [])
    assert plain.confidence == "lowered"
    assert any("size of the device was not recorded" in note for note in plain.notes)
    wrong = dict(source.snapshot, allocator_settings={"expandable_segments": True})
    other = whatif(Recording(wrong), [])
    assert not other.check.exact
    assert other.confidence == "lowered"
    assert not any("differ" in note for note in other.notes), "the check says it"
    assert not other.results[0].as_recorded
    assert other.results[0] == replace(whatif(Recording(wrong), ["expandable_segments:True"]).results[1], recorded=True)


@pytest.mark.parametrize(("name", "first"), [("resnet50-default", 15000), ("transformer-default", 3000)])
def test_a_cache_filled_before_the_recording_is_no_gain(name, first):
    """What the cache held when a recording began is in no row: the same settings come to the same, and help nothing."""
    source = recording(name)
    cut = Recording({**source.snapshot, "device_traces": [source.events(0)[first:]]})
    result = whatif(cut, ["", "max_split_size_mb:2000"])
    peak = source.trace(0).highest
    assert result.check.exact
    assert [row.gain for row in result.results] == [0, 0, 0]
    assert result.results[0].peak_reserved < peak
    assert (result.best, result.results[0].as_recorded) == (None, False)
    said = next(note for note in result.notes if "were reserved before the first recorded event" in note)
    assert said.endswith(f"an empty cache (the recorded run's peak was {format_bytes(peak)})")


def test_live_blocks_without_a_cache_leave_the_recorded_run_the_reference():
    """A recording that begins when a model is on the card, and nothing else, is compared with itself."""
    actions = ("segment_alloc", "alloc", "free_requested", "free_completed")
    events = [{"action": action, "addr": BASE + 64 * MiB, "size": 40 * MiB, "stream": 0} for action in actions]
    segments = [
        {
            "device": 0,
            "address": address,
            "total_size": size,
            "stream": 0,
            "segment_type": "large",
            "blocks": [{"address": address, "size": size, "requested_size": size, "state": state}],
        }
        for address, size, state in (
            (BASE, 30 * MiB, "active_allocated"),
            (BASE + 64 * MiB, 40 * MiB, "inactive"),
        )
    ]
    result = whatif(Recording({"segments": segments, "device_traces": [events]}), [""])
    assert result.check.exact
    assert result.results[0].as_recorded
    assert [row.peak_reserved for row in result.results] == [70 * MiB, 70 * MiB]
