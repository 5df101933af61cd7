"""What-if: the table, the choice it recommends, the reasons it gives, and what it says when it is not sure."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

from jupyter_gpumem import comparison
from jupyter_gpumem.allocator import worker
from jupyter_gpumem.allocator.check import check
from jupyter_gpumem.allocator.replay import Conditions, replay
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.choices import recommended
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.errors import GpumemError, InvalidValueError, RecordingError
from jupyter_gpumem.recording import Recording, read_recording, write_recording
from jupyter_gpumem.report import recording_sheets
from jupyter_gpumem.units import GiB, MiB, format_bytes

DATA = Path(__file__).parents[1] / "data" / "recordings"
RESNET = DATA / "resnet50-default.pickle.gz"
BASE = 0x7F0000000000


@cache
def recording(name="resnet50-default"):
    return read_recording(DATA / f"{name}.pickle.gz")


@cache
def searched(name="resnet50-default"):
    return whatif(recording(name))


def test_the_json_has_the_documented_shape():
    """`to_dict()` is recording, check and results: bytes as integers, the recorded settings first, then those given."""
    choices = ["max_split_size_mb:128", "expandable_segments:True"]
    data = json.loads(json.dumps(whatif(recording(), choices).to_dict()))
    assert list(data) == ["recording", "check", "results"]
    assert data["check"] == {"segment_events": 114, "mismatches": 0, "max_difference": 0}
    assert [row["settings"] for row in data["results"]] == ["", *choices]
    assert [row["recorded"] for row in data["results"]] == [True, False, False]
    for row in data["results"]:
        for key in ("peak_allocated", "peak_reserved", "stranded", "retries", "ooms", "device_frees", "gain"):
            assert type(row[key]) is int, key
    assert data["recording"]["source"] == "resnet50-default.pickle.gz"
    assert data["recording"]["torch"] == "2.11.0+cu130"
    assert data["recording"]["limit"] is None


def test_the_recorded_settings_are_the_reference():
    """The first row is what was recorded, and gains are measured from it."""
    result = whatif(recording(), ["expandable_segments:True"])
    reference, other = result.results
    assert reference.peak_reserved == recording().extra["memory_stats"]["reserved_bytes.all.peak"]
    assert (reference.gain, reference.gain_percent, reference.recorded) == (0, 0.0, True)
    assert other.gain == reference.peak_reserved - other.peak_reserved > 0
    assert other.gain_percent == pytest.approx(100 * other.gain / reference.peak_reserved)
    assert result.best == "expandable_segments:True"
    assert result.confidence == "high"
    assert result.check.exact


def test_a_search_tries_a_sensible_set_and_then_what_is_near():
    """Without settings a set of single options is tried, then neighbours of the best; nothing twice, nothing unsafe."""
    rows = [row.settings for row in searched().results]
    assert len(rows) == len(set(rows)) >= 10
    assert {"expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4"} <= set(rows)
    assert not any(warning.startswith("unsafe") for row in searched().results for warning in row.warnings)
    assert not any("garbage_collection" in row for row in rows), "without a cap it would do nothing"
    capped = [row.settings for row in searched("encoder-default-cap4.3-oom").results]
    assert any("garbage_collection" in row for row in capped)


def test_settings_that_the_recorded_version_lacks_are_not_tried():
    """`large_segment_size_mb` came with PyTorch 2.11 and is no advice for an older one."""
    snapshot = dict(recording().snapshot)
    snapshot["jupyter_gpumem"] = {**snapshot["jupyter_gpumem"], "torch": "2.10.0+cu128"}
    old = whatif(Recording(snapshot))
    assert not any("large_segment_size" in row.settings for row in old.results)
    assert any("large_segment_size" in row.settings for row in searched().results)


def test_the_best_is_the_simplest_near_the_lowest_peak():
    """A second option that gains next to nothing is not recommended."""
    result = searched("encoder-default")
    assert result.best == "expandable_segments:True"
    lowest = min(row.peak_reserved for row in result.results)
    best = next(row for row in result.results if row.best)
    assert best.peak_reserved <= lowest + 0.01 * result.results[0].peak_reserved
    assert [row.best for row in result.results].count(True) == 1


def test_a_choice_that_avoids_a_failure_is_best():
    """Where the recorded settings failed, one that does not is recommended, and the reason counts the failures."""
    result = searched("encoder-default-cap4.3-oom")
    assert result.results[0].ooms == 1
    assert result.results[0].first_oom == 5479
    best = next(row for row in result.results if row.best)
    assert (best.settings, best.ooms, best.saved_ooms) == ("expandable_segments:True", 0, 1)
    assert "0 failed requests instead of 1" in result.why


def test_when_nothing_helps_it_says_so():
    """A workload that wastes nothing gets no advice."""
    result = searched("encoder-expandable")
    assert result.best is None
    assert result.why.startswith("Nothing tried needs less")
    worse = whatif(recording(), ["max_split_size_mb:128"])
    assert worse.best is None
    assert worse.results[1].gain < 0
    assert worse.why.endswith("Nothing tried changes that.")


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


def test_no_gain_where_memory_runs_out():
    """A run that fails saves nothing: its gain is missing, and why."""
    result = whatif(recording("encoder-default-cap4.3-oom"), ["", "expandable_segments:True"])
    failed, best = result.to_dict()["results"][1:]
    assert failed["ooms"] == 1
    assert (failed["gain"], failed["gain_percent"]) == (None, None)
    assert failed["gain_missing"].startswith("it runs out of memory")
    assert best["gain"] > 0
    assert best["gain_missing"] is None


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


def test_unsafe_choices_are_marked_and_never_best():
    """An unsafe combination is shown with its warning, but not recommended, however low it comes out."""
    result = whatif(recording(), ["max_split_size_mb:512,expandable_segments:True", "garbage_collection_threshold:0.8"])
    assert result.results[1].warnings[0].startswith("unsafe: max_split_size_mb with expandable_segments")
    assert result.results[2].warnings[0].startswith("pointless: garbage_collection_threshold")
    assert not any(row.best for row in result.results)


def test_the_recorded_cap_stays_unless_told_otherwise():
    """The recorded cap is in force; `off` lifts it, a size replaces it, and then the reference is the model's."""
    capped = recording("encoder-default-cap4.3-oom")
    card = capped.card(0)
    assert whatif(capped, []).limit == int(card["memory_fraction"] * card["total_memory"])
    free = whatif(capped, [], limit="off")
    assert (free.limit, free.results[0].ooms, free.results[0].saved_ooms) == (None, 0, 1)
    assert free.check.exact
    assert whatif(capped, [], limit="3GiB").limit == 3 * GiB
    assert whatif(capped, [], limit=4 * GiB).results[0].ooms >= 1


