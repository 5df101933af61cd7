"""Recordings in files: what PyTorch and this package write is read, and what is written can be read again."""

from __future__ import annotations

import gzip
import os
import pickle
import stat
from pathlib import Path

import pytest
from compared_recordings import DATA
from small_recording import BASE, event, snapshot

from jupyter_gpumem import opcodes, unpickling
from jupyter_gpumem.errors import RecordingError
from jupyter_gpumem.recording import Recording, read_recording, write_recording
from jupyter_gpumem.units import MiB

# What is read


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_every_protocol_is_read(tmp_path, protocol, packed):
    """Case O17: pickle protocols 2 to 5, packed or not, give the same recording."""
    data = pickle.dumps(snapshot(), protocol=protocol)
    path = tmp_path / "snap.pickle"
    path.write_bytes(gzip.compress(data) if packed else data)
    recording = read_recording(path)
    assert recording.snapshot == snapshot()
    assert recording.devices == (0,)
    assert recording.trace(0).total == 5


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_minimal_snapshots_are_read(tmp_path, protocol):
    """Case O17: empty segments, empty traces, no traces at all, several devices, addresses above 2**53."""
    two = [[], [event("segment_alloc", (1 << 57) + 512, 2 * MiB), event("alloc", (1 << 57) + 512)]]
    cases = [
        {"segments": [], "device_traces": [[]], "allocator_settings": {}},
        {"segments": []},
        {"device_traces": []},
        {"segments": [], "device_traces": two},
        {"segments": snapshot()["segments"]},
    ]
    for number, case in enumerate(cases):
        path = tmp_path / f"{number}.pickle"
        path.write_bytes(pickle.dumps(case, protocol=protocol))
        assert read_recording(path).snapshot == case
    assert read_recording(tmp_path / "3.pickle").devices == (1,)
    assert read_recording(tmp_path / "3.pickle").trace(1).addresses[0] == (1 << 57) + 512
    with pytest.raises(RecordingError, match="no events of device 0"):
        read_recording(tmp_path / "4.pickle").trace(0)


def test_old_and_new_field_sets_are_read(tmp_path):
    """Case O17: fields that came later or went away, unknown actions, a list of segments alone."""
    old = snapshot()
    for segment in old["segments"]:
        for key in ("segment_pool_id", "is_expandable", "stream", "frames"):
            del segment[key]
        for block in segment["blocks"]:
            block.pop("address")
            block.pop("requested_size")
    new = snapshot(host_segments=[], host_traces=[])
    new["device_traces"][0].insert(2, {"action": "annotate", "addr": BASE, "user_metadata": "text", "time_us": 3})
    new["device_traces"][0].insert(2, event("user_defined", 0, 0))
    new["device_traces"][0].append(event("snapshot", 0, 1000))
    for entry in new["device_traces"][0]:
        entry |= {
            "pool_id": (0, 0),
            "time_us": 1_700_000_000_000_000,
            "compile_context": "N/A",
            "forward_frames": ["f"],
        }
    for name, data in (("old", old), ("new", new), ("list", snapshot()["segments"])):
        path = tmp_path / name
        path.write_bytes(pickle.dumps(data))
        recording = read_recording(path)
        if name != "list":
            assert [len(recording.trace(0).addresses), recording.trace(0).notes] == [2, []]
        assert len(recording.segments(0)) == 1


def test_long_strings_and_large_numbers_are_read(tmp_path):
    """Strings of any length and script, numbers of every width, floats, nested lists: all that snapshots hold."""
    extra = {
        "texts": ["", "x" * 300, "y" * 70_000, "Größe", "尺寸" * 200],
        "numbers": [0, 255, 256, 65535, 65536, -1, -300, 1 << 31, -(1 << 31), 1 << 40, 1 << 62, (1 << 64) - 1, 1 << 70],
        "others": [None, True, False, 0.5, -1e300, [[[]]], {}, {"a": {"b": []}}, (0, 1), (), (1, 2, 3, 4)],
    }
    for protocol in (2, 3, 4, 5):
        path = tmp_path / "x.pickle"
        path.write_bytes(pickle.dumps(snapshot(extra=extra), protocol=protocol))
        assert read_recording(path).snapshot["extra"] == extra


