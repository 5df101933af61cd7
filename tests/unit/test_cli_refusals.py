"""What the command line refuses, and how: one line on stderr, an exit code, and no traceback."""

from __future__ import annotations

import functools
import gzip
import io
import itertools
import os
import pickle
import sys
import zipfile
from pathlib import Path

import pytest
from command_line import CAPPED, RESNET, installed
from small_recording import Calls

from jupyter_gpumem import cli
from jupyter_gpumem.units import GiB, MiB

HINT = "; jupyter gpumem{} --help lists what there is\n"


# Files, values and options


def checkpoint():
    """Return the bytes of a file as `torch.save` writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
    return buffer.getvalue()


BAD_FILES = {
    "missing": (None, "No such file or directory"),
    "a directory": (..., "is a directory; name a recording in it"),
    "empty": (b"", "is empty; save the recording again"),
    "a text": (b"What was recorded\n", "it is not a pickle of protocol 2 to 5"),
    "HTML": (b"<!DOCTYPE html><html></html>", "it is an HTML or XML page"),
    "truncated gzip": (gzip.compress(pickle.dumps({"segments": []}))[:-9], "is cut short; copy or save it again"),
    "os.system": (pickle.dumps(Calls(os.system, ("touch HIT",))), "names a class or function to call"),
    "os.system, packed": (gzip.compress(pickle.dumps({"segments": [Calls(os.system, ("touch HIT",))]})), "to call"),
    "a checkpoint": (checkpoint(), "it is a zip archive, such as a PyTorch checkpoint"),
    "another pickle": (pickle.dumps({"epoch": 3}), "it has neither 'segments' nor 'device_traces', but 'epoch'"),
    "escapes": (pickle.dumps({"\x1b[31m\n": 3}), "but '\\x1b[31m\\n'"),
    "no events": (pickle.dumps({"device_traces": [[]]}, 4), "has no events of device 0"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_are_no_recording_are_refused(command, tmp_path, monkeypatch, name):
    """Whatever else a file is: exit code 2, one line on stderr, nothing on stdout, and nothing of it was run."""
    monkeypatch.chdir(tmp_path)
    content, said = BAD_FILES[name]
    path = Path("x.pickle")
    if content is ...:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    for part in ("whatif",) if name == "no events" else ("whatif", "report"):
        done = command(part, "x.pickle")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert done.err.startswith("jupyter gpumem: ")
        assert said in done.err
        assert done.err.rstrip("\n").isprintable()
    assert not Path("HIT").exists()


def test_the_installed_command_refuses_a_hostile_file(tmp_path):
    """The installed command does so too, without a traceback, whatever the file's own name does to a terminal."""
    path = tmp_path / "\x1b[2Jx.pickle"
    path.write_bytes(BAD_FILES["os.system"][0])
    done = installed("whatif", str(path), cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "jupyter gpumem: \\x1b[2Jx.pickle is not a recording: it names a class or function to call, "
        "which no recording does; nothing of it was run\n"
    )
    assert not (tmp_path / "HIT").exists()


BAD_VALUES = {
    ("--set", "max_split_size:128"): "unknown allocator setting 'max_split_size'; did you mean 'max_split_size_mb'?",
    ("--set", "expandable_segments=True"): "write : instead of =",
    ("--set", "expandable_segments:yes"): "expandable_segments:yes is not understood; write exactly True or False",
    ("--set", "expandable_segments:True", "--set", "nonsense"): "write KEY:VALUE, separated by commas",
    ("--set", "backend:$(touch HIT)"): "'backend:$(touch HIT)' is not understood",
    ("--set", "a\x1b[31m:1\n"): "allocator setting 'a\\x1b[31m:1' is not understood; write KEY:VALUE",
    ("--memory", "lots"): "not a size: 'lots'; write a number and a unit, such as 512MiB or 1.5GiB",
    ("--memory", "0"): "a card of '0' is not possible; write a size such as 24GiB",
    ("--limit", "on"): "not a size: 'on'",
    ("--limit", "0GiB"): "a limit of '0GiB' is not possible",
    ("-j", "0"): "0 processes are not possible; jobs is a number of at least 1",
    ("-j=-2",): "-2 processes are not possible",
    ("-d", "7"): "resnet50-default.pickle.gz has no device 7; it has 0",
}


def test_a_report_of_nothing_is_refused(command, tmp_path):
    """A snapshot that holds nothing at all would be an empty report."""
    path = tmp_path / "empty.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[], []]}))
    for arguments in ((), ("--json",)):
        done = command("report", str(path), *arguments)
        said = "empty.pickle holds neither segments nor events; record while memory is in use"
        assert (done.code, done.out, done.err) == (2, "", f"jupyter gpumem: {said}\n")