def test_another_card_is_assumed():
    """With another memory size the workload is judged on that card."""
    small = whatif(recording(), ["expandable_segments:True"], memory="6GiB")
    assert small.memory == 6 * GiB
    assert any("context and libraries take some hundred MiB" in note for note in small.notes)
    assert small.results[0].retries > 0
    assert small.results[0].peak_reserved <= 6 * GiB
    assert small.results[1].retries == 0
    assert whatif(recording(), [], memory=4 * GiB).results[0].ooms > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"settings": ["max_split_size:1"]}, "did you mean 'max_split_size_mb'"),
        ({"memory": "lots"}, "not a size"),
        ({"memory": 0}, "not possible"),
        ({"limit": "-1"}, "not a size"),
        ({"limit": -1}, "not possible"),
        ({"device": 3}, "no device 3; it has 0"),
        ({"device": "cuda:0"}, "no device 'cuda:0'; it has 0"),
        ({"settings": [None]}, "settings of None are not understood; write a text such as 'expandable_segments:True'"),
        ({"settings": [5]}, "settings of 5 are"),
        ({"settings": 5}, "settings of 5 are not understood; give a list of"),
        ({"settings": {"expandable_segments": True}}, r"settings of \{'expandable_segments': True\} are"),
        ({"settings": [{"expandable_segments": True}]}, "are not understood; write a text"),
        ({"settings": b"expandable_segments:True"}, "settings of b'exp"),
        ({"settings": [["expandable_segments:True"]]}, "are not understood; write a text"),
        ({"memory": 24e9}, "a card of 24000000000.0 is not possible; write a size such as 24GiB"),
        ({"memory": [1]}, "not possible"),
        ({"memory": True}, "not possible"),
        ({"limit": None}, "a limit of None is not possible"),
        ({"jobs": 0}, "0 processes are not possible; jobs is a number of at least 1"),
        ({"jobs": -2}, "-2 processes"),
        ({"jobs": "2"}, "'2' processes"),
        ({"jobs": True}, "True processes"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said):
    """Settings, sizes and devices that make no sense are refused in one line before anything is replayed."""
    with pytest.raises(InvalidValueError, match=said):
        whatif(recording(), **arguments)


