"""What recordings of real workloads on an H200 predict of the same workloads under other settings and caps."""

from __future__ import annotations

import time

import pytest
from compared_recordings import recording

from jupyter_gpumem.allocator.check import check
from jupyter_gpumem.allocator.driver import GRANULE
from jupyter_gpumem.allocator.model import Allocator
from jupyter_gpumem.allocator.process import ProcessDriver
from jupyter_gpumem.allocator.replay import Conditions, replay
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.allocator.sizes import round_size
from jupyter_gpumem.allocator.trace import SPECIAL
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.errors import RecordingError
from jupyter_gpumem.recording import Recording
from jupyter_gpumem.units import MiB

SETTINGS = {
    "default": "",
    "cap": "",
    "expandable": "expandable_segments:True",
    "roundup4": "roundup_power2_divisions:4",
}
TRAINING = {
    "transformer": ("default", "expandable", "roundup4"),
    "oom": ("default", "expandable", "roundup4", "cap"),
    "emptying": ("expandable", "roundup4"),
}
MISSED = pytest.mark.xfail(strict=True, reason="its process had more holes than the two that are modelled: 12 MiB low")
PAIRS = [
    pytest.param(workload, source, target, marks=MISSED if (workload, target) == ("transformer", "roundup4") else ())
    for workload, recorded in TRAINING.items()
    for source in recorded
    for target in recorded
    if source != target
]


def predicted(workload, source, target):
    """Return what one recording predicts for another, and what the real run's counters say."""
    real, known = recording(f"{workload}-{target}"), recording(f"{workload}-{source}")
    conditions = Conditions(known.circumstances(0).total_memory, 0, real.circumstances(0).limit)
    settings = AllocatorSettings.parse(SETTINGS[target])
    return replay(known.trace(0), settings, conditions), real.extra["memory_stats"]


@pytest.mark.parametrize(("workload", "source", "target"), PAIRS)
def test_training_is_predicted_to_the_byte(workload, source, target):
    """The reserved peak of a real run under other settings or a cap comes out to the byte, as do retries and OOMs.

    How far it carries is in `benchmarks/results/whatif-h200.json`.
    """
    result, real = predicted(workload, source, target)
    assert result.peak_reserved == real["reserved_bytes.all.peak"]
    # Which blocks are left unsplit depends on addresses; see the next test.
    slack = 0.0014 if target == "roundup4" else 0
    assert abs(result.peak_allocated / real["allocated_bytes.all.peak"] - 1) <= slack
    assert (result.retries, result.ooms) == (real["num_alloc_retries"], real["num_ooms"])


def rounded_peak(trace, divisions):
    """Return the most that lived at once, as rounded sizes: what a trace tells of the allocated peak."""
    sizes, level, peak = [round_size(block[1], divisions) for block in trace.start], 0, 0
    level = peak = sum(sizes)
    for op in trace.ops:
        if 0 <= op < SPECIAL:
            sizes.append(round_size(trace.requests[op][0], divisions))
            level += sizes[-1]
            peak = max(peak, level)
        elif op < 0:
            level -= sizes[~op]
    return peak


@pytest.mark.parametrize("workload", [pytest.param("transformer", marks=MISSED), "oom"])
def test_what_a_trace_does_not_tell_of_the_allocated_peak(workload):
    """Under rounding, recordings agree on the rounded sizes; the rest of the peak is what unsplit blocks leave over.

    Which blocks that are follows from addresses, which differ from run to run: it is at most 1 MiB for each block, and
    a few blocks more or less are the 0.12 and 0.13 % by which the prediction was low with the holes of that process.
    """
    real, known = recording(f"{workload}-roundup4"), recording(f"{workload}-default")
    divisions = real.settings.roundup_power2_divisions
    rounded = rounded_peak(known.trace(0), divisions)
    assert rounded == rounded_peak(real.trace(0), divisions)
    result, stats = predicted(workload, "default", "roundup4")
    left_over = stats["allocated_bytes.all.peak"] - rounded, result.peak_allocated - rounded
    assert left_over[0] > left_over[1] > 0
    assert left_over[0] - left_over[1] <= 2 * MiB
    exact = check(real.trace(0), real.circumstances(0), real.held(0))[1]
    assert exact.peak_allocated == stats["allocated_bytes.all.peak"], "with the recorded addresses it is exact"


