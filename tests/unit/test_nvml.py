"""The driver's view, with a stand-in for NVML: the very card or none, our bytes or none."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from jupyter_gpumem import devices
from jupyter_gpumem.devices import nvml as nvml_module
from jupyter_gpumem.devices import registry
from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.devices.nvml import NvmlDriver
from jupyter_gpumem.records import Device, DriverMemory
from jupyter_gpumem.units import GiB, MiB

ME = 4242
FIRST_NAMESPACE = "pid:[4026531836]"


class NVMLError(Exception):
    """What NVML raises, of any kind."""


class Card:
    """One card, or one slice of one, as NVML knows it."""

    def __init__(self, uuid, bus=None, total=80 * GiB, used=GiB, reserved=256 * MiB, processes=()):
        self.uuid, self.bus, self.total, self.used, self.reserved = uuid, bus, total, used, reserved
        self.processes = list(processes)
        self.broken = False


class Nvml(types.ModuleType):
    """A `pynvml` that has the cards a test gives it, in its own order."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2

    def __init__(self, *cards):
        super().__init__("pynvml")
        self.cards = cards
        self.starts = 0
        self.by_index = 0
        self.broken_start = None
        self.knows_version_2 = True
        self.lists_processes = True
        self.listings = 0

    def nvmlInit(self):
        self.starts += 1
        if self.broken_start is not None:
            raise self.broken_start

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        self.by_index += 1
        return self.cards[index]

    def _only(self, found):
        for card in found:
            return card
        raise NVMLError("Not Found")

    def nvmlDeviceGetHandleByUUID(self, key):
        return self._only(card for card in self.cards if card.uuid.encode() == key)

    def nvmlDeviceGetHandleByPciBusId(self, key):
        return self._only(card for card in self.cards if card.bus is not None and card.bus.encode() == key)

    def nvmlDeviceGetName(self, card):
        return f"name of {card.uuid}".encode()

    def nvmlDeviceGetUUID(self, card):
        return card.uuid

    def nvmlDeviceGetMemoryInfo(self, card, version=None):
        if card.broken:
            raise NVMLError("GPU is lost")
        if version is None:
            return types.SimpleNamespace(
                total=card.total, used=card.used + card.reserved, free=card.total - card.used - card.reserved
            )
        if not self.knows_version_2:
            raise NVMLError("Function Not Found")
        return types.SimpleNamespace(total=card.total, used=card.used, free=card.total - card.used - card.reserved)

    def nvmlDeviceGetComputeRunningProcesses(self, card):
        self.listings += 1
        if not self.lists_processes:
            raise NVMLError("Insufficient Permissions")
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.processes]


@pytest.fixture
def machine(monkeypatch):
    """Return a function that puts cards into the machine, seen from the first namespace, and gives the stand-in."""

    def build(*cards):
        nvml = Nvml(*cards)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    monkeypatch.setattr(os, "getpid", lambda: ME)
    monkeypatch.setattr(os, "readlink", lambda path: FIRST_NAMESPACE)
    return build


@pytest.fixture
def in_container(monkeypatch):
    """Return a function that puts this process into a namespace where only the given process ids exist."""

    def enter(*known):
        monkeypatch.setattr(os, "readlink", lambda path: "pid:[4026532999]")
        monkeypatch.setattr(nvml_module.psutil, "pid_exists", lambda pid: pid in known)

    return enter


def cuda(index, uuid=None, bus=None, total=80 * GiB - 300 * MiB):
    """Return a device as PyTorch describes it: its UUID without prefix, its total a little smaller."""
    return Device("cuda", index, "a card", total, uuid, bus)


def test_a_card_is_found_by_uuid_never_by_index(machine):
    """O12: CUDA sees [B, A], NVML lists [A, B]; each device gets its own card's numbers."""
    nvml = machine(Card("GPU-aaaa", used=10 * GiB), Card("GPU-bbbb", used=20 * GiB))
    driver = NvmlDriver()
    assert driver.memory(cuda(0, "bbbb")).used == 20 * GiB
    assert driver.memory(cuda(1, "aaaa")).used == 10 * GiB
    assert nvml.by_index == 0


def test_one_visible_card_is_not_the_drivers_first(machine):
    """With `CUDA_VISIBLE_DEVICES=1`, `cuda:0` is the driver's second card."""
    machine(Card("GPU-aaaa", used=10 * GiB), Card("GPU-bbbb", used=20 * GiB))
    assert NvmlDriver().memory(cuda(0, "GPU-bbbb")).used == 20 * GiB


