"""Replays of real recordings: exact under the recorded settings, and right about the others that were recorded too."""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache

import pytest
from compared_recordings import DATA

from jupyter_gpumem.allocator.check import check
from jupyter_gpumem.allocator.replay import Conditions, replay
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.allocator.trace import EMPTY
from jupyter_gpumem.recording import Recording, read_recording
from jupyter_gpumem.units import GiB, MiB

NAMES = sorted(path.name.removesuffix(".pickle.gz") for path in DATA.glob("*.gz"))


# The second half of this program, and what it was told before it: its trace does not say, a live recording does.
CHANGED_AT_EVENT = 16865

# Cut in the middle, these two do not show enough of how their start lay: blocks of the other half are misplaced.
WHOLE_ONLY = {("transformer-default", 0.5), ("oom-roundup4", 0.5), ("change-default", 0.02)}


@cache
def recording(name):
    source = read_recording(DATA / f"{name}.pickle.gz")
    if name != "change-default":
        return source
    change = {"time_us": source.events(0)[CHANGED_AT_EVENT]["time_us"], "settings": "expandable_segments:True"}
    known = {"settings_at_start": "", "settings_changes": [change]}
    return Recording({**source.snapshot, "jupyter_gpumem": {**source.extra, **known}}, name)


@cache
def checked(name):
    """Return the check of a recording, the replay it made, and the model at its end."""
    source = recording(name)
    return check(source.trace(0), source.circumstances(0), source.held(0))


def peak(name):
    """Return the reserved peak of the real run."""
    return recording(name).extra["memory_stats"]["reserved_bytes.all.peak"]


def predicted(name, text, limit=None):
    return replay(recording(name).trace(0), AllocatorSettings.parse(text), Conditions(limit=limit))


def flat(stats, prefix=""):
    for key, value in stats.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# The recorded settings


def test_there_are_recordings():
    """The recordings that all of this is measured against are there."""
    assert len(NAMES) == 21


@pytest.mark.parametrize("name", NAMES)
def test_every_block_lies_where_it_was_recorded(name):
    """With segment addresses fed back, every address, driver call, reserved level, failure and retry is as recorded."""
    result, outcome, _ = checked(name)
    stats = recording(name).extra["memory_stats"]
    assert dataclasses.astuple(result)[1:3] == (0, 0)
    assert result.exact
    assert result.misplaced == 0
    assert result.blocks == sum(event["action"] == "alloc" for event in recording(name).events(0))
    assert result.segment_events == sum(event["action"].startswith("segment") for event in recording(name).events(0))
    assert result.segment_events > 0
    assert result.retries == stats["num_alloc_retries"]
    assert result.ooms == stats["num_ooms"]
    assert outcome.peak_reserved == stats["reserved_bytes.all.peak"]
    assert outcome.peak_allocated == stats["allocated_bytes.all.peak"]


@pytest.mark.parametrize("name", NAMES)
def test_every_counter_ends_as_recorded(name):
    """Each number of the real `memory_stats()` is the model's too: peaks, totals, splits, oversize blocks, calls."""
    model = dict(flat(checked(name)[2].stats()))
    real = recording(name).extra["memory_stats"]
    assert {key: model[key] for key in real} == dict(real)


@pytest.mark.parametrize("name", NAMES)
def test_the_final_snapshot_is_as_recorded(name):
    """The model's segments at the end are PyTorch's, block by block, requested sizes of freed blocks included."""
    assert checked(name)[2].snapshot() == recording(name).segments(0)


MISSED = pytest.mark.xfail(strict=True, reason="its process had more holes than the two that are modelled: 12 MiB low")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MISSED if name == "transformer-roundup4" else ()) for name in NAMES]
)
def test_the_models_own_addresses_give_the_recorded_peak(name):
    """With addresses handed out by the modelled driver the reserved peak is the recorded one too."""
    source = recording(name)
    circumstances = source.circumstances(0)
    own = replay(
        source.trace(0), circumstances.settings, Conditions(circumstances.total_memory, 0, circumstances.limit)
    )
    if name == "streams-cap":
        # How long streams wait for each other, and so when memory is short, differs from run to run.
        assert abs(own.peak_reserved / peak(name) - 1) < 0.01
        return
    assert own.peak_reserved == peak(name)
    assert own.retries == checked(name)[1].retries
    assert own.first_oom == checked(name)[1].first_oom


def test_the_failure_is_at_its_event():
    """The request that failed when it was recorded fails in the model, and only that."""
    events = recording("encoder-default-cap4.3-oom").events(0)
    outcome = checked("encoder-default-cap4.3-oom")[1]
    assert events[outcome.first_oom]["action"] == "oom"
    assert outcome.ooms == 1


