"""What `torch.cuda` answers for virtual cards, asked of the memory alone; and that afterwards all is as before."""

from __future__ import annotations

import importlib.util
import pickle
import threading
import warnings

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem import devices
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.recording import read_recording
from jupyter_gpumem.units import GiB, MiB
from jupyter_gpumem.virtual.cards import parse_cards
from jupyter_gpumem.virtual.facade import Facade
from jupyter_gpumem.virtual.memory import VirtualMemory
from jupyter_gpumem.virtual.patches import Patches

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the profiler would import it
cuda = torch.cuda

OWNERS = (
    torch,
    torch._C,
    torch._C._CudaEventBase,
    torch._C._CudaStreamBase,
    torch.accelerator,
    torch.cuda,
    torch.cuda.CUDAGraph,
    torch.cuda.Event,
    torch.cuda.MemPool,
    torch.cuda.Stream,
    torch.cuda.graphs,
    torch.cuda.memory,
    torch.cuda.nvtx,
    torch.cuda.random,
    torch.cuda.streams,
    torch.version,
)


class Machine:
    """Virtual cards with nothing but their memory."""

    def __init__(self, cards: str) -> None:
        self.memory = VirtualMemory(parse_cards(cards))
        self.patches = Patches()
        self.notes: list[str] = []
        Facade(self.memory, lambda what, given: self.notes.append(f"{what}: {given}")).install(self.patches)

    def allocate(self, size: int, device: int = 0) -> int:
        """Take memory as a tensor would."""
        return self.memory.allocate(device, size)


@pytest.fixture
def before():
    """Everything that could be replaced, as it was."""
    return [dict(vars(owner)) for owner in OWNERS]


@pytest.fixture
def machine(before):
    """An A100 of 80 GB and a T4; undone afterwards, attribute by attribute."""
    made = Machine("A100-80GB,T4")
    yield made
    assert made.patches.undo() == []
    for owner, was in zip(OWNERS, before, strict=True):
        now = dict(vars(owner))
        assert [key for key in now.keys() | was.keys() if now.get(key) is not was.get(key)] == [], owner
    assert made.memory.observers == []


# What there is


def test_there_are_cards(machine):
    """Asking initialises nothing; the first use does."""
    assert cuda.is_available()
    assert cuda.device_count() == 2
    assert not cuda.is_initialized()
    assert torch.backends.cuda.is_built()
    assert cuda.current_device() == 0
    assert cuda.is_initialized()
    assert torch.version.cuda is not None


def test_properties(machine):
    """Names, sizes and capabilities are those of the real cards."""
    assert cuda.get_device_name() == "NVIDIA A100-SXM4-80GB"
    assert cuda.get_device_name(1) == cuda.get_device_name("cuda:1") == "Tesla T4"
    assert cuda.get_device_capability(1) == (7, 5)
    properties = cuda.get_device_properties(torch.device("cuda", 0))
    assert (properties.total_memory, properties.multi_processor_count) == (85100068864, 108)
    assert str(properties).startswith("_CudaDeviceProperties(name='NVIDIA A100-SXM4-80GB', major=8, minor=0, ")
    assert properties.uuid != cuda.get_device_properties(1).uuid
    assert (properties.warp_size, properties.max_threads_per_multi_processor) == (32, 2048)
    with pytest.raises(AttributeError):
        properties.clock_rate  # noqa: B018 - what is not known is not made up
    with pytest.raises(AssertionError, match="Invalid device id"):
        cuda.get_device_properties(2)


def test_types(machine):
    """What a generation can compute with is asked of its capability, by PyTorch's own rules."""
    assert cuda.is_bf16_supported()
    assert cuda.is_tf32_supported()
    with cuda.device(1):
        assert cuda.is_bf16_supported()
        assert not cuda.is_bf16_supported(including_emulation=False)
        assert not cuda.is_tf32_supported()