@pytest.mark.parametrize("source", ["default", "expandable", "cap"])
@pytest.mark.parametrize("target", ["default", "expandable", "cap"])
def test_streams_are_predicted_within_two_percent(source, target):
    """Where streams wait for each other, delays that were the exception in one run are not carried to another."""
    result, real = predicted("streams", source, target)
    assert abs(result.peak_reserved / real["reserved_bytes.all.peak"] - 1) < 0.02


def test_delays_that_are_the_rule_stay():
    """When another stream delays most frees of a kind, it does so under other settings too."""

    def events(delayed):
        made, more = [], []
        for number in range(10):
            address = (number + 1) << 30
            more.append({"action": "segment_alloc", "addr": address, "size": 20 * MiB, "stream": 0})
            more.append({"action": "alloc", "addr": address, "size": 9 * MiB, "stream": 0})
            free = {"action": "free_requested", "addr": address, "size": 9 * MiB, "stream": 0}
            done = {**free, "action": "free_completed"}
            if number < delayed:
                more.append(free)
                made.append(done)
            else:
                more += [free, done]
        return more + made

    for delayed, late in ((4, 0), (5, 5)):
        trace = Recording({"segments": [], "device_traces": [events(delayed)]}).trace(0)
        assert len(trace.prompt) == delayed - late
        # Two fit into a segment.
        peak = replay(trace, AllocatorSettings(), Conditions()).peak_reserved
        assert peak == (60 if late else 20) * MiB


# Settings that changed


def changed(**more):
    """Return the recording whose settings changed midway, with what a live recording says about that."""
    source = recording("change-default")
    return Recording({**source.snapshot, "jupyter_gpumem": {**source.extra, **more}}, "changed")


def at(event, settings="expandable_segments:True"):
    return {"time_us": recording("change-default").events(0)[event]["time_us"], "settings": settings}


def test_a_change_of_settings_is_followed():
    """With the time of PyTorch's run-time call in it, a recording under several settings checks exactly."""
    source = changed(settings_at_start="", settings_changes=[at(16865)])
    result = check(source.trace(0), source.circumstances(0), source.held(0))[0]
    assert result.exact
    assert result.misplaced == 0
    unknown = recording("change-default")
    assert not check(unknown.trace(0), unknown.circumstances(0), unknown.held(0))[0].exact


def test_a_change_is_part_of_the_program():
    """Under other settings at the start the program changes them at the same place, which a note says."""
    source = changed(settings_at_start="", settings_changes=[at(16865)])
    result = whatif(source, ["", "expandable_segments:True"])
    recorded, same, throughout = result.results
    assert result.check.exact
    assert recorded.settings == ""
    assert same.peak_reserved == recorded.peak_reserved
    assert throughout.peak_reserved < recorded.peak_reserved
    assert any("at the same place" in note for note in result.notes)
    assert result.confidence == "lowered"


