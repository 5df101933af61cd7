"""The status of every device: layers, settings and what a process without CUDA can say."""

from __future__ import annotations

import json

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem import devices, incidents, overview
from jupyter_gpumem.devices import naming
from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.errors import DeviceNotFoundError
from jupyter_gpumem.overview import status
from jupyter_gpumem.records import Device, DriverMemory
from jupyter_gpumem.units import GiB, MiB


class Detailed(FakeBackend):
    """A device with a snapshot, settings and a cap, as a test gives them."""

    snapshot = None
    in_force: dict
    cap = None

    def segments(self, index):
        return self.snapshot

    def settings(self):
        return self.in_force

    def limit(self, index):
        return self.cap


@pytest.fixture
def detailed():
    """A started device of this kind."""
    backend = Detailed("fake")
    backend.in_force = {}
    devices.add_backend(backend)
    yield backend
    devices.remove_backend(backend)


def test_the_public_name_is_this_function():
    """`gm.status` is the status, with its renderer registered."""
    assert gm.status is status


def test_layers_add_up_to_the_card(fake):
    """Every byte of the card is in exactly one layer."""
    fake.allocate(3 * GiB)
    fake.free(fake.allocate(GiB))
    fake.others = 2 * GiB
    (one,) = status().devices
    assert dict(one.layers) == {
        "allocated by tensors": 3 * GiB,
        "reserved, unallocated": GiB,
        "this process outside PyTorch": fake.context,
        "other processes": 2 * GiB,
        "free": 2 * GiB - fake.context,
    }
    assert sum(size for _, size in one.layers) == one.driver.total == 8 * GiB
    assert status().missing is None


def test_a_snapshot_tells_what_could_be_returned(detailed):
    """With segments the unallocated part is split into what goes back and what does not."""
    detailed.allocate(4 * MiB)
    detailed.free(detailed.allocate(36 * MiB))

    def segment(address, *states):
        blocks = [{"size": size * MiB, "state": state} for state, size in states]
        total = sum(block["size"] for block in blocks)
        return {"address": address, "total_size": total, "stream": 0, "segment_type": "large", "blocks": blocks}

    detailed.snapshot = [segment(0, ("active_allocated", 4), ("inactive", 16)), segment(10**9, ("inactive", 20))]
    (one,) = status().devices
    assert one.fragmentation.returnable == 20 * MiB
    assert dict(one.layers)["reserved, returnable"] == 20 * MiB
    assert dict(one.layers)["reserved, stranded"] == 16 * MiB
    assert sum(size for _, size in one.layers) == 8 * GiB


@pytest.mark.parametrize(
    ("in_force", "shown"),
    [
        ({}, {}),
        ({"max_split_size": -1, "garbage_collection_threshold": 0.0, "expandable_segments": False}, {}),
        ({"max_split_size": 128 * MiB}, {"max_split_size_mb": "128"}),
        ({"expandable_segments": True}, {"expandable_segments": "True"}),
        ({"garbage_collection_threshold": 0.8}, {"garbage_collection_threshold": "0.8"}),
        ({"roundup_power2_divisions": {"1": 0, "2": 0}}, {}),
        ({"roundup_power2_divisions": {"1": 0, "256": 4}}, {"roundup_power2_divisions": "[128:0,256:4,>:0]"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "", "something_new": 5}, {}),
    ],
)
def test_settings_that_differ_from_the_defaults(detailed, in_force, shown):
    """Only what somebody changed is shown, under the name by which it is set."""
    detailed.in_force = in_force
    assert status().settings == shown


def test_the_cap_is_in_the_status(detailed):
    """A cap on this process is part of its device."""
    detailed.cap = 4 * GiB
    assert status().devices[0].limit == 4 * GiB


def test_devices_can_be_picked(monkeypatch):
    """A filter shows the named devices, says if they are not in use while others are, and refuses unknown ones."""
    pair, late = FakeBackend("pair", devices=2), FakeBackend("late", devices=2, started=False)
    monkeypatch.setattr(naming, "explain_absence", lambda: None)
    devices.add_backend(pair)
    devices.add_backend(late)
    try:
        assert [one.device.label for one in status().devices] == ["pair:0", "pair:1"]
        assert [one.device.label for one in status("pair:1").devices] == ["pair:1"]
        assert [one.device.label for one in status([1]).devices] == ["pair:1"]
        found = status(["late:0", "late:1"])
        assert found.devices == ()
        assert found.missing == "late:0, late:1 were not used yet in this process"
        with pytest.raises(
            DeviceNotFoundError, match=r"^no such device: pair:5; visible to this process: pair:0 to pa"
        ):
            status("pair:5")
    finally:
        devices.remove_backend(pair)
        devices.remove_backend(late)


CARD = (Device("GPU", 0, "NVIDIA H200", 140 * GiB, "GPU-1"), DriverMemory(140 * GiB, 20 * GiB, 120 * GiB, None, "nvml"))


def test_a_process_without_cuda_sees_the_machines_cards(monkeypatch):
    """Before the first use the driver's list is shown, and why there is nothing more."""
    monkeypatch.setattr(overview, "uninitialised_cards", lambda: (CARD,))
    monkeypatch.setattr(naming, "explain_absence", lambda: None)
    found = status()
    (one,) = found.devices
    assert (one.device, one.driver, one.counters, one.fragmentation) == (*CARD, None, None)
    assert found.missing == "this process has not used a GPU yet"
    assert status("cuda:0").devices == ()


def test_a_machine_without_gpu_says_why(monkeypatch):
    """Nothing to show is explained in one sentence, and nothing raises."""
    monkeypatch.setattr(overview, "uninitialised_cards", tuple)
    monkeypatch.setattr(naming, "explain_absence", lambda: "this PyTorch (2.99) is built without GPU support")
    found = status()
    assert (found.devices, found.settings) == ((), {})
    assert str(found) == "This PyTorch (2.99) is built without GPU support."


def test_the_last_out_of_memory_error_is_in_the_status(fake):
    """The last error that was explained, with its cell once that is known, as text and as JSON."""
    error = RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 16.00 MiB")
    gm.explain_oom("CUDA out of memory. Tried to allocate 20.00 MiB")  # a text is no error of this process
    assert status().last_oom is None
    found = gm.explain_oom(error)
    last = status().last_oom
    assert (last.explanation, last.cell) == (found, None)
    assert found.sentence in " ".join(str(status()).split())
    incidents.note_oom(found, 7)
    incidents.note_oom(found, 8)  # raised again by a later cell: it still happened in the first
    assert status().last_oom == incidents.OomIncident(found, last.time, 7)
    plain = json.loads(json.dumps(status().to_dict()))["last_oom"]
    assert (plain["cell"], plain["explanation"]["sentence"]) == (7, found.sentence)
    assert gm.explain_oom(error) is found
    incidents.forget_oom()
    assert status().last_oom is None


def test_asking_changes_nothing(fake):
    """A status neither resets the user's peak nor watches anything."""
    fake.free(fake.allocate(GiB))
    before = fake.stats(0)
    status()
    assert fake.stats(0) == before
    assert not fake.watched