@pytest.mark.parametrize("source", [None, 5, {}, [], b"run.pickle"])
def test_what_is_no_recording_is_refused(source):
    """A recording is one, or the name of a file."""
    with pytest.raises(InvalidValueError, match=f"^{re.escape(repr(source))} is not a recording; give one, or"):
        whatif(source)


def test_files_are_read_and_refused():
    """The name of a file will do; one without events, or that is none, is refused."""
    assert whatif(RESNET, []).recording["source"] == RESNET.name
    with pytest.raises(RecordingError, match="no events"):
        whatif(Recording({"segments": [], "device_traces": [[]]}))
    with pytest.raises(RecordingError, match="is a directory"):
        whatif(DATA)


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


def test_processes_give_what_one_gives():
    """Two processes come to the same results in the same order, and progress counts all of them."""
    seen = []
    both = whatif(recording(), jobs=2, progress=lambda done, planned: seen.append((done, planned)))
    assert both == searched()
    assert seen == sorted(seen)
    # All but the recorded settings, and once more those under which the driver's order matters.
    again = [row for row in both.results if not (row.recorded or "expandable_segments:True" in row.settings)]
    assert seen[-1][0] == seen[-1][1] == len(both.results) - 1 + len(again)


def test_processes_run_nothing_from_the_users_folder(tmp_path, monkeypatch):
    """A module of the user's, or one that came with a recording, is not imported in the place of Python's own."""
    for name in ("pickle", "struct", "bisect", "jupyter_gpumem"):
        (tmp_path / f"{name}.py").write_text("open('was-run', 'w'); raise SystemExit('not the real one')")
    monkeypatch.chdir(tmp_path)
    with worker.Replays(recording().trace(0), Conditions(), jobs=2) as replays:
        assert len(replays.run([AllocatorSettings()] * 3)) == 3
    assert not (tmp_path / "was-run").exists()


def test_a_process_that_fails_is_told(monkeypatch):
    """When a child breaks, its last line is passed on, and no process stays behind."""
    trace, settings = recording().trace(0), [AllocatorSettings()] * 2
    started = []
    start = subprocess.Popen

    def broken(arguments, **more):
        started.append(start([arguments[0], "-c", "raise SystemExit('no luck')"], **more))
        return started[-1]

    monkeypatch.setattr(worker.subprocess, "Popen", broken)
    with pytest.raises(GpumemError, match="no luck"), worker.Replays(trace, Conditions(), jobs=2) as replays:
        replays.run(settings, meanwhile=lambda: replays._children[0]._thread.join())
    assert all(child.poll() is not None for child in started)


def test_an_interrupt_ends_the_children(monkeypatch):
    """Ctrl-C in the middle leaves no process behind."""
    started = []
    start = subprocess.Popen

    def listened(*arguments, **more):
        started.append(start(*arguments, **more))
        return started[-1]

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker.subprocess, "Popen", listened)
    monkeypatch.setattr(worker, "replay", interrupted)
    with pytest.raises(KeyboardInterrupt), worker.Replays(recording().trace(0), Conditions(), jobs=2) as replays:
        replays.run([AllocatorSettings()] * 9)
    assert [child.poll() is not None for child in started] == [True]


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


