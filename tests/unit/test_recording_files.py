"""Recordings in files: what PyTorch and this package write is read, anything else refused in one line."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import pickletools
import random
import stat
import struct
import zipfile
import zlib
from collections import OrderedDict, deque
from decimal import Decimal
from pathlib import Path

import pytest

from jupyter_gpumem import opcodes, unpickling
from jupyter_gpumem.errors import RecordingError
from jupyter_gpumem.recording import Recording, read_recording, write_recording
from jupyter_gpumem.units import MiB

DATA = Path(__file__).parents[1] / "data" / "recordings"
BASE = 0x7F0000000000


def event(action, addr=BASE, size=1024, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, **more}


def snapshot(**more):
    """A small snapshot with one live and one freed block."""
    return {
        "segments": [
            {
                "device": 0,
                "address": BASE,
                "total_size": 2 * MiB,
                "stream": 0,
                "segment_type": "small",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [
                    {"address": BASE, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": []},
                    {"address": BASE + 1024, "size": 2 * MiB - 1024, "requested_size": 0, "state": "inactive"},
                ],
            }
        ],
        "device_traces": [
            [
                event("segment_alloc", size=2 * MiB),
                event("alloc", size=1000, frames=[{"filename": "a.py", "line": 3, "name": "f"}]),
                event("alloc", BASE + 1024, 300),
                event("free_requested", BASE + 1024, 300),
                event("free_completed", BASE + 1024, 300),
            ]
        ],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
        "external_annotations": [],
        **more,
    }


def changed(path, value):
    """Return the small snapshot with one value put elsewhere: `changed(("segments", 0, "stream"), None)`."""
    data = snapshot(jupyter_gpumem={"total_memory": 1 << 30, "memory_fraction": 1.0})
    place = data
    for step in path[:-1]:
        place = place[step]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


def refused(tmp_path, data, name="x.pickle"):
    """Return the text with which a file of these bytes is refused; anything but a refusal fails the test."""
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(RecordingError) as error:
        read_recording(path)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 400
    assert name in text
    return text


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
    assert recording.to_dict()["devices"] == {"0": len(recording.events(0))}


def test_reading_leaves_the_garbage_collector_as_it_was(tmp_path):
    """Collection is paused while reading, and is on again afterwards, or off if it was off."""
    import gc

    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(snapshot()))
    try:
        for on in (True, False):
            (gc.enable if on else gc.disable)()
            read_recording(path)
            with pytest.raises(RecordingError):
                read_recording(tmp_path)
            assert gc.isenabled() is on
    finally:
        gc.enable()


# What is refused


class Calls:
    """Pickles as a call of something."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def with_persistent_id(protocol):
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return "id" if obj == "away" else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol).dump(snapshot(extra="away"))
    return buffer.getvalue()


def checkpoint():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
    return buffer.getvalue()


