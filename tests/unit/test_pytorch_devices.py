"""PyTorch's devices: the real CPU-only build, and stand-ins for what needs hardware."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from jupyter_gpumem import Measure, devices
from jupyter_gpumem.devices import pytorch
from jupyter_gpumem.devices.base import counters
from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.devices.interception import MARK
from jupyter_gpumem.devices.pytorch import CachingAllocator, MpsAllocator
from jupyter_gpumem.ledger import PeakLedger
from jupyter_gpumem.records import Counters, Device, DriverMemory
from jupyter_gpumem.units import GiB, MiB


def test_a_torch_without_gpu_has_no_devices_and_stays_untouched():
    """O23: the real build, for CPU or without a card, answers with nothing, raises nothing and initialises nothing."""
    code = """
import sys, torch
from jupyter_gpumem import Measure, devices
for backend in devices.backends():
    assert list(backend.ready()) == [], backend.kind
    assert not backend.count(), backend.kind
    assert backend.memory(0) is None
    assert backend.segments(0) is None
    assert backend.settings() == {}
    assert backend.workspaces(0) == {}
    undo = backend.watch(None)
    assert (undo is None) == (not hasattr(torch._C, f"_{backend.kind}_memoryStats")), backend.kind
    if undo is not None:
        undo()
assert list(devices.ready_devices()) == []
for_cpu = torch.version.cuda is None and torch.version.hip is None
assert devices.explain_absence() == (
    f"this PyTorch ({torch.__version__}) is built without GPU support" if for_cpu else
    f"PyTorch {torch.__version__} sees no GPU; check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES")
assert devices.versions()["torch"] == torch.__version__
assert ("cuda" in devices.versions()) == (torch.version.cuda is not None)
assert not torch.cuda.is_initialized()
assert not torch.xpu.is_initialized()
"""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.returncode == 0, done.stderr


class FakeC:
    """A `torch._C` with the bindings of one kind over a scripted device."""

    def __init__(self, scripted, kind="cuda", *, contexts=(0,)):
        self.calls = []
        setattr(self, f"_{kind}_memoryStats", scripted.stats)
        setattr(self, f"_{kind}_resetPeakMemoryStats", scripted.reset_peaks)
        setattr(self, f"_{kind}_resetAccumulatedMemoryStats", scripted._reset_totals)
        if contexts is not None:
            setattr(self, f"_{kind}_hasPrimaryContext", lambda index: index in contexts)


def stand_in(kind="cuda", count=1, *, contexts=(0,), initialised=True, total=8 * GiB):
    """Return a module like torch with one kind of device, and the scripted devices beneath it."""
    scripted = FakeBackend(kind, total, count)
    properties = types.SimpleNamespace(name="stand-in card", total_memory=total, uuid="1234-5678")
    module = types.SimpleNamespace(
        is_initialized=lambda: initialised,
        device_count=lambda: count,
        get_device_properties=lambda index: properties,
        mem_get_info=lambda index: (total - GiB, total),
    )
    nothing = types.SimpleNamespace(is_initialized=lambda: False, is_available=lambda: False, device_count=lambda: 0)
    torch = types.SimpleNamespace(
        _C=FakeC(scripted, kind, contexts=contexts),
        __version__="2.99.0",
        version=types.SimpleNamespace(cuda="13.0", hip=None),
        backends=types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: kind == "mps")),
        cuda=nothing,
        xpu=nothing,
        get_device_module=lambda name: module,
        properties=properties,
    )
    setattr(torch, kind, module)
    return torch, scripted


@pytest.fixture
def use(monkeypatch):
    """Return a function that makes a stand-in the process's torch."""

    def become(torch):
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    return become


@pytest.fixture
def only(monkeypatch):
    """Return a function that makes the given back ends the only ones."""
    return lambda *backends: monkeypatch.setattr(devices.registry, "_backends", list(backends))


