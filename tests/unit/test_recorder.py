"""Recording beside the user: never over theirs, never for them, and nothing left behind. On a stand-in torch."""

from __future__ import annotations

import functools
import gzip
import os
import pickle
import sys
import threading

import pytest

from jupyter_gpumem import recorder
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.errors import GpumemError, InvalidValueError, RecordingError, UnavailableError
from jupyter_gpumem.recorder import record
from jupyter_gpumem.recording import read_recording
from jupyter_gpumem.records import RecorderStatus
from jupyter_gpumem.units import GiB, MiB
from tests.recording_torch import PLACE, RecordingTorch, own_recorder

OURS = (("all",), {"context": "alloc", "stacks": "python", "max_entries": 1_000_000})
THEIRS = {"enabled": "all", "context": "state", "stacks": "all", "max_entries": 77}
THEIR_CALL = (("all",), {"context": "state", "stacks": "all", "max_entries": 77})
END = ((None,), {})
OFF = RecorderStatus(running=False, ours=False, events=None, max_entries=None, stacks=None)


@pytest.fixture
def become(monkeypatch):
    """Return a function that makes a stand-in the process's torch, and the recorder that of it; checked afterwards."""
    made = []

    def use(torch):
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(recorder, "RECORDER", own_recorder())
        made.append((torch, recorder.RECORDER))
        return torch

    yield use
    for torch, ours in made:
        ours.close()
        assert torch.memory._record_memory_history == torch.original, "PyTorch's function stays replaced"


@pytest.fixture
def torch(become):
    """A stand-in with one device in use."""
    return become(RecordingTorch())


@pytest.fixture
def ours(torch):
    """The recorder of the stand-in."""
    return recorder.RECORDER


def actions(recording):
    """Return what a recording's events are."""
    return [event["action"] for event in recording.events(0)]


def then_raise(error, *steps):
    """Do the steps of a block, which then fails."""
    for step in steps:
        step()
    raise error


def work_in(torch, folder):
    """Work, after which the folder is gone."""
    torch.work()
    folder.rmdir()


# Starting and stopping


def test_a_recording_holds_what_happens_between_start_and_stop(torch, ours):
    """What is stopped holds the events since the start, and PyTorch no longer records."""
    torch.work()
    ours.start()
    torch.work()
    recording = ours.stop()
    torch.work()
    assert actions(recording) == ["alloc", "free_requested", "free_completed"]
    assert recording.events(0)[-3]["frames"] == [PLACE]
    assert not torch.enabled
    assert repr(recording) == "<Recording this session: 3 events, 1 segments>"


def test_changes_of_the_settings_are_noted(torch, ours):
    """When the user changes the settings, the recording says when and to what; afterwards nothing stays replaced."""
    setter = torch._C._accelerator_setAllocatorSettings
    ours.start()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    extra = ours.stop().extra
    (change,) = extra["settings_changes"]
    assert extra["settings_at_start"] == "max_split_size_mb:64"
    assert change["settings"] == "expandable_segments:True"
    assert change["time_us"] > 1_700_000_000_000_000
    assert torch.settings_set == ["expandable_segments:True"]
    assert torch._C._accelerator_setAllocatorSettings == setter
    ours.start()
    assert "settings_changes" not in ours.stop().extra


def test_it_starts_bounded_and_with_python_stacks_of_allocations(torch, ours):
    """C++ stacks and those of frees cost too much, and history without a bound takes the host's memory."""
    ours.start()
    ours.stop()
    assert torch.calls == [OURS, END]


def test_it_starts_without_stacks(torch, ours):
    """`stacks=False` takes no stack anywhere, and the number of events can be chosen."""
    ours.start(2, stacks=False)
    torch.work(3)
    assert torch.calls == [(("all",), {"context": None, "stacks": "python", "max_entries": 2})]
    assert ours.status() == RecorderStatus(running=True, ours=True, events=2, max_entries=2, stacks=False)
    assert not any("frames" in event for event in ours.stop().events(0))