HEAD = b"\x80\x04"
DEEP = 200_000
HOSTILE = {
    "os.system": pickle.dumps(snapshot(x=Calls(os.system, ("touch HIT",)))),
    "os.system protocol 2": pickle.dumps(snapshot(x=Calls(os.system, ("touch HIT",))), 2),
    "builtins.eval": pickle.dumps(snapshot(x=Calls(eval, ("open('HIT', 'w')",)))),
    "builtins.exec": pickle.dumps(Calls(exec, ("open('HIT', 'w')",)), 3),
    "reduce of a class": pickle.dumps(snapshot(x=deque([1]))),
    "reduce with state": pickle.dumps(snapshot(x=Decimal("1.5"))),
    "OrderedDict": pickle.dumps(OrderedDict(snapshot())),
    "an exception": pickle.dumps(ValueError("x")),
    "a function": pickle.dumps(os.getcwd),
    "a class": pickle.dumps(dict),
    "a path": pickle.dumps({"segments": [Path("x")]}),
    "global opcode": HEAD + b"cos\nsystem\n(\x8c\x09touch HITtR.",
    "stack global": HEAD + b"\x8c\x02os\x8c\x06system\x93\x8c\x09touch HIT\x85R.",
    "inst opcode": HEAD + b"(\x8c\x09touch HITios\nsystem\n.",
    "obj opcode": HEAD + b"(cos\nsystem\n\x8c\x09touch HITo.",
    "newobj": HEAD + b"cbuiltins\nint\n)\x81.",
    "newobj_ex": HEAD + b"cbuiltins\nint\n)}\x92.",
    "build": HEAD + b"}}b.",
    "reduce alone": HEAD + b"}}R.",
    "persistent id binary": with_persistent_id(4),
    "persistent id protocol 2": with_persistent_id(2),
    "persistent id text": HEAD + b"Pid\n.",
    "ext1": HEAD + b"\x82\x01.",
    "ext2": HEAD + b"\x83\x01\x00.",
    "ext4": HEAD + b"\x84\x01\x00\x00\x00.",
    "ext in a snapshot": pickle.dumps(snapshot())[:-1] + b"\x82\x01.",
    "frozenset": pickle.dumps(frozenset([1])),
    "set": pickle.dumps({1, 2}),
    "bytes": pickle.dumps(b"abc"),
    "bytearray": pickle.dumps(bytearray(b"abc"), 5),
    "out-of-band buffer": HEAD + b"\x97.",
    "read-only buffer": HEAD + b"}\x98.",
    "text integer": HEAD + b"I5\n.",
    "text long": HEAD + b"L5L\n.",
    "text float": HEAD + b"F1.5\n.",
    "text string": HEAD + b"S'a'\n.",
    "unicode text": HEAD + b"Va\n.",
    "text get": HEAD + b"}g0\n.",
    "pop": HEAD + b"}N0.",
    "dup": HEAD + b"}2.",
    "pop mark": HEAD + b"}(1.",
    "huge long": HEAD + b"\x8b\xff\xff\xff\x7f" + b"1" * 100 + b".",
    "long of 200 bytes": HEAD + b"\x8a\xc8" + b"1" * 200 + b".",
    "memo bomb": HEAD + b"]r\xff\xff\xff\x7f.",
    "memo bomb after strings": HEAD + b"}\x8c\x01a]r\xff\xff\xff\x3fs.",
    "deep tuples as a key": HEAD + b"}" + b")" + b"\x85" * DEEP + b"Ns.",
    "deep tuples of pairs": HEAD + b"}" + b"N" + b"N\x86" * DEEP + b"Ns.",
    "deep tuples with memo": HEAD + b"}" + b")" + b"\x85\x94" * DEEP + b"Ns.",
    "deep marked tuples": HEAD + b"}" + b"(" * DEEP + b"t" * DEEP + b"Ns.",
    "deep tuples by memo": HEAD + b"}" + b"K\x00\x85\x94" + b"".join(b"h\x00\x85q\x00" for _ in range(DEEP)) + b"Ns.",
    "deep lists": HEAD + b"]" * DEEP + b"a" * (DEEP - 1) + b".",
    "deep dicts": HEAD + b"}K\x00" * DEEP + b"N" + b"s" * DEEP + b".",
    "deep lists never closed": HEAD + b"]" * DEEP,
    "a list in itself": HEAD + b"]\x94h\x00a.",
    "a list as a key": HEAD + b"}]Ns.",
    "string of 2**62 bytes": HEAD + b"\x8d" + struct.pack("<Q", 1 << 62) + b"a.",
    "string of 2**63 bytes": HEAD + b"\x8d" + struct.pack("<Q", (1 << 64) - 1) + b"a.",
    "string of 4 GiB": HEAD + b"X\xff\xff\xff\xffa.",
    "string that is no UTF-8": HEAD + b"\x8c\x02\xff\xfe.",
    "frame of 2**62 bytes": HEAD + b"\x95" + struct.pack("<Q", 1 << 62) + b"}.",
    "frame that is too short": HEAD + b"\x95" + struct.pack("<Q", 1) + b"}\x8c\x01aNs.",
    "stack underflow": HEAD + b"s.",
    "append to nothing": HEAD + b"Na.",
    "setitems on a list": HEAD + b"](K\x00K\x01u.",
    "odd setitems": HEAD + b"}(K\x00u.",
    "nothing on the stack": HEAD + b".",
    "get of nothing": HEAD + b"h\x05.",
    "no stop": HEAD + b"}",
    "head only": HEAD,
    "half a head": b"\x80",
    "protocol 0": pickle.dumps(snapshot(), 0),
    "protocol 1": pickle.dumps(snapshot(), 1),
    "protocol 6": b"\x80\x06}.",
    "protocol 255": b"\x80\xff}.",
    "empty file": b"",
    "zeros": bytes(1000),
    "noise": random.Random(1).randbytes(5000),
    "HTML": b"<!DOCTYPE html><html><body>404</body></html>",
    "HTML after blanks": b"\n\n  <html></html>",
    "JSON": b'{"segments": []}',
    "text": "Größe".encode(),
    "PNG": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "SQLite": b"SQLite format 3\x00" + bytes(100),
    "torch checkpoint": checkpoint(),
    "old torch checkpoint": pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2),
    "gzip of nothing": gzip.compress(b""),
    "gzip of HTML": gzip.compress(b"<html></html>"),
    "gzip of gzip": gzip.compress(gzip.compress(pickle.dumps(snapshot()))),
    "gzip cut short": gzip.compress(pickle.dumps(snapshot()))[:-20],
    "gzip head only": b"\x1f\x8b",
    "gzip with a wrong sum": gzip.compress(pickle.dumps(snapshot()))[:-8] + bytes(8),
    "gzip then noise": gzip.compress(pickle.dumps(snapshot())) + b"noise",
    "gzip of os.system": gzip.compress(pickle.dumps(Calls(os.system, ("touch HIT",)))),
    "gzip bomb": gzip.compress(bytes(80 * MiB), 9),
    "gzip bombs in a row": gzip.compress(bytes(20 * MiB), 9) * 5,
}  # fmt: skip

