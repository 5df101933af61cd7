"""Streams, events and random numbers of virtual cards, asked of the memory alone."""

from __future__ import annotations

import importlib.util
import threading

import pytest
from cards_alone import Machine

from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")
cuda = torch.cuda


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