def test_no_card_is_called_unsupported(before):
    """PyTorch's check of the cards against its build is silent for every card there is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        machine = Machine("V100-16GB,T4,RTX 3090,4090,H100,B200,5090,24GiB")
        try:
            cuda.init()
            assert cuda.device_count() == 8
            assert "sm_70" in cuda.get_arch_list()
        finally:
            machine.patches.undo()


def test_choosing_a_card(machine):
    """The current card is a thread's own; contexts nest; a card that is not there is CUDA's error."""
    with cuda.device(1):
        assert cuda.current_device() == 1
        with cuda.device(None):
            assert cuda.current_device() == 1
        seen = []
        thread = threading.Thread(target=lambda: seen.append(cuda.current_device()))
        thread.start()
        thread.join()
        assert seen == [0]
    assert cuda.current_device() == 0
    cuda.set_device(1)
    assert torch.accelerator.current_device_index() == 1
    cuda.set_device(-1)
    assert cuda.current_device() == 1
    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
        cuda.set_device(2)


def test_peers(machine):
    """Cards reach each other, and none itself."""
    assert cuda.can_device_access_peer(0, 1)
    assert not cuda.can_device_access_peer(1, 1)


# Memory


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


# Streams, events, random numbers


def test_streams(machine):
    """Streams differ by handle, come in priorities, are current for a thread, and are finished at once."""
    stream = cuda.Stream()
    other = cuda.Stream(device=1, priority=-1)
    assert (stream.device, other.device) == (torch.device("cuda:0"), torch.device("cuda:1"))
    assert (stream.priority, other.priority) == (0, -1)
    assert len({stream.cuda_stream, other.cuda_stream, cuda.default_stream().cuda_stream}) == 3
    assert cuda.current_stream() == cuda.default_stream()
    with cuda.stream(stream):
        assert cuda.current_stream() == stream != cuda.default_stream()
        assert machine.memory.current_stream(0) == stream.cuda_stream
    with other:
        assert cuda.current_device() == 1
        assert cuda.current_stream() == other
    assert cuda.current_device() == 0
    assert cuda.current_stream() == cuda.default_stream()
    assert stream.query()
    stream.wait_stream(other)
    stream.synchronize()
    assert {stream, cuda.Stream(stream_id=stream.stream_id, device_index=0, device_type=1)} == {stream}
    assert "cuda_stream=0x" in repr(stream)
    assert cuda.ExternalStream(1234).cuda_stream == 1234
    assert not cuda.is_current_stream_capturing()


def test_streams_come_round(machine):
    """After 32 streams of a priority the first is handed out again, as PyTorch does."""
    made = [cuda.Stream() for _ in range(33)]
    assert made[0] == made[32]
    assert len(set(made)) == 32


def test_memory_of_another_stream(machine):
    """What a stream was recorded to use is free again when it is done, and streams do not share blocks."""
    stream = cuda.Stream()
    with cuda.stream(stream):
        address = machine.allocate(MiB)
    machine.memory.record_stream(0, address, cuda.default_stream().cuda_stream)
    machine.memory.free(0, address)
    assert cuda.memory_stats()["active_bytes.all.current"] == MiB
    cuda.synchronize()
    assert cuda.memory_stats()["active_bytes.all.current"] == 0
    assert machine.allocate(MiB) != address


def test_streams_and_events_of_any_device(machine):
    """`torch.Stream` and `torch.Event` make those of the cards, with or without a device's name."""
    for made in (torch.Stream(), torch.Stream(device="cuda:1"), torch.Stream("cuda", priority=-1)):
        assert isinstance(made, torch.Stream)
        assert isinstance(made, cuda.Stream)
    assert torch.Stream(device="cuda:1").device == torch.device("cuda:1")
    start, end = torch.Event(enable_timing=True), torch.Event("cuda", enable_timing=True)
    start.record()
    end.record(torch.accelerator.current_stream())
    assert start.elapsed_time(end) > 0
    assert issubclass(cuda.Event, torch.Event)
    assert not isinstance(start, torch.Stream)


def test_a_stream_is_a_threads_own(machine):
    """What one thread selects changes nothing for another's allocations."""
    stream = cuda.Stream()
    with cuda.stream(stream):
        seen = []

        def work():
            seen.append((cuda.current_stream().cuda_stream, machine.memory.current_stream(0)))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [(0, 0)]
        machine.allocate(MiB)
    assert cuda.memory_snapshot()[0]["stream"] == stream.cuda_stream


def test_events(machine):
    """Events record and finish; the time between two is the host's, and that is noted."""
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    assert repr(start) == "<torch.cuda.Event uninitialized>"
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    end.record(cuda.Stream())
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert machine.notes == ["Event.elapsed_time(): the time that passed on the host"]
    with pytest.raises(ValueError, match="enable_timing=True"):
        cuda.Event().elapsed_time(end)
    with pytest.raises(RuntimeError, match="Event device 0 does not match recording stream's device 1"):
        start.record(cuda.Stream(device=1))
    end.synchronize()
    end.wait()


def test_seeds(machine):
    """Seeds and states are kept for each card, come back as they were saved, and follow `torch.manual_seed`."""
    torch.manual_seed(7)
    assert cuda.initial_seed() == 7
    state = cuda.get_rng_state(1)
    assert (state.numel(), state.dtype, state.device.type) == (16, torch.uint8, "cpu")
    cuda.manual_seed_all(8)
    assert [generator.initial_seed() for generator in cuda.default_generators] == [8, 8]
    cuda.set_rng_state(state, 1)
    assert [generator.initial_seed() for generator in cuda.default_generators] == [8, 7]
    with torch.random.fork_rng(devices=[0]):
        cuda.manual_seed(3)
    assert cuda.initial_seed() == 8
    cuda.seed()
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        cuda.set_rng_state(torch.zeros(5, dtype=torch.uint8))