WRONG = {
    "a list": [1, 2],
    "a number": 5,
    "a text": "snapshot",
    "None": None,
    "a dict of something": {"model": {}, "epoch": 3},
    "an empty dict": {},
    "number keys": {1: 2},
    "segments are a dict": {"segments": {}},
    "segments are None": {"segments": None},
    "traces are a dict": {"device_traces": {}},
    "traces of 5,000 devices": {"device_traces": [[]] * 5000},
    "a trace is a dict": {"device_traces": [{}]},
    "a trace is a text": {"device_traces": ["alloc"]},
    "an event is a list": {"device_traces": [[[]]]},
    "an event is None": {"device_traces": [[None]]},
    "an event is empty": {"device_traces": [[{}]]},
    "a segment is None": {"segments": [None]},
    "a segment is empty": {"segments": [{}]},
    "settings are a list": snapshot(allocator_settings=[]),
    "settings are None": snapshot(allocator_settings=None),
    "our key is a text": snapshot(jupyter_gpumem="x"),
}
for _path in (
    ("device_traces", 0, 1, "size"),
    ("device_traces", 0, 1, "addr"),
    ("device_traces", 0, 1, "stream"),
    ("device_traces", 0, 1, "action"),
    ("segments", 0, "address"),
    ("segments", 0, "total_size"),
    ("segments", 0, "stream"),
    ("segments", 0, "device"),
    ("segments", 0, "segment_type"),
    ("segments", 0, "segment_pool_id"),
    ("segments", 0, "blocks"),
    ("segments", 0, "blocks", 0),
    ("segments", 0, "blocks", 0, "size"),
    ("segments", 0, "blocks", 0, "requested_size"),
    ("segments", 0, "blocks", 0, "address"),
    ("segments", 0, "blocks", 0, "state"),
    ("jupyter_gpumem", "total_memory"),
    ("jupyter_gpumem", "memory_fraction"),
):
    _text = _path[-1] in {"action", "state", "segment_type"}
    _none_is_fine = _path[:3] == ("device_traces", 0, 1) and _path[-1] == "addr"
    for _value in (None, [], {}, (), 1.5, float("nan"), 5 if _text else "text", True, -(1 << 70), 1 << 70):
        if _path == ("segments", 0, "blocks") and _value == []:
            continue  # a segment without blocks is odd, but possible
        if _path == ("segments", 0, "blocks", 0) and _value == {}:
            _value = {"size": 1}
        if _path[:3] == ("device_traces", 0, 1) and _value is True:
            continue  # counts as 1
        if (_none_is_fine and _value is None) or (_path[-1] == "memory_fraction" and _value in (1.5, True)):
            _value = b"bytes"
        WRONG[f"{'.'.join(map(str, _path))} is {str(_value)[:12]!r}"] = changed(_path, _value)