def test_the_status_follows(torch, ours):
    """Before, while and after recording the status says so, with the number of events."""
    assert ours.status() == OFF
    ours.start()
    torch.work()
    assert ours.status() == RecorderStatus(running=True, ours=True, events=4, max_entries=1_000_000, stacks=True)
    ours.stop()
    assert ours.status() == RecorderStatus(running=False, ours=False, events=4, max_entries=None, stacks=None)


def test_a_second_start_is_refused(torch, ours):
    """While ours runs another start is refused and changes nothing."""
    ours.start()
    torch.work()
    with pytest.raises(RecordingError, match=r"^a recording is running already; stop it first$"):
        ours.start(5)
    assert torch.calls == [OURS]
    assert len(ours.stop().events(0)) == 4


def test_stopping_nothing_is_refused(torch, ours):
    """Without a start there is nothing to stop, nor to save."""
    with pytest.raises(RecordingError, match=r"^no recording of ours is running; start one first$"):
        ours.stop()
    with pytest.raises(RecordingError, match=r"^nothing was recorded; start a recording first$"):
        ours.recording()
    assert torch.calls == []


def test_the_last_recording_stays_until_the_next_start(torch, ours):
    """What was stopped can be had until a recording starts; a start that is refused takes nothing away."""
    ours.start()
    torch.work()
    stopped = ours.stop()
    assert ours.recording() is ours.last is stopped
    torch.memory._record_memory_history(**THEIRS)
    with pytest.raises(RecordingError):
        ours.start()
    assert ours.last is stopped
    torch.memory._record_memory_history(None)
    assert ours.recording() is stopped
    ours.start()
    assert ours.last is None


def test_what_runs_can_be_looked_at(torch, ours):
    """`recording()` returns the events so far and lets the recording go on."""
    ours.start()
    torch.work()
    assert len(ours.recording().events(0)) == 4
    torch.work()
    assert len(ours.stop().events(0)) == 7


def test_closing_ends_ours_and_lets_go(torch, ours):
    """`close()` ends our recording and drops what was kept; once more it does nothing."""
    ours.start()
    ours.close()
    ours.close()
    assert torch.calls == [OURS, END]
    assert ours.last is None
    assert ours.status() == OFF


def test_it_starts_before_cuda_is_initialised(become):
    """Nothing is asked before; then PyTorch initialises itself, and there is no device to ask about."""
    torch = become(RecordingTorch(initialised=False, contexts=()))
    assert recorder.RECORDER.status() == OFF
    assert not torch.initialised
    recorder.RECORDER.start()
    assert recorder.RECORDER.status().running
    assert torch.asked == []


def test_one_of_many_threads_starts(torch, ours):
    """Of eight threads that start together one does, and the others are told."""
    refused, barrier = [], threading.Barrier(8)

    def start():
        barrier.wait()
        try:
            ours.start()
        except RecordingError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == ["a recording is running already; stop it first"] * 7
    assert torch.calls == [OURS]


# The user's own recording


def test_the_users_recording_is_never_touched(torch, ours, tmp_path):
    """While the user records, nothing of ours calls the recorder: it is read, and everything else is refused."""
    torch.memory._record_memory_history(**THEIRS)
    torch.work()
    with pytest.raises(RecordingError, match=r"not ours is running and is left alone; it can be saved as it is$"):
        ours.start()
    with pytest.raises(RecordingError, match=r"^no recording of ours is running \(another one is, and is left alone"):
        ours.stop()
    with pytest.raises(RecordingError, match="not ours"), record():
        pytest.fail("the block must not run")
    assert ours.status() == RecorderStatus(running=True, ours=False, events=4, max_entries=None, stacks=None)
    assert len(ours.recording().events(0)) == 4
    assert len(read_recording(ours.save(tmp_path / "theirs.pickle")).events(0)) == 4
    ours.close()
    assert torch.calls == [THEIR_CALL]
    assert torch.enabled
    torch.work()
    assert len(torch.memory._snapshot()["device_traces"][0]) == 7
    torch.memory._record_memory_history(None)


