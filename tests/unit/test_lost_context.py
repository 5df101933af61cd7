"""After a device-side assert: every function that would touch the device refuses in one line, and the others go on."""

from __future__ import annotations

import inspect

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem import devices
from jupyter_gpumem.control.reservation import RESERVATIONS
from jupyter_gpumem.errors import UnavailableError
from jupyter_gpumem.measurement import Measure
from tests.lost_context import LINE, TEXT, watched

torch = pytest.importorskip("torch")

OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB"


def measured():
    """Measure nothing, in three ways."""
    with gm.measure() as block:
        pass
    with gm.Tracker() as tracker:
        tracker.step("one")
    return [block.result.missing, tracker.steps[0].missing, Measure().start().stop().missing]


REFUSED = {
    "allocator_config": [gm.allocator_config, lambda: gm.allocator_config("expandable_segments:True")],
    "audit": [gm.audit, lambda: gm.audit(compact=True), lambda: gm.audit(devices=0)],
    "empty_cache": [gm.empty_cache, lambda: gm.empty_cache(workspaces=True)],
    "find_batch_size": [lambda: gm.find_batch_size(pytest.fail)],
    "free": [gm.free, lambda: gm.free(dry_run=True), lambda: gm.free(outputs=False, cycles=False, cache=False)],
    "holders": [gm.holders, lambda: gm.holders(0)],
    "limit": [gm.limit, lambda: gm.limit("1GiB"), lambda: gm.limit(devices=0)],
    "monitor": [lambda: gm.monitor().start(), lambda: gm.monitor().check()],
    "panel": [gm.panel],
    "predict": [lambda: gm.predict(pytest.fail)],
    "record": [lambda: gm.record().__enter__()],
    "reserve": [lambda: gm.reserve("1MiB"), lambda: RESERVATIONS.release("spare")],
    "status": [gm.status, lambda: gm.status(0)],
    "virtual_gpu": [lambda: gm.virtual_gpu().__enter__()],
}
GOES_ON = {
    "explain_oom": lambda: gm.explain_oom(RuntimeError(OOM)).text.requested == 2 << 30,
    "measure": lambda: measured() == [LINE] * 3,
    "read_recording": None,  # a file
    "retry_on_oom": lambda: gm.retry_on_oom(lambda: "done")() == "done",
    "whatif": None,  # a model
}


@pytest.fixture
def lost(virtual):
    """A virtual GPU in use, with memory put aside and everything above kept, whose context is lost."""
    with gm.reserve("2MiB", hold=True, name="spare"):
        assert devices.note_loss(RuntimeError(TEXT))
        yield
        devices.find_context_again()


def test_every_function_is_here():
    """A new public function cannot be forgotten."""
    public = {name for name in gm.__all__ if inspect.isfunction(getattr(gm, name)) or name[0].islower()}
    assert set(REFUSED) | set(GOES_ON) == public


@pytest.mark.parametrize("name", REFUSED)
def test_refused(lost, name):
    """One line, and nothing was touched."""
    for call in REFUSED[name]:
        with watched() as touched, pytest.raises(UnavailableError) as caught:
            call()
        assert (str(caught.value), touched) == (LINE, [])


@pytest.mark.parametrize("name", [name for name, call in GOES_ON.items() if call is not None])
def test_goes_on(lost, name):
    """What needs no device still works, and touches none."""
    with watched() as touched:
        assert GOES_ON[name]()
        assert touched == []


def test_a_recording_that_was_stopped_before_is_still_there(virtual, tmp_path):
    """It can be saved and replayed; one that still runs can not be read any more, and nothing is written."""
    with gm.record() as block:
        torch.ones(2**20, device="cuda")
    devices.note_loss(RuntimeError(TEXT))
    with watched() as touched:
        path = gm.recorder.RECORDER.save(tmp_path / "before.pickle")
        assert gm.read_recording(path).events(0) == block.recording.events(0) != []
        assert gm.whatif(path, "expandable_segments:True", jobs=1).check.exact
        assert touched == []
    devices.find_context_again()
    with pytest.raises(UnavailableError, match="the CUDA context is lost"), gm.record(tmp_path / "after.pickle"):
        devices.note_loss(RuntimeError(TEXT))
    assert not (tmp_path / "after.pickle").exists()
    devices.find_context_again()
    torch.cuda.memory._record_memory_history(None)


def test_an_error_of_the_block_comes_through(virtual):
    """Blocks of ours that end with the loss do not touch the device to tidy up, and do not hide the user's error."""
    error = RuntimeError(TEXT)
    reserved = gm.reserve("2MiB", hold=True)

    def fail():
        with reserved:
            raise error

    with watched() as touched, pytest.raises(RuntimeError) as caught:
        fail()
    assert caught.value is error
    assert touched == []
    RESERVATIONS.close()
    assert RESERVATIONS.names() == ()
    devices.find_context_again()

    def step(size):
        raise error

    torch.cuda.set_per_process_memory_fraction(0.5)
    with pytest.raises(RuntimeError) as caught:
        gm.find_batch_size(step)
    assert caught.value is error
    devices.find_context_again()
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_what_was_put_aside_is_still_shown(virtual):
    """As it was: nobody can say what has become of it, and no object fails where it is only displayed."""
    held, released = gm.reserve("4MiB", hold=True), gm.reserve("6MiB", hold=True)
    released.release()
    cached = gm.reserve("2MiB", name="cached")
    assert devices.note_loss(RuntimeError(TEXT))
    with watched() as touched:
        states = [one.record.state for one in (cached, held, released)]
        assert "2.00 MiB put into the cache as 'cached'" in str(cached)
    RESERVATIONS.close()
    assert states == ["cached", "held", "cached"]
    assert touched == []
    devices.find_context_again()


def test_a_measurement_that_lost_its_device_says_so(virtual):
    """It has no numbers instead of wrong ones."""
    held = torch.ones(2**20, device="cuda")
    measure = Measure().start()
    devices.note_loss(RuntimeError(TEXT))
    result = measure.stop()
    assert (result.devices, result.missing) == ((), LINE)
    del held


def test_the_users_own_readings_go_on(virtual):
    """What PyTorch itself still answers is not refused by us, also while a measurement of ours is open."""
    held = torch.ones(2**20, device="cuda")
    with gm.measure():
        devices.note_loss(RuntimeError(TEXT))
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        assert torch.cuda.max_memory_allocated() >= held.nbytes
    devices.find_context_again()


def test_what_lost_it_may_be_wrapped():
    """The error at hand may have been raised from the one that tells."""
    try:
        try:
            raise RuntimeError(TEXT)
        except RuntimeError as inner:
            raise ValueError("step 7 failed") from inner
    except ValueError as outer:
        assert devices.note_loss(outer)
    assert devices.lost_context() == LINE


def test_other_errors_lose_nothing(virtual):
    """What is not about the context passes as it is."""
    controls = devices.backend("cuda").controls()
    assert not devices.note_loss(RuntimeError(OOM))
    with pytest.raises(RuntimeError, match="invalid") as caught:
        controls.free(12345)
    assert not isinstance(caught.value, UnavailableError)
    assert devices.lost_context() is None