@pytest.mark.parametrize("arguments", BAD_VALUES)
def test_values_that_make_no_sense_are_refused(command, arguments):
    """Bad settings, sizes and devices: exit code 2 and one line that says what is wrong."""
    done = command("whatif", RESNET, *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("jupyter gpumem: ")
    assert BAD_VALUES[arguments] in done.err
    assert done.err.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("arguments", "part", "said"),
    [
        ((), "", "the following arguments are required: COMMAND"),
        (("whatif",), " whatif", "the following arguments are required: FILE"),
        (("report", RESNET, "--set", "x:1"), "", "unrecognized arguments: --set x:1"),
        (("status", "--bogus\x1b[1m\n"), "", "unrecognized arguments: --bogus\\x1b[1m\\n"),
        (("whatif", RESNET, "-j", "many"), " whatif", "argument -j/--jobs: invalid int value: 'many'"),
        (("whatif", RESNET, "--memory", "-5GiB"), " whatif", "argument --memory: expected one argument"),
    ],
)
def test_options_that_are_not_understood_are_refused(command, arguments, part, said):
    """Unknown and incomplete options are one line too, and name the help."""
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"jupyter gpumem{part}: {said}{HINT.format(part)}"


def test_an_unknown_command_names_the_known_ones(command):
    """A command that does not exist is refused with those that do."""
    done = command("what-if", RESNET)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    for name in ("what-if", "status", "whatif", "report", "demo"):
        assert name in done.err


# Output that goes nowhere


def test_ctrl_c_leaves_no_traceback(command, monkeypatch):
    """An interrupted replay ends with the code that shells give it, and without a word."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "whatif", interrupted)
    done = command("whatif", RESNET)
    assert (done.code, done.out, done.err) == (130, "", "")


@pytest.mark.parametrize("arguments", [("status",), ("whatif", RESNET, "--set", ""), ("report", CAPPED, "--json")])
def test_a_closed_pipe_is_no_error_to_talk_about(arguments):
    """`| head` may stop reading at any moment: nothing is printed about it, not even when Python ends."""
    reading, writing = os.pipe()
    os.close(reading)
    done = installed(*arguments, stdout=writing)
    os.close(writing)
    assert (done.code, done.err) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
@pytest.mark.parametrize("arguments", [("status",), ("whatif", RESNET, "--set", ""), ("report", CAPPED, "--json")])
def test_a_full_disk_is_one_line(arguments):
    """What cannot be written is said in one line, with the code of a command that showed nothing."""
    with open("/dev/full", "wb") as full:
        done = installed(*arguments, stdout=full)
    assert (done.code, done.err) == (1, "jupyter gpumem: the output cannot be written: No space left on device\n")


def test_a_closed_output_is_one_line(command, monkeypatch):
    """Started without an output (`>&-`), a command says so."""
    monkeypatch.setattr(sys, "stdout", None)
    done = command("whatif", RESNET, "--set", "")
    assert (done.code, done.err) == (1, "jupyter gpumem: the output cannot be written: it is closed\n")


# Recordings with one odd value


ODD = [None, "<b>\x1b[31m\n\ud800", -1, 1 << 63, float("inf"), [1], {"a": 1}, True]


def odd_recordings():
    """Yield a small snapshot with one value of it, wherever, replaced by something odd."""
    places = []

    def walk(item, path):
        for key in list(item) if isinstance(item, dict) else range(len(item)):
            places.append((*path, key))
            if isinstance(item[key], (dict, list)):
                walk(item[key], (*path, key))

    walk(small(), ())
    for place, value in itertools.product(places, ODD):
        data = small()
        functools.reduce(lambda inside, key: inside[key], place[:-1], data)[place[-1]] = value
        yield data


def small():
    """Return a snapshot with one of everything."""
    frame = {"filename": "a.py", "line": 3, "name": "f"}
    base, size = 0x7F0000000000, 2 * MiB
    blocks = [
        {"address": base, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": [frame]},
        {"address": base + 1024, "size": size - 1024, "requested_size": 0, "state": "inactive"},
    ]
    segment = {"device": 0, "address": base, "total_size": size, "stream": 0, "segment_type": "small"}
    return {
        "segments": [segment | {"segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks}],
        "device_traces": [
            [
                {"action": "segment_alloc", "addr": base, "size": size, "stream": 0},
                {"action": "alloc", "addr": base, "size": 1000, "stream": 0, "frames": [frame]},
            ]
        ],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "roundup_power2_divisions": {"1": 0, "2": 0},
        },
        "jupyter_gpumem": {
            "torch": "2.11.0",
            "device_name": "NVIDIA H200",
            "total_memory": GiB,
            "memory_fraction": 1.0,
            "alloc_conf": "",
        },
    }


def test_a_recording_with_an_odd_value_is_reported_or_refused(command, tmp_path):
    """Whatever a single value of a recording is: a report or one line, printable, and no traceback."""
    path, codes = tmp_path / "x.pickle", set()
    for data in odd_recordings():
        path.write_bytes(pickle.dumps(data, 4))
        done = command("report", str(path), "-j", "1")
        codes.add(done.code)
        assert done.err.count("\n") == (done.code == 2), data
        assert (done.out + done.err).replace("\n", "").isprintable(), data
    assert codes == {0, 2}