def test_a_recording_that_the_user_takes_over_is_theirs(torch, ours):
    """The user's call passes through with its arguments and its value; from then on ours is over, theirs goes on."""
    ours.start()
    assert torch.memory._record_memory_history(**THEIRS) == "what PyTorch returns"
    assert torch.memory._record_memory_history == torch.original
    assert torch.calls == [OURS, THEIR_CALL]
    assert (ours.status().running, ours.status().ours) == (True, False)
    with pytest.raises(RecordingError, match="another one is"):
        ours.stop()
    ours.close()
    assert torch.enabled
    assert torch.calls == [OURS, THEIR_CALL]
    torch.memory._record_memory_history("all", "state", "all", max_entries=77)
    assert torch.calls[2:] == [THEIR_CALL]
    torch.memory._record_memory_history(None)


def test_a_recording_that_the_user_ends_is_over(torch, ours):
    """The user may end ours; then there is nothing to stop, and a new one can start."""
    ours.start()
    torch.memory._record_memory_history(None)
    assert ours.status() == OFF
    with pytest.raises(RecordingError, match="start one first"):
        ours.stop()
    ours.start()
    torch.work()
    assert len(ours.stop().events(0)) == 4
    assert torch.calls == [OURS, END, OURS, END]


def test_a_call_of_the_users_that_is_refused_changes_nothing(torch, ours):
    """Wrong arguments raise PyTorch's own error, and our recording is still ours to stop."""
    ours.start()
    with pytest.raises(RuntimeError, match="expected None"):
        torch.memory._record_memory_history("every")
    with pytest.raises(TypeError):
        torch.memory._record_memory_history(entries=5)
    assert ours.status().ours
    ours.stop()
    assert torch.calls == [OURS, END]


def test_the_users_view_of_the_function_stays(torch, ours):
    """While we watch, PyTorch's function keeps its name, its documentation and its signature."""
    ours.start()
    watched = torch.memory._record_memory_history
    assert (watched.__name__, watched.__wrapped__) == ("_record_memory_history", torch.original)
    assert watched.__doc__ == torch.original.__doc__


def test_a_recording_goes_on_beside_devices_that_stand_in(torch, ours):
    """While a virtual GPU is asked instead, ours is set aside; what is recorded there, and by whom, is not in it."""
    ours.start()
    torch.work()
    go_on = ours.set_aside()
    assert torch.memory._record_memory_history == torch.original, "what stands in is not watched"
    torch.enabled, real = False, list(torch.events)
    assert ours.status() == OFF
    ours.start()
    torch.work()
    torch.memory._record_memory_history(None)
    torch.enabled = True
    torch.events.clear()
    torch.events.extend(real)
    go_on()
    torch.work()
    assert ours.status().ours
    once = ["alloc", "free_requested", "free_completed"]
    assert actions(ours.stop()) == ["segment_alloc", *once, *once]
    assert not torch.enabled


def test_no_recording_of_ours_is_set_aside(torch, ours):
    """Where the user records, or nobody does, there is nothing to go on with."""
    torch.memory._record_memory_history(**THEIRS)
    ours.set_aside()()
    assert not ours.status().ours
    assert torch.calls == [THEIR_CALL]


def test_a_recording_ended_out_of_sight_is_noticed(torch, ours):
    """Ended below the function that we watch, it is over all the same, and the next start leaves nothing replaced."""
    ours.start()
    torch.enabled = False
    assert ours.status() == OFF
    assert torch.memory._record_memory_history == torch.original
    ours.start()
    torch.enabled = False
    with pytest.raises(RecordingError, match="start one first"):
        ours.stop()
    ours.start()
    torch.enabled = False
    ours.start()
    ours.stop()
    assert torch.calls == [OURS, OURS, OURS, OURS, END]


def test_a_forked_child_leaves_the_recording_to_its_parent(torch, ours):
    """In a child CUDA counts as not initialised; ending a recording there would fail."""
    ours.start()
    torch.initialised = False
    ours.close()
    assert torch.calls == [OURS]