def test_before_initialisation_nothing_is_asked(use):
    """A device that the process has not initialised is not ready, and its count is not asked for."""
    torch, _ = stand_in(initialised=False)
    torch.cuda.device_count = None  # calling it would raise
    use(torch)
    cuda = CachingAllocator("cuda")
    assert (cuda.ready(), cuda.count(), cuda.memory(0), cuda.segments(0)) == ((), None, None, None)


def test_cards_without_a_context_are_not_ready(use):
    """Of several visible cards only those in use have counters; asking the others would take memory there."""
    torch, _ = stand_in(count=4, contexts=(1, 3))
    use(torch)
    cuda = CachingAllocator("cuda")
    assert list(cuda.ready()) == [1, 3]
    assert cuda.count() == 4


def test_kinds_without_contexts_are_ready_as_a_whole(use):
    """XPU does not tell which device is in use, so all of them are, once initialised."""
    torch, scripted = stand_in("xpu", count=2, contexts=None)
    use(torch)
    xpu = CachingAllocator("xpu")
    assert list(xpu.ready()) == [0, 1]
    scripted.allocate(5 * MiB, 1)
    assert counters(xpu.stats(1)).allocated == 5 * MiB
    assert xpu.workspaces(1) == {}


def test_a_device_is_described_with_its_identities(use):
    """UUID and bus id are what the driver is asked with; the description is asked for once."""
    torch, _ = stand_in()
    torch.properties.pci_domain_id, torch.properties.pci_bus_id, torch.properties.pci_device_id = 0, 0x65, 1
    use(torch)
    cuda = CachingAllocator("cuda")
    found = cuda.device(0)
    assert found == Device("cuda", 0, "stand-in card", 8 * GiB, "1234-5678", "00000000:65:01.0")
    assert cuda.device(0) is found


def test_a_device_without_identities(use):
    """Older builds and other kinds know neither; then the driver is not asked, rather than guessed."""
    torch, _ = stand_in("xpu", contexts=None)
    del torch.properties.uuid
    use(torch)
    assert CachingAllocator("xpu").device(0) == Device("xpu", 0, "stand-in card", 8 * GiB)


def test_the_run_time_library_tells_total_and_free(use):
    """It speaks for the whole card and cannot tell this process's part."""
    torch, _ = stand_in()
    use(torch)
    assert CachingAllocator("cuda").memory(0) == DriverMemory(8 * GiB, GiB, 7 * GiB, None, "runtime")


@pytest.mark.parametrize("how", ["raises", "is missing"])
def test_a_run_time_library_that_cannot_tell(use, how):
    """A lost context or a platform without the call is no answer, not an error."""
    torch, _ = stand_in()
    if how == "raises":

        def mem_get_info(index):
            raise RuntimeError("CUDA error: device-side assert triggered")

        torch.cuda.mem_get_info = mem_get_info
    else:
        del torch.cuda.mem_get_info
    use(torch)
    assert CachingAllocator("cuda").memory(0) is None


SEGMENTS = [{"device": 0, "address": 1}, {"device": 1, "address": 2}, {"device": 0, "address": 3}]


@pytest.mark.parametrize("accepts", [(0, 0, False), None, ()])
def test_every_form_of_the_snapshot_is_read(use, accepts):
    """The binding took nothing, then a pool, then a tuple; the newest form it accepts is used."""
    torch, _ = stand_in()

    def snapshot(*arguments):
        if arguments != (accepts if accepts == () else (accepts,)):
            raise TypeError("wrong arguments")
        return {"segments": SEGMENTS, "allocator_settings": {"max_split_size": -1}}

    torch._C._cuda_memorySnapshot = snapshot
    use(torch)
    cuda = CachingAllocator("cuda")
    assert cuda.segments(0) == [SEGMENTS[0], SEGMENTS[2]]
    assert cuda.settings() == {"max_split_size": -1}


