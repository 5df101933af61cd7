"""What `torch.cuda` answers for virtual cards, asked of the memory alone; and that afterwards all is as before."""

from __future__ import annotations

import threading
import warnings

import pytest
from cards_alone import Machine

import jupyter_gpumem as gm
from jupyter_gpumem import devices
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")
cuda = torch.cuda


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