def test_written_recordings_are_read_back(tmp_path):
    """What is written is protocol 4, packed if its name says so, replaces the old file, and reads back the same."""
    for name in ("a.pickle", "a.pickle.gz"):
        path = tmp_path / name
        path.write_bytes(b"old")
        assert write_recording(snapshot(), path) == path
        assert read_recording(path).snapshot == snapshot()
    assert (tmp_path / "a.pickle").read_bytes()[:2] == b"\x80\x04"
    assert (tmp_path / "a.pickle.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_saved_file_is_as_accessible_as_others(tmp_path):
    """A new file has the rights of any new file, one that was there keeps its own, and a link stays a link."""
    (tmp_path / "any").write_bytes(b"")
    new, old, link = (tmp_path / f"{name}.pickle" for name in ("new", "old", "link"))
    old.write_bytes(b"old")
    old.chmod(0o640)
    link.symlink_to(old)
    write_recording(snapshot(), new)
    assert write_recording(snapshot(), link) == link
    assert stat.S_IMODE(new.stat().st_mode) == stat.S_IMODE((tmp_path / "any").stat().st_mode)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert read_recording(old).snapshot == snapshot()


def test_what_is_no_ordinary_file_is_left_alone(tmp_path):
    """A pipe is not replaced by a recording, and neither is what a link to it leads to: a device would be gone."""
    pipe, link = tmp_path / "pipe.pickle", tmp_path / "link.pickle"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(RecordingError, match="is a device or a pipe, not a file; name another place"):
            write_recording(snapshot(), path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_saving_that_ends_halfway_leaves_what_was_there(tmp_path, monkeypatch, error):
    """A full disk or an interrupt costs neither the old file nor leaves half of a new one."""
    path = tmp_path / "a.pickle"
    path.write_bytes(b"old")

    def fail(*_):
        raise error

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises((RecordingError, KeyboardInterrupt)):
        write_recording(snapshot(), path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_what_cannot_be_written_says_so(tmp_path):
    """A folder that is not there, and a dict that is no snapshot, are refused; nothing is left behind."""
    for path in (tmp_path / "no" / "a.pickle", "a\0b"):
        with pytest.raises(RecordingError, match="cannot be written"):
            write_recording(snapshot(), path)
    (tmp_path / "dir.pickle").mkdir()
    with pytest.raises(RecordingError, match="is a directory; name a file in it"):
        write_recording(snapshot(), tmp_path / "dir.pickle")
    with pytest.raises(RecordingError, match="neither"):
        write_recording({"a": 1}, tmp_path / "b.pickle")
    assert [path.name for path in tmp_path.iterdir()] == ["dir.pickle"]


@pytest.mark.parametrize("path", sorted(DATA.glob("*.gz")), ids=lambda path: path.name)
def test_real_recordings_are_read(path):
    """Recordings of real runs hold what a plain unpickling of them holds."""
    recording = read_recording(path)
    assert recording.snapshot == pickle.loads(gzip.decompress(path.read_bytes()))
    assert recording.notes(0) == []
    assert recording.summary().devices == {"0": len(recording.events(0))}


@pytest.mark.parametrize("size", [1, 7, 700, 5000])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pieces_of_any_size_are_unpickled_alike(monkeypatch, tmp_path, protocol, size):
    """Wherever the reader cuts a pickle in two, with frames or without, the same comes out of it."""
    source = read_recording(DATA / "resnet50-default.pickle.gz").snapshot
    head = {"device_traces": [source["device_traces"][0][:300]], "more": "x" * 100_000, "last": 2**40}
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(head, protocol=protocol))
    monkeypatch.setattr(unpickling, "_FIRST", max(size, 3))
    monkeypatch.setattr(unpickling, "_PIECE", size)
    assert unpickling.load_plain(path) == head


@pytest.mark.parametrize("size", [1, 7, 64, 700, 5000])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pieces_of_any_size_are_scanned_alike(protocol, size):
    """Wherever the reader cuts a pickle in two, strings, tuples and numbers are recognised."""
    source = read_recording(DATA / "resnet50-default.pickle.gz").snapshot
    head = {"device_traces": [source["device_traces"][0][:150]], "segments": source["segments"][:9]}
    head["more"] = [(1, 2, 3, 4), "x" * 3000, (), (0,)]
    data = pickle.dumps(head, protocol=protocol)
    scanner = opcodes.Scanner()
    for at in range(0, len(data), size):
        scanner.feed(data[at : at + size])
    scanner.finish()
    for cut in range(1, 60) if size > 9 else (1, 5):
        short = opcodes.Scanner()
        for at in range(0, len(data) - cut, size):
            short.feed(data[at : min(at + size, len(data) - cut)])
        with pytest.raises(RecordingError, match="cut short"):
            short.finish()


def test_what_is_not_recorded_is_said():
    """Without the key of ours, size and cap of the device are unknown, and settings that are not understood are too."""
    recording = Recording(snapshot(allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "nonsense"}))
    assert recording.circumstances(0).total_memory is None
    assert recording.circumstances(0).limit is None
    assert [note.split(" ", 3)[:3] for note in recording.notes(0)] == [
        ["the", "recorded", "settings"],
        ["the", "size", "of"],
        ["the", "memory", "cap"],
    ]
    assert repr(recording) == "<Recording recording: 5 events, 1 segments>"


def test_what_is_written_can_be_read(tmp_path):
    """A class that hides in a snapshot, as torch's version string does, is refused when it is saved, not when read."""

    class Version(str):
        __slots__ = ()

    snapshot = {"segments": [], "device_traces": [[]], "jupyter_gpumem": {"torch": Version("2.13.0")}}
    with pytest.raises(RecordingError, match="plain containers, numbers and strings only"):
        write_recording(snapshot, tmp_path / "run.pickle")
    assert list(tmp_path.iterdir()) == []