def test_a_change_acts_on_the_settings_it_finds():
    """It does what PyTorch's call does: what it does not name stays, or goes back to its default."""

    def event(action, address, size, time):
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time}

    first, second = 1 << 40, 2 << 40
    events = [
        event("segment_alloc", first, 20 * MiB, 1),
        event("alloc", first, 5 * MiB, 1),
        event("segment_alloc", second, 34 * MiB, 3),
        event("alloc", second, 33 * MiB, 3),
    ]
    extra = {"settings_at_start": "", "settings_changes": [{"time_us": 2, "settings": "max_split_size_mb:64"}]}
    trace = Recording({"segments": [], "device_traces": [events], "jupyter_gpumem": extra}).trace(0)
    assert trace.changes == ["max_split_size_mb:64"]
    # Rounding up is forgotten with the change: 5 MiB become 6, and 33 MiB take a segment of 34, not 48.
    assert replay(trace, AllocatorSettings.parse("roundup_power2_divisions:2"), Conditions()).peak_allocated == 40 * MiB
    # Growing goes on: 33 MiB come in pages of 20 MiB, the first of which has 15 MiB left.
    assert replay(trace, AllocatorSettings.parse("expandable_segments:True"), Conditions()).peak_reserved == 40 * MiB


def test_changes_before_the_first_event_are_the_start():
    """What was set before anything was allocated held from the start; what PyTorch resets with each call is reset."""
    early = {"time_us": 1, "settings": "max_split_size_mb:128"}
    source = changed(settings_changes=[at(16865), early], settings_at_start="roundup_power2_divisions:4")
    circumstances = source.circumstances(0)
    assert circumstances.settings == AllocatorSettings.parse("max_split_size_mb:128")
    assert circumstances.changes == ((16865, "expandable_segments:True"),)


def test_what_is_unknown_about_changes_is_said():
    """Notes tell of changes that are not understood, and of settings at the start that were not recorded."""
    wrong = changed(settings_changes=[at(16865, "bogus:1")])
    assert any("not understood" in note for note in wrong.notes(0))
    assert wrong.circumstances(0).changes == ()
    assert any("before the first change" in note for note in changed(settings_changes=[at(16865)]).notes(0))


@pytest.mark.parametrize(
    "more",
    [
        {"settings_changes": "expandable"},
        {"settings_changes": [1]},
        {"settings_changes": [{"time_us": "now", "settings": ""}]},
        {"settings_changes": [{"time_us": True, "settings": ""}]},
        {"settings_changes": [{"time_us": 1}]},
        {"settings_at_start": 1},
    ],
)
def test_malformed_changes_are_refused(more):
    """Anything but a list of times and strings is a damaged file."""
    with pytest.raises(RecordingError, match="settings"):
        changed(**more)


# The driver


def test_the_driver_places_segments_as_in_a_real_process():
    """First above, in single granules from the highest down; what the first stack took is filled from its lower end."""
    driver = ProcessDriver()
    first, small = driver.allocate(20 * MiB), driver.allocate(2 * MiB)
    assert first % GRANULE == 8 * MiB
    assert small == first - 74 * MiB
    above = [driver.allocate(20 * MiB) for _ in range(2)]
    assert min(above) > first
    assert above == sorted(above, reverse=True)
    assert driver.allocate(20 * MiB) < small, "when there are no more holes"
    driver.begin()
    area = [driver.allocate(24 * MiB) for _ in range(3)]
    assert area == sorted(area)
    assert first - 488 * MiB <= area[0] < area[-1] < small


def test_the_drivers_own_memory_keeps_granules():
    """A run of granules with something of the driver in it is used again before new ones are."""
    driver = ProcessDriver()
    address = driver.allocate(134 * MiB)
    driver.keep()
    driver.release(address, 134 * MiB)
    assert driver.allocate(14 * MiB) == address + 136 * MiB, "the smaller gap first"
    assert driver.allocate(20 * MiB) == address


def test_the_drivers_own_memory_is_not_the_programs():
    """What the driver takes for itself is outside of what the device has for segments."""
    driver = ProcessDriver(20 * MiB)
    driver.begin()
    driver.keep()
    assert driver.free == 20 * MiB
    assert Allocator(driver=driver).malloc(20 * MiB)
    assert driver.allocate(2 * MiB) is None


def test_replays_stay_fast():
    """Thirty thousand events under one choice of settings take well under a second."""
    began = time.process_time()
    predicted("emptying", "expandable", "roundup4")
    assert time.process_time() - began < 2