def test_a_wrapper_on_top_of_ours_keeps_working(torch, ours):
    """What somebody else puts on top of our watch stays there and works, after ours has ended and in the next one."""
    ours.start()
    below, seen = torch.memory._record_memory_history, []

    @functools.wraps(below)
    def theirs(*args, **kwargs):
        seen.append(args)
        return below(*args, **kwargs)

    torch.memory._record_memory_history = theirs
    ours.stop()
    assert torch.memory._record_memory_history is theirs
    theirs("all", max_entries=9)
    assert (seen, torch.calls[-1][1]["max_entries"]) == ([("all",)], 9)
    with pytest.raises(RecordingError, match="not ours"):
        ours.start()
    theirs(None)
    ours.start()
    torch.work()
    assert ours.status().ours
    assert len(ours.stop().events(0)) == 4
    assert torch.memory._record_memory_history is theirs
    torch.memory._record_memory_history = torch.original


def test_an_old_watch_called_later_harms_nothing(torch, ours):
    """Who kept the watched function and calls it after we stopped reaches PyTorch, and a later recording is theirs."""
    ours.start()
    kept = torch.memory._record_memory_history
    ours.stop()
    kept(**THEIRS)
    assert torch.calls[-1] == THEIR_CALL
    kept(None)
    ours.start()
    kept(**THEIRS)
    assert not ours.status().ours
    ours.close()
    assert torch.enabled
    kept(None)


def test_a_torch_that_cannot_be_asked_is_watched(torch, ours):
    """Without the binding that tells whether anyone records, at least ours is known."""
    del torch._C._cuda_isHistoryEnabled
    assert not ours.status().running
    ours.start()
    torch.work()
    assert ours.status() == RecorderStatus(running=True, ours=True, events=4, max_entries=1_000_000, stacks=True)
    assert len(ours.stop().events(0)) == 4


# Where nothing can be recorded


def no_torch(monkeypatch, become):
    monkeypatch.setitem(sys.modules, "torch", None)


def not_imported(monkeypatch, become):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def built_for_cpu(monkeypatch, become):
    become(RecordingTorch(0, initialised=False)).version.cuda = None


def no_card(monkeypatch, become):
    become(RecordingTorch(0, initialised=False))


def another_kind(monkeypatch, become):
    torch = become(RecordingTorch(0, initialised=False))
    torch.backends.mps.is_available = lambda: True


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (no_torch, "PyTorch is not installed in this kernel's environment; install torch and restart the kernel"),
        (not_imported, "torch was not imported; import torch first"),
        (built_for_cpu, "this PyTorch (2.99.0+cu130) is built without GPU support"),
        (no_card, "PyTorch 2.99.0+cu130 sees no GPU; check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"),
        (another_kind, "PyTorch sees no cuda device"),
    ],
)
def test_where_nothing_can_be_recorded_one_line_says_why(monkeypatch, become, world, said):
    """Without torch, or without a device for it, start says why; status and stop work, and nothing is initialised."""
    world(monkeypatch, become)
    ours = own_recorder()
    with pytest.raises(UnavailableError) as error:
        ours.start()
    assert str(error.value) == f"allocator events cannot be recorded: {said}"
    assert ours.status() == OFF
    with pytest.raises(RecordingError, match="no recording of ours is running; start one first"):
        ours.stop()
    with pytest.raises(RecordingError, match="nothing was recorded"):
        ours.save("nowhere.pickle")
    ours.close()


# What is saved


KEYS = {
    "version",
    "torch",
    "alloc_conf",
    "device",
    "device_name",
    "total_memory",
    "device_free",
    "memory_fraction",
    "memory_stats",
}


def plain(value):
    """Whether a value is made of nothing but plain containers, numbers and strings."""
    if type(value) is dict:
        return all(plain(key) and plain(item) for key, item in value.items())
    if type(value) in {list, tuple}:
        return all(map(plain, value))
    return value is None or type(value) in {str, int, float, bool}