def test_without_a_snapshot_there_are_no_segments(use):
    """A build without the binding has no segments and no settings."""
    torch, _ = stand_in()
    use(torch)
    assert CachingAllocator("cuda").segments(0) is None
    assert CachingAllocator("cuda").settings() == {}


@pytest.mark.parametrize(("fraction", "limit"), [(1.0, None), (0.5, 4 * GiB), (None, None)])
def test_the_cap_of_the_process(use, fraction, limit):
    """A fraction below one is a cap; no fraction, or a build without the call, is none."""
    torch, _ = stand_in()
    if fraction is not None:
        torch.cuda.get_per_process_memory_fraction = lambda index: fraction
    use(torch)
    assert CachingAllocator("cuda").limit(0) == limit


def test_the_ledger_measures_through_the_bindings(use, only):
    """Peaks, the user's maximum and the way back all work over `torch._C`, and the originals return."""
    torch, scripted = stand_in()
    use(torch)
    only(cuda := CachingAllocator("cuda"))
    before = dict(vars(torch._C))
    ledger = PeakLedger()

    def users_peak():
        return torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"]

    scripted.free(scripted.allocate(GiB))
    interval = ledger.open()
    assert hasattr(torch._C._cuda_memoryStats, MARK)
    scripted.free(scripted.allocate(64 * MiB))
    assert users_peak() == GiB
    span = ledger.close(interval)[cuda, 0]
    assert (span.peak_allocated, span.doubt) == (64 * MiB, None)
    torch._C._cuda_resetPeakMemoryStats(0)
    assert users_peak() == 0
    assert vars(torch._C) == before


@pytest.mark.parametrize("copies_attributes", [True, False])
def test_counters_are_read_beneath_a_wrapper_on_top_of_ours(use, only, copies_attributes):
    """If someone wraps our wrapper before the first device starts, the ledger still reads the counter itself."""
    torch, scripted = stand_in(initialised=False)
    use(torch)
    only(cuda := CachingAllocator("cuda"))
    ledger = PeakLedger()
    outer = ledger.open()
    ours = torch._C._cuda_memoryStats

    def theirs(index):
        return ours(index)

    if copies_attributes:
        theirs.__dict__.update(ours.__dict__)
    torch._C._cuda_memoryStats = theirs
    torch.cuda.is_initialized = lambda: True
    scripted.free(scripted.allocate(GiB))
    inner = ledger.open()
    scripted.free(scripted.allocate(MiB))
    assert ledger.close(inner)[cuda, 0].peak_allocated == MiB
    assert ledger.close(outer)[cuda, 0].peak_allocated == GiB
    ledger.detach()


def test_a_second_copy_of_the_package_reads_beneath_the_first(use, only):
    """A reloaded package finds the old one's wrapper and still reads the counter itself."""
    torch, scripted = stand_in()
    use(torch)
    only(CachingAllocator("cuda"))
    scripted.free(scripted.allocate(GiB))
    ledger = PeakLedger()
    interval = ledger.open()
    assert counters(CachingAllocator("cuda").stats(0)).peak_allocated == 0
    ledger.close(interval)
    ledger.detach()


def mps():
    """Return a module like torch on a Mac."""
    torch, scripted = stand_in("mps")
    torch.mps.current_allocated_memory = lambda: scripted.stats(0)["allocated_bytes"]["all"]["current"]
    torch.mps.driver_allocated_memory = lambda: scripted.stats(0)["reserved_bytes"]["all"]["current"]
    torch.mps.recommended_max_memory = lambda: 32 * GiB
    torch.version.cuda = None
    return torch, scripted


def test_mps_has_levels_and_no_peak(use, only):
    """What MPS does not keep is missing in the result and said in the report."""
    torch, scripted = mps()
    use(torch)
    only(MpsAllocator())
    scripted.allocate(MiB)
    with Measure() as measured:
        scripted.free(scripted.allocate(GiB))
        scripted.allocate(2 * MiB)
    one = measured.result["mps:0"]
    assert one.delta_allocated == 2 * MiB
    assert (one.peak_allocated, one.peak_reserved, one.retries, one.exact) == (None, None, None, False)
    assert one.doubt is None
    assert measured.result.peak_allocated is None
    assert "mps keeps no peak counter: only the levels before and after are known." in str(measured.result)
    assert one.device == Device("mps", 0, "Apple GPU", 32 * GiB)