def test_generators(machine):
    """`torch.Generator` makes both kinds, and both are generators."""
    generator = torch.Generator(device="cuda:1").manual_seed(5)
    assert (generator.device, generator.initial_seed()) == (torch.device("cuda:1"), 5)
    copy = generator.clone_state()
    copy.set_offset(8)
    generator.set_state(copy.get_state())
    assert generator.get_offset() == 8
    plain = torch.Generator().manual_seed(5)
    assert torch.equal(torch.rand(3, generator=plain), torch.rand(3, generator=torch.Generator("cpu").manual_seed(5)))
    assert all(isinstance(one, torch.Generator) for one in (generator, plain, torch.default_generator))
    assert not isinstance(5, torch.Generator)


def test_methods_are_found_on_the_classes(machine):
    """What is looked up on `torch.Generator` and its like is there, as in code that is imported meanwhile."""
    assert torch.equal(torch.Generator.get_state(torch.default_generator), torch.default_generator.get_state())
    for name in ("Generator", "Stream", "Event"):
        real, replaced = getattr(torch._C, name), getattr(torch, name)
        assert replaced is not real
        for method in (name for name in vars(real) if not name.startswith("_")):
            assert getattr(replaced, method) == getattr(real, method)
        assert not hasattr(replaced, "no_such_method")
    found = importlib.util.find_spec("jupyter_gpumem.virtual.containers")
    found.loader.exec_module(importlib.util.module_from_spec(found))  # as the first prediction of a session does


def test_a_generator_class_that_outlives_the_cards(before):
    """A module that has taken it makes real generators again when there are no virtual cards."""
    machine = Machine("T4")
    kept = torch.Generator
    machine.patches.undo()
    assert type(kept()) is torch.Generator
    with pytest.raises(RuntimeError):
        kept(device="cuda")


# The rest


def test_accelerator(machine):
    """`torch.accelerator` speaks of the same cards."""
    accelerator = torch.accelerator
    assert accelerator.current_accelerator() == torch.device("cuda")
    assert accelerator.is_available()
    assert accelerator.device_count() == 2
    assert torch.get_device_module() is torch.get_device_module("cuda") is cuda
    cuda.init()
    machine.allocate(MiB, device=1)
    assert accelerator.memory_allocated(1) == accelerator.max_memory_allocated("cuda:1") == MiB
    assert accelerator.memory_reserved(1) == 2 * MiB
    with accelerator.device_index(1):
        assert cuda.current_device() == 1
        assert accelerator.current_stream() == cuda.current_stream()
    accelerator.synchronize(1)
    accelerator.reset_peak_memory_stats(1)
    accelerator.reset_accumulated_memory_stats(1)
    accelerator.empty_cache()
    stream = cuda.Stream(device=1)
    accelerator.set_stream(stream)
    assert cuda.current_stream() == stream


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: cuda.CUDAGraph(), "CUDA graphs cannot be captured on a virtual GPU"),
        (lambda: cuda.graph_pool_handle(), "CUDA graphs cannot be captured on a virtual GPU"),
        (lambda: cuda.MemPool(), "private memory pools are not modelled"),
        (lambda: cuda.memory.CUDAPluggableAllocator("a", "b", "c"), "another allocator cannot be used"),
        (lambda: cuda.utilization(), "torch.cuda.utilization has no answer: a virtual GPU has no sensors"),
        (lambda: cuda.temperature(), "torch.cuda.temperature has no answer"),
    ],
)
def test_what_there_is_not(machine, call, said):
    """What a virtual card does not have says so, and what to do."""
    with pytest.raises(NotImplementedError, match=said):
        call()


def test_compiling(machine):
    """Code is left as it is, in every way of asking for it, and that is noted."""

    def double(x):
        return 2 * x

    assert torch.compile(double) is double
    assert torch.compile(mode="max-autotune")(double) is double
    net = torch.nn.Linear(2, 2)
    net.compile()
    assert net(torch.ones(2)).shape == (2,)
    assert len(machine.notes) == 3


def test_old_types(machine):
    """`torch.cuda.FloatTensor` and its like know the tensors of virtual cards only."""
    assert not isinstance(torch.ones(1), cuda.FloatTensor)
    assert cuda.HalfTensor.dtype == torch.float16


def test_processes(machine):
    """This process is on the cards it uses, and on no other."""
    machine.allocate(MiB)
    assert cuda.list_gpu_processes(0).endswith("452.000 MB GPU memory")
    assert cuda.list_gpu_processes(1) == "GPU:1\nno processes are running"
    assert cuda.device_memory_used() == 452 * MiB


