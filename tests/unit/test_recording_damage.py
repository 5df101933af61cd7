"""Damaged and endless files, and paths that are no file: read or refused, and never taken in whole."""

from __future__ import annotations

import gzip
import os
import pickle
import pickletools
import random
import zlib

import pytest
from small_recording import HEAD, refused, snapshot

from jupyter_gpumem import unpickling
from jupyter_gpumem.errors import RecordingError
from jupyter_gpumem.recording import read_recording
from jupyter_gpumem.units import MiB


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


def test_a_changed_byte_in_a_packed_file_is_called_damage(tmp_path):
    """What unpacks to nonsense may be a recording that was damaged: it is said to copy it again."""
    data = pickle.dumps(snapshot(), protocol=4)
    path = tmp_path / "x.pickle.gz"
    path.write_bytes(gzip.compress(data[:11] + b"\x00" + data[12:]))
    with pytest.raises(RecordingError, match=r"^x.pickle.gz is not a recording: .* damaged; copy or save it again$"):
        read_recording(path)


@pytest.mark.parametrize("action", ["alloc", "segment_alloc", "segment_free", "segment_map"])
@pytest.mark.parametrize("name", ["size", "addr"])
def test_an_event_without_its_numbers_is_named_with_the_file(tmp_path, action, name):
    """The error says which file, what is missing, and of what kind of event."""
    event = {"action": action, "addr": 512, "size": 512, "stream": 0}
    del event[name]
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]]}, protocol=4))
    with pytest.raises(RecordingError) as error:
        read_recording(path).trace(0)
    said = f"x.pickle is not a recording: its trace of device 0 has an event without '{name}': {action}"
    assert str(error.value) == said


def test_an_event_that_cannot_be_replayed_is_named_with_the_file(tmp_path):
    """Where it shows only when the trace is prepared, too."""
    event = {"action": "alloc", "addr": 5, "size": 5, "stream": 0, "pool_id": "ab"}
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]]}, protocol=4))
    with pytest.raises(RecordingError, match=r"^x.pickle: an event of the trace is malformed: "):
        read_recording(path).trace(0)


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
    ("head", "said"), [(b"", "not a pickle"), (HEAD, "0x00"), (HEAD + b"}", "something else, or damaged")]
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