def test_the_recorded_settings_are_never_the_advice():
    """Where they need less with another order of addresses, it is not the settings that make the difference."""
    worse = replay(recording().trace(0), AllocatorSettings.parse("max_split_size_mb:128"), Conditions())
    better = replay(recording().trace(0), AllocatorSettings(), Conditions())
    assert better.peak_reserved < worse.peak_reserved
    assert recommended([(AllocatorSettings(), worse), (AllocatorSettings(), better)]) is None


def test_the_device_with_the_most_events_is_taken():
    """A snapshot of several devices is judged by the busiest, unless another is named."""
    one = [{"action": "alloc", "addr": BASE, "size": 5 * MiB, "stream": 0}]
    both = Recording({"segments": [], "device_traces": [one, recording().events(0)[:2]]})
    assert both.devices == (0, 1)
    assert whatif(both, []).device == 1
    assert whatif(both, [], device=0).device == 0


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("address", [(1 << 64) - MiB, (1 << 63) + BASE, (1 << 62) - MiB])
def test_memory_beyond_all_addresses_is_judged(address, expandable):
    """A segment where no device has memory, at the end of 64 bits even, is a check that is not passed and no crash."""
    live = {"address": address, "size": MiB, "requested_size": MiB, "state": "active_allocated"}
    free = {"address": (address + MiB) % (1 << 64), "size": 29 * MiB, "requested_size": 0, "state": "inactive"}
    segment = {"device": 0, "address": address, "total_size": 30 * MiB, "stream": 0, "segment_type": "large"}
    segment |= {"is_expandable": expandable, "blocks": [live, free]}
    events = [{"action": "alloc", "addr": BASE + n * 32 * MiB, "size": 12 * MiB, "stream": 0} for n in range(2)]
    result = whatif(Recording({"segments": [segment], "device_traces": [events]}), ["expandable_segments:True"])
    assert not result.check.exact
    assert all(row.peak_reserved > 0 for row in result.results)


def two_devices(**extra):
    """Return a recording of two devices with the same trace, of which the second is the larger card."""
    events = recording().events(0)[:20]
    cards = [
        {"device": n, "device_name": f"card {n}", "total_memory": (n + 1) * GiB, "memory_fraction": 0.5} for n in (0, 1)
    ]
    about = {**cards[0], "torch": "2.11.0", "alloc_conf": "", "other_devices": cards[1:]} | extra
    return Recording({"segments": [], "device_traces": [events, events], "jupyter_gpumem": about})


