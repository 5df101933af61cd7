"""`measure` as a block, with devices named, and refused where it cannot be done."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem import devices, measurement
from jupyter_gpumem.devices import device_labels
from jupyter_gpumem.devices.fake import FakeBackend, FakeOutOfMemoryError
from jupyter_gpumem.errors import DeviceNotFoundError, InvalidValueError, UnavailableError
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.measurement import missing_devices
from jupyter_gpumem.records import Series
from jupyter_gpumem.units import GiB, MiB
from tests.unit.conftest import spike

pytestmark = pytest.mark.usefixtures("ledger")  # every test here gives it back clean


def test_a_block_is_measured(fake):
    """The result is there after the block, and only then."""
    with gm.measure("training") as measured:
        assert measured.result is None
        assert "running" in repr(measured)
        spike(fake, GiB)
        fake.allocate(MiB)
    result = measured.result
    assert result.peak_allocated == GiB
    assert result["fake:0"].delta_allocated == MiB
    assert result[0].exact
    assert (result.label, result.error, result.missing) == ("training", None, None)
    assert result.elapsed_s > 0
    assert repr(measured) == str(result)


def test_one_measure_serves_several_blocks_in_turn(fake):
    """A second block with the same object starts anew and forgets the first."""
    measured = gm.measure()
    assert "not started" in repr(measured)
    for size in (GiB, MiB):
        with measured:
            assert measured.result is None
            spike(fake, size)
        assert measured.result.peak_allocated == size


def test_running_twice_is_refused(fake):
    """A block inside itself is an error of the caller, and the outer block still ends well."""
    with gm.measure() as measured:
        with pytest.raises(RuntimeError, match="running already; make one for each"):
            measured.start()
        spike(fake, MiB)
    assert measured.result.peak_allocated == MiB
    with pytest.raises(RuntimeError, match="not started"):
        measured.stop()


def test_nested_blocks(fake):
    """Each block has its own peak."""
    with gm.measure() as outer:
        spike(fake, GiB)
        with gm.measure() as inner:
            spike(fake, MiB)
    assert (outer.result.peak_allocated, inner.result.peak_allocated) == (GiB, MiB)


def test_a_failing_block_has_a_result_and_its_own_error(fake):
    """The error passes through unchanged, and the result names its type."""
    shown = []
    spike(fake, MiB)
    with pytest.raises(FakeOutOfMemoryError), gm.measure(on_result=shown.append) as measured:
        fake.allocate(100 * GiB)
    assert measured.result.error == "FakeOutOfMemoryError"
    assert measured.result[0].ooms == 1
    assert measured.result.peak_allocated == 0
    assert shown == [measured.result]


def test_an_interrupted_block_is_closed(fake):
    """Ctrl-C ends the measurement like any other error."""
    with pytest.raises(KeyboardInterrupt), gm.measure() as measured:
        raise KeyboardInterrupt
    assert measured.result.error == "KeyboardInterrupt"
    assert LEDGER.open_intervals == 0


def test_all_devices_are_measured_at_once():
    """Without a filter every device in use has its entry; with one only those named."""
    pair = FakeBackend("pair", devices=2)
    devices.add_backend(pair)
    try:
        with gm.measure() as both, gm.measure(devices=[1]) as second, gm.measure(devices=["pair:0"]) as first:
            spike(pair, GiB, 0)
            spike(pair, MiB, 1)
        assert [u.device.label for u in both.result.devices] == ["pair:0", "pair:1"]
        assert [u.peak_allocated for u in both.result.devices] == [GiB, MiB]
        assert [u.device.label for u in first.result.devices] == ["pair:0"]
        assert [u.device.label for u in second.result.devices] == ["pair:1"]

        @gm.measure(devices=[1])
        def work():
            spike(pair, MiB, 0)

        work()
        assert [u.device.label for u in work.measurement.devices] == ["pair:1"]
    finally:
        devices.remove_backend(pair)


@pytest.mark.parametrize(
    ("named", "labels"),
    [
        (None, None),
        ("fake:0", {"fake:0"}),
        (1, {"fake:1"}),
        ([0], {"fake:0"}),
        (["0", 0, "fake:0"], {"fake:0"}),
        (["00", "fake:00"], {"fake:0"}),
        ((1, "cuda:3"), {"fake:1", "cuda:3"}),
        (["²"], {"²"}),
        (["x"], {"x"}),
    ],
)
def test_devices_are_named_by_index_or_label(fake, named, labels):
    """An index belongs to the first kind in use; equal names mean the same device."""
    assert device_labels(named) == (None if labels is None else frozenset(labels))


def test_without_a_device_in_use_an_index_means_cuda():
    """The kind that nearly everybody means."""
    assert device_labels([1]) == {"cuda:1"}


@pytest.mark.parametrize("named", ["fake:1", "fake:7", 3])
def test_a_device_that_is_not_there_is_refused(fake, named):
    """The refusal names the device and those that are visible, and nothing is left open."""
    with pytest.raises(DeviceNotFoundError) as refusal:
        gm.measure(devices=[named]).start()
    assert str(refusal.value) == (
        f"no such device: {named if named != 3 else 'fake:3'}; visible to this process: fake:0"
    )
    assert LEDGER.open_intervals == 0


@pytest.mark.parametrize("named", ["nonsense", "nonsense:0", "fake", "fake:", "fake:x", "fake:-1", "²", "fake:²", ""])
def test_what_is_no_device_is_refused_in_one_line(fake, named):
    """The refusal says how a device is named."""
    with pytest.raises(DeviceNotFoundError) as refusal:
        gm.measure(devices=[named]).start()
    assert str(refusal.value) == f"no such device: {named!r}; name one by its index (0) or label (cuda:0)"


def test_several_visible_devices_are_named_as_a_range():
    """A refusal on a machine with many cards stays one line."""
    many = FakeBackend("many", devices=8)
    devices.add_backend(many)
    try:
        with pytest.raises(DeviceNotFoundError, match=r"visible to this process: many:0 to many:7$"):
            gm.measure(devices=["many:8"]).start()
    finally:
        devices.remove_backend(many)


def test_a_named_device_on_a_machine_without_any_is_refused(monkeypatch):
    """The reason is the machine's, in one line, whether torch lacks CUDA or is missing."""
    with monkeypatch.context() as patch:
        patch.setattr(devices.naming, "explain_absence", lambda: "this PyTorch (2.99) is built without GPU support")
        with pytest.raises(
            UnavailableError, match=r"^cuda:0 cannot be measured: this PyTorch \(2.99\) is built without"
        ):
            gm.measure(devices=[0]).start()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnavailableError, match=r"^cuda:0 cannot be measured: PyTorch is not installed"):
        gm.measure(devices=[0]).start()


