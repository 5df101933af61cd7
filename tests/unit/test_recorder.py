"""The recorder: how a recording starts and stops, why it cannot start, and what is saved. On a stand-in torch."""

from __future__ import annotations

import gzip
import pickle
import sys
import threading

import pytest

from jupyter_gpumem import recorder
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.errors import RecordingError, UnavailableError
from jupyter_gpumem.recording import read_recording
from jupyter_gpumem.records import RecorderStatus
from jupyter_gpumem.units import GiB, MiB
from tests.recording_torch import END, OFF, OURS, PLACE, THEIRS, RecordingTorch, actions, own_recorder

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
