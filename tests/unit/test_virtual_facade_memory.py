"""What `torch.cuda` tells of the memory of virtual cards, and what it records of it."""

from __future__ import annotations

import pickle

import pytest

from jupyter_gpumem.recording import read_recording
from jupyter_gpumem.units import GiB, MiB

torch = pytest.importorskip("torch")
cuda = torch.cuda


# Counters, limits and settings


def test_counters(machine):
    """What was allocated is counted to the byte, after PyTorch's rounding, on its own card."""
    kept = machine.allocate(1000)
    machine.memory.free(0, machine.allocate(100 * MiB))
    machine.allocate(3 * MiB, device=1)
    assert cuda.memory_allocated() == 1024
    assert cuda.max_memory_allocated() == 100 * MiB + 1024
    assert cuda.memory_reserved() == 102 * MiB
    assert (cuda.memory_allocated(1), cuda.memory_reserved(1)) == (3 * MiB, 20 * MiB)
    machine.memory.free(0, kept)
    assert cuda.memory_allocated() == 0


def test_counters_of_each_card(machine):
    """Each card has its own; resets concern one card and one kind."""
    cuda.init()
    first, second = machine.allocate(5 * MiB), machine.allocate(7 * MiB, device=1)
    machine.memory.free(0, first)
    machine.memory.free(1, second)
    cuda.reset_peak_memory_stats(0)
    assert (cuda.max_memory_allocated(0), cuda.max_memory_allocated(1)) == (0, 7 * MiB)
    cuda.reset_accumulated_memory_stats(1)
    stats = cuda.memory_stats(1)
    assert stats["allocated_bytes.all.allocated"] == 0
    assert cuda.memory_stats(0)["allocated_bytes.all.allocated"] == 5 * MiB
    assert cuda.memory_stats_as_nested_dict(0)["num_ooms"] == 0
    assert "PyTorch CUDA memory summary, device ID 1" in cuda.memory_summary(1)


def test_empty_cache(machine):
    """Memory that nothing uses goes back to the card."""
    cuda.init()
    machine.memory.free(0, machine.allocate(100 * MiB))
    free, total = cuda.mem_get_info()
    assert free == total - 450 * MiB - 100 * MiB
    cuda.empty_cache()
    assert cuda.memory_reserved() == 0
    assert cuda.mem_get_info() == (total - 450 * MiB, 85100068864)


def test_asking_for_free_memory_makes_a_context(machine):
    """As on a real card: 198 MiB are gone on a T4."""
    assert cuda.mem_get_info(1) == (15095 * MiB - 198 * MiB, 15095 * MiB)
    assert machine.memory.ready == {1}


def test_out_of_memory(machine):
    """The error is PyTorch's, by type and text, and the counters tell of it."""
    cuda.init()
    machine.allocate(10 * GiB, device=1)
    with pytest.raises(torch.OutOfMemoryError) as error:
        machine.allocate(8 * GiB, device=1)
    assert isinstance(error.value, cuda.OutOfMemoryError)
    assert str(error.value).startswith(
        "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 1 has a total capacity of 14.74 GiB of which 4.55 GiB is "
        "free. Including non-PyTorch memory, this process has 10.19 GiB memory in use. Of the allocated memory "
        "10.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://"
    )
    assert cuda.memory_stats(1)["num_ooms"] == 1


def test_observers_of_out_of_memory(machine):
    """They are called with what was tried, the limit and what is free, while memory is as it was."""
    cuda.init()
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append((*numbers, cuda.memory_allocated(1))))
    machine.allocate(10 * GiB, device=1)
    with pytest.raises(torch.OutOfMemoryError):
        machine.allocate(8 * GiB, device=1)
    assert seen == [(1, 8 * GiB, 15095 * MiB, 15095 * MiB - 198 * MiB - 10 * GiB, 10 * GiB)]


def test_a_cap(machine):
    """`set_per_process_memory_fraction` caps what is reserved, with PyTorch's checks of its argument."""
    cuda.set_per_process_memory_fraction(0.25, 1)
    assert cuda.get_per_process_memory_fraction(1) == 0.25
    assert cuda.get_per_process_memory_fraction(0) == 1.0
    with pytest.raises(torch.OutOfMemoryError, match=r"3\.69 GiB allowed"):
        machine.allocate(4 * GiB, device=1)
    with pytest.raises(TypeError, match="must be `float`"):
        cuda.set_per_process_memory_fraction(1)
    cuda.set_per_process_memory_fraction(1.0, 1)
    assert machine.allocate(4 * GiB, device=1)


def test_settings(machine):
    """Run-time settings work as PyTorch's call does, and are told by snapshots."""
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True,max_split_size_mb:64")
    machine.allocate(5 * MiB)
    told = cuda.memory._snapshot()["allocator_settings"]
    assert (told["expandable_segments"], told["max_split_size"]) == (True, 64 * MiB)
    assert told["PYTORCH_CUDA_ALLOC_CONF"] == torch._C._accelerator_getAllocatorSettings()
    assert cuda.memory_snapshot()[0]["is_expandable"]
    with pytest.warns(FutureWarning, match="deprecated"):
        cuda.memory._set_allocator_settings("")
    told = cuda.memory._snapshot()["allocator_settings"]
    assert (told["expandable_segments"], told["max_split_size"]) == (True, -1)  # one is kept, the other is not


def test_settings_that_are_wrong(machine):
    """A mistake is a `ValueError` in one line, and changes nothing."""
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:64")
    with pytest.raises(ValueError, match=r"unknown allocator setting 'max_split_size'; did you mean") as error:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True,max_split_size:1")
    assert "\n" not in str(error.value)
    told = cuda.memory._snapshot()["allocator_settings"]
    assert (told["expandable_segments"], told["max_split_size"]) == (False, 64 * MiB)