for _path, _value in (
    (("device_traces", 0, 1, "size"), -1),
    (("device_traces", 0, 1, "addr"), -1),
    (("device_traces", 0, 1, "addr"), 1 << 64),
    (("device_traces", 0, 1, "stream"), 1 << 64),
    (("segments", 0, "total_size"), -1),
    (("segments", 0, "total_size"), 1 << 60),
    (("segments", 0, "total_size"), 512),
    (("segments", 0, "blocks", 0, "size"), -512),
    (("segments", 0, "device"), -1),
    (("segments", 0, "device"), 1 << 40),
    (("segments", 0, "segment_pool_id"), (0, 0, 0)),
    (("segments", 0, "address"), 1 << 64),
    (("jupyter_gpumem", "total_memory"), 0),
    (("jupyter_gpumem", "total_memory"), -5),
    (("jupyter_gpumem", "memory_fraction"), -0.5),
    (("jupyter_gpumem", "memory_fraction"), 2),
    (("device_traces", 0, 1, "action"), KeyError),
    (("segments", 0, "address"), KeyError),
    (("segments", 0, "blocks"), KeyError),
    (("segments", 0, "blocks", 0, "state"), KeyError),
):
    WRONG[f"{'.'.join(map(str, _path))} = {_value}"] = changed(_path, _value)


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_and_foreign_files_are_refused(tmp_path, monkeypatch, data):
    """Whatever calls something, refers elsewhere, blows up or is another kind of file: one line, nothing run."""
    monkeypatch.chdir(tmp_path)
    refused(tmp_path, data)
    assert not (tmp_path / "HIT").exists()


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_wrong_types_and_sizes_are_refused(tmp_path, data):
    """A pickle of plain containers that is no snapshot, or one with impossible values, is refused by what is wrong."""
    refused(tmp_path, pickle.dumps(data, 4))


def test_there_are_enough_bad_files():
    """The tables above hold well over 200 inputs."""
    assert len(HOSTILE) + len(WRONG) > 250


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_file_cut_short_anywhere_is_refused(tmp_path, protocol):
    """Truncated at any byte, packed or not, a recording is refused."""
    data = pickle.dumps(snapshot(), protocol=protocol)
    for length in range(len(data)):
        refused(tmp_path, data[:length])
    packed = gzip.compress(data)
    for length in range(0, len(packed), 3):
        refused(tmp_path, packed[:length])


def test_files_with_changed_bytes_are_read_or_refused(tmp_path):
    """A few bytes changed at random: the file still is a recording, or it is refused; never anything else."""
    chance, outcomes = random.Random(0), set()
    path = tmp_path / "x.pickle"
    for round_number in range(3000):
        data = bytearray(pickle.dumps(snapshot(), protocol=2 + round_number % 4))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            recording = read_recording(path)
            for device in recording.devices:
                recording.trace(device)
        except RecordingError as error:
            outcomes.add("refused")
            assert "\n" not in str(error)
        else:
            outcomes.add("read")
    assert outcomes == {"read", "refused"}


