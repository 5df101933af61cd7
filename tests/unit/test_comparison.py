"""What-if: the table, what a search tries, the choice it recommends, and the processes that share the work."""

from __future__ import annotations

import json
import subprocess

import pytest
from compared_recordings import recording, searched

from jupyter_gpumem.allocator import worker
from jupyter_gpumem.allocator.replay import Conditions, replay
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.choices import recommended
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.errors import GpumemError
from jupyter_gpumem.recording import Recording


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


def test_no_gain_where_memory_runs_out():
    """A run that fails saves nothing: its gain is missing, and why."""
    result = whatif(recording("encoder-default-cap4.3-oom"), ["", "expandable_segments:True"])
    failed, best = result.to_dict()["results"][1:]
    assert failed["ooms"] == 1
    assert (failed["gain"], failed["gain_percent"]) == (None, None)
    assert failed["gain_missing"].startswith("it runs out of memory")
    assert best["gain"] > 0
    assert best["gain_missing"] is None


def test_unsafe_choices_are_marked_and_never_best():
    """An unsafe combination is shown with its warning, but not recommended, however low it comes out."""
    result = whatif(recording(), ["max_split_size_mb:512,expandable_segments:True", "garbage_collection_threshold:0.8"])
    assert result.results[1].warnings[0].startswith("unsafe: max_split_size_mb with expandable_segments")
    assert result.results[2].warnings[0].startswith("pointless: garbage_collection_threshold")
    assert not any(row.best for row in result.results)


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


def test_the_recorded_settings_are_never_the_advice():
    """Where they need less with another order of addresses, it is not the settings that make the difference."""
    worse = replay(recording().trace(0), AllocatorSettings.parse("max_split_size_mb:128"), Conditions())
    better = replay(recording().trace(0), AllocatorSettings(), Conditions())
    assert better.peak_reserved < worse.peak_reserved
    assert recommended([(AllocatorSettings(), worse), (AllocatorSettings(), better)]) is None


def test_what_the_user_set_besides_is_kept():
    """Keys that are not being tried stay in every string that is proposed."""
    snapshot = dict(recording().snapshot)
    snapshot["jupyter_gpumem"] = {**snapshot["jupyter_gpumem"], "alloc_conf": "pinned_num_register_threads:8"}
    result = whatif(Recording(snapshot))
    assert all(row.settings.endswith("pinned_num_register_threads:8") for row in result.results)


def test_nothing_is_recommended_where_nothing_gets_through():
    """On a card too small for the workload, no choice is the best one, however many requests it saves."""
    result = whatif(recording("resnet50-default"), ["expandable_segments:True"], memory="5GiB")
    assert all(row.ooms for row in result.results)
    assert result.best is None