def test_a_result_without_devices_says_why(monkeypatch):
    """Nothing measured is explained in one sentence, never shown as zero."""
    monkeypatch.setattr(devices, "explain_absence", lambda: "this PyTorch (2.99) is built without GPU support")
    with gm.measure() as measured:
        pass
    assert measured.result.devices == ()
    assert measured.result.peak_allocated is None
    assert measured.result.missing == "this PyTorch (2.99) is built without GPU support"
    monkeypatch.setattr(devices, "explain_absence", lambda: None)
    monkeypatch.setattr(devices, "loaded_torch", object)
    assert missing_devices() == "no GPU was used yet in this process"
    monkeypatch.setattr(devices, "loaded_torch", lambda: None)
    assert missing_devices() == "torch was not imported"


def test_a_named_device_that_was_not_used_is_named_in_the_reason(fake, monkeypatch):
    """With another device in use it would be wrong to say that none was."""
    monkeypatch.setattr(devices.naming, "explain_absence", lambda: None)
    late = FakeBackend("late", started=False)
    devices.add_backend(late)
    try:
        with gm.measure(devices=["late:0"]) as measured:
            spike(fake, MiB)
        assert measured.result.devices == ()
        assert measured.result.missing == "late:0 was not used yet in this process"
    finally:
        devices.remove_backend(late)