def test_random_opcodes_are_refused_or_read(tmp_path):
    """Pickles made of random opcodes never run, crash or hang anything."""
    chance = random.Random(2)
    codes = [code.code.encode("latin1") for code in pickletools.opcodes]
    for _ in range(2000):
        parts = [chance.choice(codes) + chance.randbytes(chance.choice((0, 0, 1, 2, 4))) for _ in range(30)]
        refused(tmp_path, HEAD + b"".join(parts) + b".")


def zeros_in(tmp_path, head, size):
    """Return a gzip file that unpacks to a head and then zeros."""
    path = tmp_path / "zeros.pickle.gz"
    pack = zlib.compressobj(9, wbits=31)
    with path.open("wb") as file:
        file.write(pack.compress(head))
        for _ in range(size // (4 * MiB)):
            file.write(pack.compress(bytes(4 * MiB)))
        file.write(pack.flush())
    return path


@pytest.mark.parametrize(
    ("head", "said"), [(b"", "not a pickle"), (HEAD, "holds something"), (HEAD + b"}", "holds so")]
)
def test_a_bomb_is_refused_where_it_begins(tmp_path, monkeypatch, head, said):
    """Gigabytes of zeros in a small file are not unpacked: the first piece shows that they are no recording."""
    path = zeros_in(tmp_path, head, 256 * MiB)
    unpacked = []
    pieces = unpickling._unpacked
    monkeypatch.setattr(
        unpickling, "_unpacked", lambda *args: (unpacked.append(len(piece)) or piece for piece in pieces(*args))
    )
    with pytest.raises(RecordingError, match=said):
        read_recording(path)
    assert sum(unpacked) <= MiB


def test_a_bomb_of_allowed_opcodes_is_bounded(tmp_path):
    """Where every opcode is allowed, no more is unpacked than a recording of that size needs."""
    path = tmp_path / "nones.pickle.gz"
    path.write_bytes(gzip.compress(HEAD + b"]" + b"(e" * (40 * MiB) + b".", 9))
    with pytest.raises(
        RecordingError, match=r"unpacks to more than \d+.\d\d MiB: no recording does; if it is one, unpack"
    ):
        read_recording(path)


def test_a_sparse_file_is_refused_at_its_beginning(tmp_path):
    """A file of a terabyte that takes no space on disk is not read."""
    for head in (b"", HEAD + b"}"):
        path = tmp_path / "sparse.pickle"
        path.write_bytes(head)
        os.truncate(path, 1 << 40)
        with pytest.raises(RecordingError, match="not a recording"):
            read_recording(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_pipes_and_devices_are_refused(tmp_path):
    """Nobody may ever write to a pipe, and some devices never end: neither is opened for reading."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordingError, match=r"^pipe is a pipe, not a file; save what comes out of it, and name that$"):
        read_recording(tmp_path / "pipe")
    with pytest.raises(RecordingError, match="zero is a device"):
        read_recording("/dev/zero")


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


@pytest.mark.parametrize("more", [b"\n", bytes(300), pickle.dumps(1)])
def test_nothing_follows_a_recording(tmp_path, more):
    """A file that goes on after its pickle is something else."""
    assert "something follows" in refused(tmp_path, pickle.dumps(snapshot()) + more)
    assert "something follows" in refused(tmp_path, gzip.compress(pickle.dumps(snapshot()) + more))


@pytest.mark.parametrize("name", ["", "missing.pickle", "a\0b", "."])
def test_paths_that_are_no_file_are_refused(tmp_path, name):
    """A directory, a missing file and an impossible name are told apart from a bad file."""
    with pytest.raises(RecordingError, match=r"is a directory|cannot be read"):
        read_recording(os.path.join(tmp_path, name))


def test_the_unpickler_alone_admits_no_globals():
    """The second lock holds without the first: no global and no persistent id passes the unpickler itself."""
    for name in ("os.system", "persistent id binary", "stack global"):
        with pytest.raises(RecordingError):
            unpickling._load(io.BytesIO(HOSTILE[name]))
    with pytest.raises((RecordingError, ValueError)):
        unpickling._load(io.BytesIO(HOSTILE["ext1"]))


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