def test_mps_is_there_or_not(use):
    """The back end follows `torch.backends.mps`, and a machine with it is not explained away."""
    torch, _ = mps()
    use(torch)
    assert (list(MpsAllocator().ready()), MpsAllocator().count()) == ([0], 1)
    assert pytorch.explain_absence() is None
    torch.backends.mps.is_available = lambda: False
    assert (list(MpsAllocator().ready()), MpsAllocator().count(), MpsAllocator().stats(0)) == ([], 0, {})


def test_absence_is_explained_in_one_sentence(use, monkeypatch):
    """Each reason has its own sentence; what may still come is no absence."""
    torch, _ = stand_in(count=0)
    use(torch)
    assert pytorch.explain_absence() == (
        "PyTorch 2.99.0 sees no GPU; check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"
    )
    torch.cuda.device_count = lambda: 1
    assert pytorch.explain_absence() is None
    torch.version.cuda = None
    assert pytorch.explain_absence() == "this PyTorch (2.99.0) is built without GPU support"
    torch.version.hip = "7.0"
    assert pytorch.explain_absence() is None
    torch.version.hip, torch.xpu.is_available = None, lambda: True
    assert pytorch.explain_absence() is None


def test_no_torch_at_all(monkeypatch):
    """A torch that cannot be imported is not installed, whether it is missing or blocked."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not pytorch.torch_installed()
    assert pytorch.loaded_torch() is None
    assert pytorch.explain_absence() == (
        "PyTorch is not installed in this kernel's environment; install torch and restart the kernel"
    )
    assert pytorch.versions() == {}
    assert [list(backend.ready()) for backend in devices.backends()] == [[], [], []]


def test_a_torch_that_is_being_imported_is_not_asked(use):
    """A module that is not complete yet counts as not there, but as installed."""
    use(types.SimpleNamespace(_C=types.SimpleNamespace()))
    assert pytorch.loaded_torch() is None
    assert pytorch.torch_installed()
    assert pytorch.explain_absence() is None
    assert list(CachingAllocator("cuda").ready()) == []
    assert CachingAllocator("cuda").watch(None) is None


def test_versions_name_the_platform(use):
    """ROCm has its own version beside PyTorch's."""
    torch, _ = stand_in()
    torch.version.cuda, torch.version.hip = None, "7.0"
    use(torch)
    assert pytorch.versions() == {"torch": "2.99.0", "hip": "7.0"}


def test_workspaces_are_blocks_that_no_tensor_holds(use, monkeypatch):
    """A tensor of a workspace's size is the user's; what no tensor holds is the library's."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    import torch as real

    kept = real.empty(32 * MiB, dtype=real.uint8)
    address = kept.untyped_storage().data_ptr()
    torch, _ = stand_in()
    torch.Tensor, torch.nn = real.Tensor, real.nn

    def segment(at):
        block = {"size": 32 * MiB, "requested_size": 32 * MiB, "state": "active_allocated", "address": at}
        return {"device": 0, "address": at, "blocks": [block]}

    torch._C._cuda_memorySnapshot = lambda arguments: {"segments": [segment(address), segment(4096)]}
    use(torch)
    assert CachingAllocator("cuda").workspaces(0) == {4096: 32 * MiB}


def test_counters_take_what_is_there():
    """Statistics without some keys, as other kinds have them, leave those counters missing."""
    assert counters({}) == Counters()
    found = counters({"allocated_bytes": {"all": {"current": 5.0}}, "num_ooms": 2})
    assert (found.allocated, found.ooms, found.peak_allocated, found.reserved) == (5, 2, None, None)