def test_a_card_without_uuid_is_found_by_its_bus(machine):
    """An older torch has no UUID but a bus id; and a UUID that the driver does not know leads there too."""
    machine(Card("GPU-aaaa", "00000000:01:00.0", used=GiB), Card("GPU-bbbb", "00000000:65:00.0", used=2 * GiB))
    assert NvmlDriver().memory(cuda(0, None, "00000000:65:00.0")).used == 2 * GiB
    assert NvmlDriver().memory(cuda(0, "cccc", "00000000:65:00.0")).used == 2 * GiB


def test_without_a_match_there_is_no_answer(machine):
    """No identity, or one that the driver does not know, gives nothing rather than some card."""
    nvml = machine(Card("GPU-aaaa", "00000000:01:00.0"))
    driver = NvmlDriver()
    assert driver.memory(cuda(0)) is None
    assert driver.memory(cuda(0, "bbbb", "00000000:65:00.0")) is None
    assert nvml.by_index == 0


def test_the_parent_card_of_a_slice_is_refused(machine):
    """A MIG slice of 10 GiB whose bus id leads to the whole card must not show the whole card's numbers."""
    machine(Card("GPU-aaaa", "00000000:01:00.0", total=80 * GiB))
    assert NvmlDriver().memory(cuda(0, "aaaa", "00000000:01:00.0", total=10 * GiB)) is None


def test_a_slice_is_found_by_its_own_uuid(machine):
    """The slice itself is asked where the driver knows it, with and without the prefix."""
    machine(Card("GPU-aaaa", total=80 * GiB), Card("MIG-1111", total=10 * GiB, used=3 * GiB))
    for uuid in ("1111", "MIG-1111"):
        assert NvmlDriver().memory(cuda(0, uuid, total=10 * GiB - 64 * MiB)).used == 3 * GiB


def test_layers_of_an_answer_add_up(machine):
    """The total is what can be used at all: the driver's own share is in neither part."""
    machine(Card("GPU-aaaa", total=80 * GiB, used=5 * GiB, reserved=GiB, processes=[(ME, 4 * GiB), (7, GiB)]))
    assert NvmlDriver().memory(cuda(0, "aaaa")) == DriverMemory(79 * GiB, 5 * GiB, 74 * GiB, 4 * GiB, "nvml")


@pytest.mark.parametrize("how", ["raises", "has no constant"])
def test_an_old_driver_answers_the_first_version(machine, monkeypatch, how):
    """Without version 2 of the call, what the driver keeps counts as used; the sum stays right."""
    nvml = machine(Card("GPU-aaaa", total=80 * GiB, used=5 * GiB, reserved=GiB))
    nvml.knows_version_2 = False
    if how == "has no constant":
        monkeypatch.delattr(Nvml, "nvmlMemory_v2")
    found = NvmlDriver().memory(cuda(0, "aaaa"))
    assert (found.total, found.used, found.free) == (80 * GiB, 6 * GiB, 74 * GiB)


def test_a_process_that_is_not_listed_holds_nothing(machine):
    """In the machine's first namespace ids are real: not being listed means zero bytes."""
    machine(Card("GPU-aaaa", processes=[(7, GiB)]))
    assert NvmlDriver().memory(cuda(0, "aaaa")).process == 0


def test_in_a_container_host_ids_are_not_believed(machine, in_container):
    """O13: if the list names processes that do not exist here, an id like ours is somebody else's."""
    machine(Card("GPU-aaaa", processes=[(ME, 9 * GiB), (31337, GiB)]))
    in_container(ME, 1)
    assert NvmlDriver().memory(cuda(0, "aaaa")).process is None


def test_in_a_container_an_absent_id_means_nothing(machine, in_container):
    """Not being listed is no proof where the driver may hide or rename processes."""
    machine(Card("GPU-aaaa"))
    in_container(ME, 1)
    assert NvmlDriver().memory(cuda(0, "aaaa")).process is None


def test_in_a_container_with_its_own_ids_ours_is_believed(machine, in_container):
    """Newer drivers list the container's own ids, all of which exist here."""
    machine(Card("GPU-aaaa", processes=[(ME, 3 * GiB), (1, GiB)]))
    in_container(ME, 1)
    assert NvmlDriver().memory(cuda(0, "aaaa")).process == 3 * GiB


def test_missing_bytes_of_a_process_stay_missing(machine):
    """O16: under Windows and WSL the driver lists us without bytes, which is not zero."""
    machine(Card("GPU-aaaa", processes=[(ME, None)]))
    assert NvmlDriver().memory(cuda(0, "aaaa")).process is None


def test_no_permission_to_list_processes(machine):
    """The card's own numbers are still right, only our part of them is unknown."""
    nvml = machine(Card("GPU-aaaa", used=5 * GiB))
    nvml.lists_processes = False
    found = NvmlDriver().memory(cuda(0, "aaaa"))
    assert (found.used, found.process) == (5 * GiB, None)


