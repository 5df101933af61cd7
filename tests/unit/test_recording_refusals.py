"""Files that call something, are something else or hold what cannot be: refused in one line, with nothing run."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import struct
import zipfile
from collections import OrderedDict, deque
from decimal import Decimal
from pathlib import Path

import pytest
from small_recording import HEAD, Calls, refused, snapshot

from jupyter_gpumem import unpickling
from jupyter_gpumem.errors import RecordingError
from jupyter_gpumem.units import MiB


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


# What is refused


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


def test_the_unpickler_alone_admits_no_globals():
    """The second lock holds without the first: no global and no persistent id passes the unpickler itself."""
    for name in ("os.system", "persistent id binary", "stack global"):
        with pytest.raises(RecordingError):
            unpickling._load([HOSTILE[name]])
    with pytest.raises((RecordingError, ValueError)):
        unpickling._load([HOSTILE["ext1"]])