def test_calls_of_empty_cache_are_recognised():
    """Segments given back that no failed request explains are the user's own `empty_cache()`, not retries."""
    trace = recording("random-3streams-default").trace(0)
    assert sum(kind == EMPTY for _, kind, _ in trace.special) >= 4
    assert recording("random-3streams-default").extra["memory_stats"]["num_alloc_retries"] == 0
    under_cap = recording("encoder-maxsplit128-cap5").trace(0)
    assert not any(kind == EMPTY for _, kind, _ in under_cap.special)


# Other settings that were recorded too


@pytest.mark.parametrize(
    ("source", "text", "target"),
    [
        ("encoder-default", "expandable_segments:True", "encoder-expandable"),
        ("encoder-default", "max_split_size_mb:128", "encoder-maxsplit128"),
        ("encoder-default", "max_split_size_mb:128", "encoder-maxsplit128-cap5"),
        ("encoder-expandable", "", "encoder-default"),
        ("encoder-expandable", "max_split_size_mb:128", "encoder-maxsplit128-cap5"),
        ("encoder-maxsplit128", "", "encoder-default"),
        ("encoder-maxsplit128", "expandable_segments:True", "encoder-expandable"),
        ("encoder-maxsplit128-cap5", "max_split_size_mb:128", "encoder-maxsplit128"),
    ],
)
def test_other_settings_are_predicted_to_the_byte(source, text, target):
    """The trace of one run predicts the reserved peak, retries and driver calls of another, under other settings."""
    result, real = (
        predicted(source, text, recording(target).circumstances(0).limit),
        recording(target).extra["memory_stats"],
    )
    assert result.peak_reserved == peak(target)
    assert result.retries == real["num_alloc_retries"]
    assert result.device_allocations == real["num_device_alloc"]
    assert result.device_frees == real["num_device_free"]
    assert result.ooms == 0


def test_a_tighter_cap_is_predicted():
    """The run without a cap foretells the failure of the run with 4.3 GiB within a few requests, and its peak."""
    real = recording("encoder-default-cap4.3-oom")
    result = predicted("encoder-default", "", real.circumstances(0).limit)
    first = checked("encoder-default-cap4.3-oom")[1].first_oom
    assert abs(result.first_oom - first) <= 2
    assert abs(result.peak_reserved / peak("encoder-default-cap4.3-oom") - 1) < 0.005
    assert predicted("encoder-default", "expandable_segments:True", real.circumstances(0).limit).ooms == 0


def test_random_traffic_is_predicted_within_two_percent():
    """Random sizes on three streams, replayed with the model's own addresses, need what they needed."""
    assert abs(predicted("random-3streams-default", "").peak_reserved / peak("random-3streams-default") - 1) < 0.02


def test_replays_are_deterministic():
    """The same trace under the same settings comes to the same, number by number."""
    assert predicted("resnet50-default", "max_split_size_mb:128") == predicted(
        "resnet50-default", "max_split_size_mb:128"
    )


def test_a_smaller_device_retries_and_fails():
    """A device too small for the workload flushes its cache and then fails, at an event that is named."""
    result = replay(recording("resnet50-default").trace(0), AllocatorSettings(), Conditions(5 * GiB, 512 * MiB))
    assert result.ooms > 0
    assert result.retries >= result.ooms
    assert result.peak_reserved <= 5 * GiB - 512 * MiB
    assert recording("resnet50-default").events(0)[result.first_oom]["action"] == "alloc"


# Traces that begin in the middle


@pytest.mark.parametrize(
    ("name", "share"), [cut for cut in itertools.product(NAMES, [0.02, 0.5, 0.9]) if cut not in WHOLE_ONLY]
)
def test_the_start_is_reconstructed(name, share):
    """When the first events are lost, what was alive and reserved before is found again, and the doubt is told."""
    source = recording(name)
    events = source.events(0)
    lost = int(len(events) * share)
    cut = Recording({**source.snapshot, "device_traces": [events[lost:]]}, "cut")
    trace, whole = cut.trace(0), source.trace(0)
    kept = [event for event in events[:lost] if event["action"].startswith("segment")]
    assert trace.reserved == sum(
        event["size"] if event["action"] in {"segment_alloc", "segment_map"} else -event["size"] for event in kept
    )
    alive = set()
    for event in events[:lost]:
        if event["action"] == "alloc":
            alive.add(event["addr"])
        elif event["action"] == "free_completed":
            alive.discard(event["addr"])
    assert {block[0] for block in trace.start} == alive
    assert any("before the first recorded event" in note for note in trace.notes) == bool(alive)
    result, outcome, _ = check(trace, cut.circumstances(0), cut.held(0))
    assert result.max_difference == 0
    assert result.misplaced <= 0.05 * result.blocks, "only slack behind blocks that are gone is unknown"
    assert outcome.peak_reserved <= peak(name)
    assert len(trace.addresses) <= len(whole.addresses)
    assert replay(trace, AllocatorSettings(), Conditions()).ooms == 0