@pytest.mark.parametrize(("system", "process"), [("posix", None), ("nt", 0)])
def test_without_proc_only_windows_is_trusted(machine, monkeypatch, system, process):
    """Where there is no `/proc`, Windows has one namespace, and elsewhere nothing can be said."""

    def readlink(path):
        raise FileNotFoundError(path)

    nvml = machine(Card("GPU-aaaa"))
    monkeypatch.setattr(nvml_module, "os", types.SimpleNamespace(readlink=readlink, name=system, getpid=lambda: ME))
    assert NvmlDriver().memory(cuda(0, "aaaa")).process == process
    assert nvml.starts == 1


@pytest.mark.parametrize("error", [NVMLError("Driver Not Loaded"), OSError("libnvidia-ml.so.1")])
def test_no_driver_is_remembered(machine, error):
    """A machine without a driver is asked once, and every answer is nothing."""
    nvml = machine(Card("GPU-aaaa"))
    nvml.broken_start = error
    driver = NvmlDriver()
    for _ in range(3):
        assert driver.memory(cuda(0, "aaaa")) is None
        assert driver.cards() == ()
    assert nvml.starts == 1


def test_no_library_is_no_driver(monkeypatch):
    """Without `nvidia-ml-py` in the environment there is no answer and no error."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    driver = NvmlDriver()
    assert driver.memory(cuda(0, "aaaa")) is None
    assert driver.cards() == ()


def test_nvml_is_started_once(machine):
    """Later questions use what the first one started."""
    nvml = machine(Card("GPU-aaaa"))
    driver = NvmlDriver()
    for _ in range(3):
        driver.memory(cuda(0, "aaaa"))
        driver.cards()
    assert nvml.starts == 1


def test_a_card_that_fails_later_is_not_available(machine):
    """A card that falls off the bus turns into no answer, and comes back with it."""
    nvml = machine(Card("GPU-aaaa", used=GiB))
    driver = NvmlDriver()
    assert driver.memory(cuda(0, "aaaa")).used == GiB
    nvml.cards[0].broken = True
    assert driver.memory(cuda(0, "aaaa")) is None
    assert driver.cards() == ()
    nvml.cards[0].broken = False
    assert driver.memory(cuda(0, "aaaa")).used == GiB


def test_cards_are_listed_as_the_driver_numbers_them(machine):
    """For a process without CUDA the driver's own list is all there is, under a name that is not PyTorch's."""
    machine(Card("GPU-aaaa", used=GiB), Card("GPU-bbbb", used=2 * GiB))
    (first, first_memory), (second, second_memory) = NvmlDriver().cards()
    assert (first.label, second.label) == ("GPU:0", "GPU:1")
    assert (first.uuid, second.name) == ("GPU-aaaa", "name of GPU-bbbb")
    assert (first_memory.used, second_memory.used) == (GiB, 2 * GiB)
    assert first.total == first_memory.total


def test_the_driver_is_asked_for_cuda_and_the_run_time_otherwise(machine, monkeypatch):
    """Other kinds, and cards that the driver does not know, are answered by the device's own library."""
    machine(Card("GPU-aaaa", used=7 * GiB))
    monkeypatch.setattr(registry, "_driver", NvmlDriver())
    as_cuda = FakeBackend("cuda", 80 * GiB)
    assert devices.driver_memory(as_cuda, 0).source == "scripted"  # its UUID is not the card's
    as_cuda.device = lambda index: cuda(index, "aaaa")
    assert devices.driver_memory(as_cuda, 0).source == "nvml"
    other = FakeBackend("fake", 80 * GiB)
    other.device = lambda index: cuda(index, "aaaa")
    assert devices.driver_memory(other, 0).source == "scripted"


def test_nothing_is_imported_before_the_first_question():
    """Loading the package neither imports nor starts NVML."""
    code = "import sys, jupyter_gpumem.devices, jupyter_gpumem.measurement; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_processes_are_listed_again_only_when_what_is_in_use_changed(machine):
    """Listing is the dearest of NVML's calls, and a measured cell that allocates nothing would make it twice."""
    card = Card("GPU-aaaa", used=5 * GiB, processes=[(ME, 3 * GiB)])
    nvml = machine(card)
    driver = NvmlDriver()
    assert [driver.memory(cuda(0, "aaaa")).process for _ in range(3)] == [3 * GiB] * 3
    assert nvml.listings == 1
    card.used, card.processes = 6 * GiB, [(ME, 4 * GiB)]
    assert driver.memory(cuda(0, "aaaa")).process == 4 * GiB
