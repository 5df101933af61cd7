"""`record` as a block: recorded and saved however it ends, refused before it runs. On a stand-in torch."""

from __future__ import annotations

import os
import sys

import pytest

from jupyter_gpumem import recorder
from jupyter_gpumem.errors import GpumemError, InvalidValueError, RecordingError
from jupyter_gpumem.recorder import record
from jupyter_gpumem.recording import read_recording
from tests.recording_torch import END, OURS, THEIRS


def then_raise(error, *steps):
    """Do the steps of a block, which then fails."""
    for step in steps:
        step()
    raise error


def work_in(torch, folder):
    """Work, after which the folder is gone."""
    torch.work()
    folder.rmdir()


# As a context manager


def test_a_block_is_recorded(torch, tmp_path):
    """The block's events are kept and saved, and afterwards nobody records."""
    path = tmp_path / "run.pickle.gz"
    block = record(path, max_entries=50, stacks=False)
    assert repr(block) == "<gpumem recording, not started>"
    with block:
        assert (block.recording, repr(block)) == (None, "<gpumem recording, running>")
        torch.work()
    assert repr(block) == repr(block.recording) == "<Recording this session: 4 events, 1 segments>"
    assert len(block.recording.events(0)) == len(read_recording(path).events(0)) == 4
    assert torch.calls == [(("all",), {"context": None, "stacks": "python", "max_entries": 50}), END]
    assert recorder.RECORDER.last is block.recording


def test_a_block_that_fails_is_recorded(torch, tmp_path):
    """The error comes through, and what led to it is kept and saved."""
    path = tmp_path / "run.pickle"
    with pytest.raises(KeyError, match="theirs"), record(path) as block:
        then_raise(KeyError("theirs"), torch.work)
    assert len(block.recording.events(0)) == len(read_recording(path).events(0)) == 4
    assert not torch.enabled


def test_an_interrupted_block_is_recorded(torch):
    """The same holds for Ctrl-C."""
    block = record()
    with pytest.raises(KeyboardInterrupt), block:
        then_raise(KeyboardInterrupt(), torch.work)
    assert len(block.recording.events(0)) == 4


def test_a_block_whose_recording_is_taken_away_says_so(torch, tmp_path):
    """Taken over in the block, it is refused at its end, nothing is saved, and the user's goes on."""
    path = tmp_path / "run.pickle"
    with pytest.raises(RecordingError, match="another one is, and is left alone"), record(path) as block:
        torch.memory._record_memory_history(**THEIRS)
    assert block.recording is None
    assert not path.exists()
    assert torch.enabled
    torch.memory._record_memory_history(None)


def test_an_error_of_the_block_matters_more_than_a_lost_recording(torch):
    """Taken over in a block that fails, the block's error comes through as it is."""
    with pytest.raises(ZeroDivisionError) as error, record():
        then_raise(ZeroDivisionError(), lambda: torch.memory._record_memory_history(None))
    assert error.value.__context__ is None


def test_an_error_of_the_device_comes_through_and_ends_the_recording(torch):
    """When the device has failed, nothing can be read any more; the user's error comes through and ours ends."""

    def fail():
        torch.cuda.memory_stats = torch.memory._snapshot = lambda *_: then_raise(RuntimeError("reading fails too"))

    with pytest.raises(RuntimeError, match="device-side assert"), record() as block:
        then_raise(RuntimeError("CUDA error: device-side assert triggered"), fail)
    assert block.recording is None
    assert torch.calls == [OURS, END]
    torch.memory._snapshot = torch._snapshot


def test_a_block_that_cannot_be_read_ends_all_the_same(torch):
    """If reading fails after a block that went well, its error comes through, and nobody records."""

    def failed():
        raise RuntimeError("out of host memory")

    torch.memory._snapshot = failed
    with pytest.raises(RuntimeError, match="out of host memory"), record():
        pass
    assert not torch.enabled
    torch.memory._snapshot = torch._snapshot


def test_a_block_that_cannot_be_saved_is_still_kept(torch, tmp_path):
    """A file that can no longer be written is told; the recording is in the object and is the last one."""
    place = tmp_path / "folder"
    place.mkdir()
    block = record(place / "run.pickle")
    with pytest.raises(RecordingError, match="cannot be written"), block:
        work_in(torch, place)
    assert len(block.recording.events(0)) == 4
    assert recorder.RECORDER.recording() is block.recording
    assert not torch.enabled


@pytest.mark.parametrize("place", ["missing/run.pickle", "", "."])
def test_a_block_that_could_not_be_saved_does_not_run(torch, tmp_path, monkeypatch, place):
    """A place where nothing can be saved is refused at once, not after hours of training."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordingError, match=r"cannot be written|is a directory"), record(place):
        pytest.fail("the block must not run")
    assert not torch.enabled


def test_a_block_is_saved_where_it_began(torch, tmp_path, monkeypatch):
    """The name is taken as it was meant where the block begins, also if the block goes to another folder."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with record("run.pickle"):
        torch.work()
        os.chdir("elsewhere")
    assert len(read_recording(tmp_path / "run.pickle").events(0)) == 4


@pytest.mark.parametrize("count", [0, -1, 1 << 70, "10", 1e3, True, None])
def test_a_number_of_events_that_makes_no_sense_is_refused(torch, count):
    """It is refused in one line before anything is recorded, and PyTorch is not asked."""
    with (
        pytest.raises(InvalidValueError, match="events cannot be kept; max_entries is a number of at least 1"),
        record(max_entries=count),
    ):
        pytest.fail("the block must not run")
    assert torch.calls == []


def test_blocks_do_not_nest(torch):
    """A block inside of another is refused, and the outer one keeps what it has."""
    with record() as outer:
        torch.work()
        with pytest.raises(RecordingError, match="already"), record():
            pytest.fail("the block must not run")
    assert len(outer.recording.events(0)) == 4


def test_a_block_without_torch_is_refused(monkeypatch):
    """Without torch the block does not run."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(GpumemError, match="PyTorch is not installed"), record():
        pytest.fail("the block must not run")