def test_a_saved_file_is_plain(torch, ours, tmp_path):
    """It is PyTorch's snapshot plus one key with what a replay needs, all of it plain, also what is more in torch."""
    ours.start()
    torch.work()
    path = ours.save(str(tmp_path / "run.pickle"))
    data = pickle.loads(path.read_bytes())
    assert data.keys() == torch._snapshot().keys() | {"jupyter_gpumem"}
    assert plain(data)
    assert data["jupyter_gpumem"] == {
        "version": 1,
        "torch": "2.99.0+cu130",
        "alloc_conf": "max_split_size_mb:64",
        "device": 0,
        "device_name": "card 0",
        "total_memory": 8 * GiB,
        "device_free": 6 * GiB,
        "memory_fraction": 0.5,
        "memory_stats": {"num_ooms": 0, "reserved_bytes.all.peak": 2 * MiB},
    }
    assert data["jupyter_gpumem"].keys() == KEYS
    assert path.read_bytes()[:2] == b"\x80\x04"


def test_a_saved_file_is_replayed(torch, ours, tmp_path):
    """It is read again and replayed exactly, packed when its name says so."""
    ours.start()
    torch.work(5)
    ours.stop()
    path = ours.save(tmp_path / "run.pickle.gz")
    assert plain(pickle.loads(gzip.decompress(path.read_bytes())))
    recording = read_recording(path)
    assert recording.circumstances(0).limit == 4 * GiB
    assert (str(recording.settings), recording.notes(0)) == ("max_split_size_mb:64", [])
    result = whatif(recording, ["expandable_segments:True"])
    assert result.check.exact
    assert result.check.blocks == 5


def test_saving_where_nothing_can_be_written(torch, ours, tmp_path):
    """A place that cannot be written is one line, and the recording goes on."""
    ours.start()
    with pytest.raises(RecordingError, match=r"cannot be written: .*; name another place$"):
        ours.save(tmp_path / "missing" / "run.pickle")
    assert ours.status().ours


def test_only_devices_in_use_are_asked(become):
    """Of several devices only those with a context are asked and described, the one with most memory first."""
    torch = become(RecordingTorch(4, contexts=(1, 3)))
    torch.scripted.allocate(MiB, 1)
    torch.scripted.allocate(9 * MiB, 3)
    recorder.RECORDER.start()
    found = recorder.RECORDER.stop().extra
    assert (found["device"], found["device_name"]) == (3, "card 3")
    (other,) = found["other_devices"]
    assert (other["device"], other["device_name"], other.keys()) == (
        1,
        "card 1",
        KEYS - {"version", "torch", "alloc_conf"},
    )
    assert set(torch.asked) == {1, 3}


def test_without_a_device_in_use_none_is_asked(become):
    """Before the first context only the versions and the settings are kept."""
    torch = become(RecordingTorch(2, contexts=()))
    recorder.RECORDER.start()
    assert recorder.RECORDER.stop().extra.keys() == {"version", "torch", "alloc_conf"}
    assert torch.asked == []


def test_what_a_torch_does_not_tell_is_left_out(torch, ours):
    """An older torch has its settings in the snapshot alone and no fraction; a lost device has no free memory."""
    del torch._C._accelerator_getAllocatorSettings
    del torch.cuda.get_per_process_memory_fraction

    def lost(index):
        raise RuntimeError("CUDA error")

    torch.cuda.mem_get_info = lost
    ours.start()
    found = ours.stop().extra
    assert found.keys() == KEYS
    assert (found["alloc_conf"], found["memory_fraction"], found["device_free"]) == ("", 1.0, None)


# As a context manager


def test_a_block_is_recorded(torch, tmp_path):
    """The block's events are kept and saved, and afterwards nobody records."""
    path = tmp_path / "run.pickle.gz"
    with record(path, max_entries=50, stacks=False) as block:
        assert block.recording is None
        torch.work()
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