def test_memory_for_other_libraries(machine):
    """`caching_allocator_alloc` and its counterpart count as tensors do."""
    with cuda.device(1):
        address = cuda.caching_allocator_alloc(MiB)
    assert cuda.memory_allocated(1) == MiB
    cuda.caching_allocator_delete(address)
    assert cuda.memory_allocated(1) == 0
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        cuda.caching_allocator_delete(address)


def test_host_memory(machine):
    """Nothing is pinned for a card that is not there."""
    cuda.init()
    stats = cuda.host_memory_stats()
    assert stats["num_host_alloc"] == stats["allocated_bytes.current"] == 0
    cuda.memory.reset_peak_host_memory_stats()
    cuda.memory.reset_accumulated_host_memory_stats()


# Recording


def actions(device=0):
    """Return what was recorded on a card."""
    return [(event["action"], event["size"]) for event in cuda.memory._snapshot()["device_traces"][device]]


def test_recording(machine):
    """Events are PyTorch's: sizes as asked for, the driver's before the request that caused them."""
    cuda.memory._record_memory_history(context=None)
    address = machine.allocate(5 * MiB - 1)
    machine.memory.free(0, address)
    cuda.empty_cache()
    asked = 5 * MiB - 1
    assert actions() == [
        ("segment_alloc", 20 * MiB),
        ("alloc", asked),
        ("free_requested", asked),
        ("free_completed", asked),
        ("segment_free", 20 * MiB),
    ]
    event = cuda.memory._snapshot()["device_traces"][0][1]
    assert event["addr"] == address
    assert (event["stream"], event["pool_id"]) == (0, (0, 0))
    assert "frames" not in event
    assert actions()[5] == ("snapshot", 0)
    cuda.memory._record_memory_history(None)
    assert actions() == []


def test_recording_where(machine):
    """Frames are the user's, innermost first, at the events that the context level asks for and at live blocks."""
    cuda.memory._record_memory_history(context="alloc", stacks="python")
    address = machine.allocate(MiB)
    snapshot = cuda.memory._snapshot()
    alloc = snapshot["device_traces"][0][-1]
    assert alloc["frames"][0]["name"] == "allocate"
    assert alloc["frames"][1]["name"] == "test_recording_where"
    assert alloc["frames"][1]["filename"] == __file__
    block = snapshot["segments"][0]["blocks"][0]
    assert block["frames"] == alloc["frames"]
    assert torch._C._cuda_allocationTraceback(address) == alloc["frames"]
    machine.memory.free(0, address)
    assert "frames" not in cuda.memory._snapshot()["device_traces"][0][-1]


def test_recording_a_state_only(machine):
    """`state` keeps where live memory comes from, and no events."""
    cuda.memory._record_memory_history("state", context="state")
    machine.allocate(MiB)
    snapshot = cuda.memory._snapshot()
    assert snapshot["device_traces"] == [[], []]
    assert snapshot["segments"][0]["blocks"][0]["frames"]


def test_recording_a_few(machine):
    """The newest events are kept, and events can be left out."""
    cuda.memory._record_memory_history(context=None, max_entries=3)
    for _ in range(5):
        machine.memory.free(0, machine.allocate(MiB))
    assert [action for action, _ in actions()] == ["alloc", "free_requested", "free_completed"]
    cuda.memory._record_memory_history(context=None, skip_actions=["alloc", "snapshot"], clear_history=True)
    machine.memory.free(0, machine.allocate(MiB))
    assert [action for action, _ in actions()] == ["free_requested", "free_completed"]


def test_recording_expandable_segments_and_failures(machine):
    """Mapping is told as mapping, and a failure with what was free, its size and where."""
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    cuda.memory._record_memory_history(context="all")
    first = machine.allocate(15 * MiB, device=1)
    machine.memory.free(1, machine.allocate(15 * MiB, device=1))
    machine.memory.free(1, first)
    with pytest.raises(torch.OutOfMemoryError):
        machine.allocate(20 * GiB, device=1)
    events = cuda.memory._snapshot()["device_traces"][1]
    assert [(event["action"], event["size"]) for event in events][:4] == [
        ("segment_map", 20 * MiB),
        ("alloc", 15 * MiB),
        ("segment_map", 20 * MiB),
        ("alloc", 15 * MiB),
    ]
    assert events[-1]["action"] == "oom"
    assert events[-1]["device_free"] == 15095 * MiB - 198 * MiB
    assert "addr" not in events[-1]
    assert "segment_unmap" in [event["action"] for event in events]
    assert all(event["frames"] for event in events if event["action"] in {"alloc", "free_completed", "oom"})


def test_a_bad_recording_is_refused(machine):
    """What PyTorch does not know is an error."""
    with pytest.raises(RuntimeError, match="expected state/all/None"):
        cuda.memory._record_memory_history("everything")
    assert not torch._C._cuda_isHistoryEnabled()


def test_files(machine, tmp_path):
    """`_dump_snapshot` writes what PyTorch's viewer and our own reader understand."""
    cuda.memory._record_memory_history()
    machine.memory.free(0, machine.allocate(MiB))
    cuda.memory._dump_snapshot(str(tmp_path / "run.pickle"))
    assert set(pickle.loads((tmp_path / "run.pickle").read_bytes())) >= {"segments", "device_traces"}
    assert len(read_recording(tmp_path / "run.pickle").events(0)) == 4