def test_the_driver_is_asked_at_both_ends(fake):
    """What other processes took meanwhile is in the result, and not in ours."""
    with gm.measure() as measured:
        fake.allocate(10 * MiB)
        fake.others += GiB
    one = measured.result[0]
    assert one.others_delta == GiB
    assert one.outside_delta == 0
    assert one.driver_end.process - one.driver_start.process == 10 * MiB


def test_a_first_use_is_marked_and_its_context_named():
    """A device that starts inside the block shows its context as memory outside the allocator."""
    late = FakeBackend("late", started=False)
    devices.add_backend(late)
    try:
        with gm.measure() as measured:
            late.allocate(MiB)
        one = measured.result["late:0"]
        assert one.first_use
        assert one.driver_start is None
        assert one.outside_delta == late.context
    finally:
        devices.remove_backend(late)


class WithLibrary(FakeBackend):
    """A device on which a library keeps workspaces."""

    kept = None

    def workspaces(self, index):
        return dict(self.kept or {})


@pytest.mark.parametrize(("search", "expected"), [(True, 32 * MiB), (False, None)])
def test_workspaces_are_searched_for_on_request(search, expected):
    """The search costs milliseconds, so `%gpumem_auto` and the steps of a tracker leave it out."""
    backend = WithLibrary(f"library-{search}")
    devices.add_backend(backend)
    try:
        measured = gm.measure()
        measured.start()
        backend.allocate(32 * MiB)
        backend.kept = {1: 32 * MiB}
        assert measured.stop(search_workspaces=search)[0].workspaces == expected
    finally:
        devices.remove_backend(backend)


def test_a_callback_that_raises_does_not_leave_the_measurement_open(fake):
    """The callback's error is the caller's; the result and the ledger are fine."""

    def broken(result):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), gm.measure(on_result=broken) as measured:
        spike(fake, MiB)
    assert measured.result.peak_allocated == MiB
    assert LEDGER.open_intervals == 0


def test_host_memory_is_in_the_result(fake):
    """The change of resident memory is a number, in bytes."""
    with gm.measure() as measured:
        block = bytearray(64 * MiB)
    assert len(block) == 64 * MiB
    assert 48 * MiB < measured.result.rss_delta < 256 * MiB


@pytest.mark.parametrize("label", [0, [0], ("cuda:0",), b"x"])
def test_a_label_that_is_none_is_refused(label):
    """`gm.measure(0)` is a guess for a device: it says how to name one."""
    with pytest.raises(InvalidValueError, match=r"^a label is a text, got .*; devices are named with devices="):
        gm.measure(label)


def test_no_device_at_all_is_refused():
    """An empty list of devices is a mistake, not all of them."""
    with pytest.raises(InvalidValueError, match=r"^no device is named"):
        gm.measure(devices=[])


def test_a_process_without_file_descriptors_is_still_measured(fake, monkeypatch):
    """Host memory that cannot be read is missing, and nothing of ours reaches the user's code."""
    monkeypatch.setattr(measurement, "resident_bytes", lambda: None)
    with gm.measure() as measured:
        fake.free(fake.allocate(512))
    assert measured.result.rss_delta is None
    assert measured.result[0].peak_over_start == 512


def test_a_result_is_shown_before_anything_else_was():
    """In a new process, a stored or unpickled result prints as its report."""
    with gm.measure("a name") as measured:
        pass
    code = f"import pickle; print(pickle.loads({pickle.dumps(measured.result)!r}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("a name")


def test_results_can_be_walked_through(fake):
    """Devices of a measurement and runs of a series have a length and an order; a missing one says why."""
    with gm.measure() as measured:
        pass
    result = measured.result
    assert [usage.device.label for usage in result] == ["fake:0"]
    assert len(result) == 1
    with pytest.raises(KeyError, match="cuda:7 was not measured"):
        result["cuda:7"]
    series = Series((result, result))
    assert (len(series), series[0], list(series)) == (2, result, [result, result])
