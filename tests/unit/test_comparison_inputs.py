"""What is given to what-if: arguments, files, caps, cards and odd recordings, each judged or refused in one line."""

from __future__ import annotations

import pickle
import random
import re

import pytest
from compared_recordings import BASE, DATA, recording

from jupyter_gpumem.allocator.replay import Conditions, replay
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.errors import GpumemError, InvalidValueError, RecordingError
from jupyter_gpumem.recording import Recording, write_recording
from jupyter_gpumem.report import recording_sheets
from jupyter_gpumem.units import GiB, MiB

RESNET = DATA / "resnet50-default.pickle.gz"


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
    assert whatif(RESNET, []).recording.source == RESNET.name
    with pytest.raises(RecordingError, match="no events"):
        whatif(Recording({"segments": [], "device_traces": [[]]}))
    with pytest.raises(RecordingError, match="is a directory"):
        whatif(DATA)


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
    assert (result.memory, result.limit, result.recording.device_name) == (None, None, None)
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