def test_ranges_and_profilers(machine):
    """NVTX and the profiler's switches go nowhere, without an error."""
    with cuda.nvtx.range("outer"):
        assert cuda.nvtx.range_push("inner") == 1
        cuda.nvtx.mark("here")
        assert cuda.nvtx.range_pop() == 1
    cuda.nvtx.range_end(cuda.nvtx.range_start("apart"))
    with cuda.profiler.profile():
        pass
    cuda.set_sync_debug_mode("warn")
    assert cuda.get_sync_debug_mode() == 1


def test_the_profiler_watches_the_host(machine):
    """It is asked for times of kernels, which there are none of, and says so once."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        torch.ones(2).sum()
    assert any(event.key == "aten::sum" for event in profile.key_averages())
    assert machine.notes == ["the time of kernels on the card: none"]
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() > 90000


def test_a_child_process_cannot_use_them(machine, monkeypatch):
    """As with a real card: what a process has initialised its forked child cannot use."""
    cuda.init()
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert not cuda.is_initialized()
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        cuda.init()


# What measures and shows


def test_measuring(machine):
    """The measurement of a virtual card is exact, leaves the user's maximum alone, and says that it is virtual."""
    cuda.init()
    machine.memory.free(0, machine.allocate(30 * MiB))
    with gm.measure() as measured:
        machine.memory.free(0, machine.allocate(10 * MiB))
        kept = machine.allocate(MiB)
    [usage] = measured.result.devices
    assert (usage.peak_allocated, usage.delta_allocated, usage.doubt) == (10 * MiB, MiB, None)
    assert cuda.max_memory_allocated() == 30 * MiB
    assert usage.device.virtual
    assert str(measured.result).startswith("cuda:0 · virtual A100-80GB · ")
    assert "A virtual GPU: nothing is computed on it; its memory is modelled." in str(measured.result)
    machine.memory.free(0, kept)
    cuda.reset_peak_memory_stats()
    assert not LEDGER.watching


def test_status(machine):
    """The layers add up to the card, with the context as the part outside PyTorch; no driver is asked."""
    cuda.init()
    machine.allocate(3 * MiB)
    status = gm.status()
    [one] = status.devices
    assert dict(one.layers) == {
        "allocated by tensors": 3 * MiB,
        "reserved, returnable": 0,
        "reserved, stranded": 17 * MiB,
        "this process outside PyTorch": 450 * MiB,
        "other processes": 0,
        "free": 85100068864 - 470 * MiB,
    }
    assert one.driver.source == "model"
    assert (one.device.uuid, one.device.pci_bus_id) == (None, None)
    assert "A virtual GPU: nothing is computed on it" in str(status)


def test_status_before_use(machine):
    """Cards that were not used yet are listed, as virtual ones."""
    status = gm.status()
    assert [one.device.name for one in status.devices] == ["virtual A100-80GB", "virtual T4"]
    assert [one.driver.free for one in status.devices] == [85100068864, 15095 * MiB]


def test_our_recording(machine, tmp_path):
    """`gm.record()` works, and what it records is replayed to the byte."""
    cuda.init()
    with gm.record(tmp_path / "run.pickle.gz", stacks=False) as recorded:
        for size in (5, 30, 2, 60):
            machine.memory.free(0, machine.allocate(size * MiB))
    result = gm.whatif(recorded.recording, ["expandable_segments:True"], jobs=1)
    assert result.check.exact
    assert recorded.recording.extra["device_name"] == "virtual A100-80GB"
    assert recorded.recording.extra["total_memory"] == 85100068864


def test_afterwards_nothing_is_known(before):
    """The machine's own devices are back, a recording of ours is kept, and another virtual GPU starts anew."""
    own = devices.backend("cuda")
    machine = Machine("T4")
    cuda.init()
    with gm.measure():
        machine.allocate(MiB)
    from jupyter_gpumem.recorder import RECORDER

    RECORDER.start()
    machine.allocate(MiB)
    assert machine.patches.undo() == []
    assert devices.backend("cuda") is own
    assert not RECORDER.status().running
    assert [event["action"] for event in RECORDER.last.events(0)] == ["alloc"]
    RECORDER.close()
    machine = Machine("L4")
    cuda.init()
    assert gm.status().devices[0].device.name == "virtual L4"
    machine.allocate(1)
    with gm.measure() as measured:
        machine.allocate(MiB)
    assert measured.result.devices[0].peak_over_start == MiB
    machine.patches.undo()


def test_switched_off_inside_a_measurement(before):
    """The measurement ends with what it knows."""
    machine = Machine("T4")
    cuda.init()
    machine.allocate(MiB)
    with gm.measure() as measured:
        machine.memory.free(0, machine.allocate(4 * MiB))
        machine.patches.undo()
    assert str(measured.result).startswith("cuda:0 · virtual T4 · ")
    assert not LEDGER.watching