def test_each_device_has_its_own_card():
    """The size, the name and the cap of a device are its own, in the rows and in what identifies the recording."""
    for device in (0, 1):
        result = whatif(two_devices(), [], device=device)
        assert (result.memory, result.limit) == ((device + 1) * GiB, (device + 1) * GiB // 2)
        about = result.to_dict()["recording"]
        assert (about["device_name"], about["total_memory"]) == (f"card {device}", result.memory)
        assert about["limit"] == result.limit
    assert [sheet.heading[1] for sheet in recording_sheets(two_devices())] == ["card 0", "card 1"]


def test_a_card_that_was_not_recorded_is_not_another_ones():
    """Files from before every device was described know one card: nothing is said about the others."""
    old = two_devices(other_devices=[])
    result = whatif(old, [], device=1)
    assert (result.memory, result.limit, result.recording["device_name"]) == (None, None, None)
    assert any("size of the device was not recorded" in note for note in result.notes)
    assert whatif(old, [], device=0).memory == GiB


@pytest.mark.parametrize(
    "others",
    [
        7,
        [7],
        [{}],
        [{"device": 1, "total_memory": 0}],
        [{"device": 1, "memory_fraction": 2}],
        [{"device": 1, "device_name": 5}],
    ],
)
def test_odd_descriptions_of_devices_are_refused(others):
    """What is said about the other devices is checked as what is said about the first."""
    with pytest.raises(RecordingError, match=r"^its '?(other_devices|total|memory|device_name)"):
        two_devices(other_devices=others)


def test_what_the_user_set_besides_is_kept():
    """Keys that are not being tried stay in every string that is proposed."""
    snapshot = dict(recording().snapshot)
    snapshot["jupyter_gpumem"] = {**snapshot["jupyter_gpumem"], "alloc_conf": "pinned_num_register_threads:8"}
    result = whatif(Recording(snapshot))
    assert all(row.settings.endswith("pinned_num_register_threads:8") for row in result.results)


def test_changed_recordings_are_judged_or_refused(tmp_path):
    """Recordings with events dropped, repeated, swapped or changed give a result or one line, no traceback."""
    chance = random.Random(3)
    events = recording("encoder-default-cap4.3-oom").events(0)[:400]
    for number in range(120):
        mixed = [dict(event) for event in events]
        for _ in range(chance.randint(1, 30)):
            index, kind = chance.randrange(len(mixed)), chance.randrange(5)
            if kind == 0:
                del mixed[index]
            elif kind == 1:
                mixed.insert(index, dict(chance.choice(mixed)))
            elif kind == 2:
                other = chance.randrange(len(mixed))
                mixed[index], mixed[other] = mixed[other], mixed[index]
            elif kind == 3:
                mixed[index]["size"] = chance.choice([0, 1, 1 << 20, 1 << 40, 1 << 59, (1 << 60) - 1])
            else:
                mixed[index]["addr"] = chance.choice([0, 1, BASE, (1 << 64) - 1])
        snapshot = dict(recording("encoder-default-cap4.3-oom").snapshot, device_traces=[mixed])
        path = write_recording(snapshot, tmp_path / f"{number}.pickle")
        choices = ["expandable_segments:True"] if number % 2 else ["max_split_size_mb:32"]
        try:
            result = whatif(path, choices)
        except GpumemError as error:
            assert "\n" not in str(error)
        else:
            assert len(result.results) == 2
            pickle.dumps(result)


def test_replays_of_nothing():
    """A trace without requests needs nothing."""
    trace = Recording({"segments": [], "device_traces": [[{"action": "snapshot", "addr": 0, "size": 0}]]}).trace(0)
    result = replay(trace, AllocatorSettings(), Conditions())
    assert (result.peak_reserved, result.unallocated_ratio) == (0, None)


def test_nothing_is_recommended_where_nothing_gets_through():
    """On a card too small for the workload, no choice is the best one, however many requests it saves."""
    result = whatif(recording("resnet50-default"), ["expandable_segments:True"], memory="5GiB")
    assert all(row.ooms for row in result.results)
    assert result.best is None


def test_what_is_not_modelled_is_refused():
    """Another backend ignores the settings: a row of the native one's numbers would be made up."""
    for choice in ("backend:cudaMallocAsync", AllocatorSettings.parse("backend:cudaMallocAsync,max_split_size_mb:64")):
        with pytest.raises(
            InvalidValueError, match=r"^backend:cudaMallocAsync cannot be replayed: only PyTorch's native"
        ):
            whatif(recording("resnet50-default"), [choice])
    result = whatif(recording("resnet50-default"), ["backend:native"])
    assert result.results[1].gain == 0


def test_a_card_without_a_unit_is_refused():
    """`24` would be a card of 24 bytes."""
    with pytest.raises(InvalidValueError, match=r"^a card of '24' is not possible; write a size such as 24GiB$"):
        whatif(recording("resnet50-default"), memory="24")


def test_one_choice_can_be_given_as_a_text():
    """A single settings string is one choice, not one for each letter."""
    result = whatif(recording("resnet50-default"), "expandable_segments:True")
    assert [row.settings for row in result.results] == ["", "expandable_segments:True"]
