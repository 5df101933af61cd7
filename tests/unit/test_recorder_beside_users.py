"""Recording beside the user: never over theirs, never for them, and nothing left behind. On a stand-in torch."""

from __future__ import annotations

import functools

import pytest

from jupyter_gpumem.errors import RecordingError
from jupyter_gpumem.recorder import record
from jupyter_gpumem.recording import read_recording
from jupyter_gpumem.records import RecorderStatus
from tests.recording_torch import END, OFF, OURS, THEIRS, actions

THEIR_CALL = (("all",), {"context": "state", "stacks": "all", "max_entries": 77})


# The user's own recording


def test_the_users_recording_is_never_touched(torch, ours, tmp_path):
    """While the user records, nothing of ours calls the recorder: it is read, and everything else is refused."""
    torch.memory._record_memory_history(**THEIRS)
    torch.work()
    with pytest.raises(RecordingError, match=r"not ours is running and is left alone; it can be saved as it is$"):
        ours.start()
    with pytest.raises(RecordingError, match=r"^no recording of ours is running \(another one is, and is left alone"):
        ours.stop()
    with pytest.raises(RecordingError, match="not ours"), record():
        pytest.fail("the block must not run")
    assert ours.status() == RecorderStatus(running=True, ours=False, events=4, max_entries=None, stacks=None)
    assert len(ours.recording().events(0)) == 4
    assert len(read_recording(ours.save(tmp_path / "theirs.pickle")).events(0)) == 4
    ours.close()
    assert torch.calls == [THEIR_CALL]
    assert torch.enabled
    torch.work()
    assert len(torch.memory._snapshot()["device_traces"][0]) == 7
    torch.memory._record_memory_history(None)


def test_a_recording_that_the_user_takes_over_is_theirs(torch, ours):
    """The user's call passes through with its arguments and its value; from then on ours is over, theirs goes on."""
    ours.start()
    assert torch.memory._record_memory_history(**THEIRS) == "what PyTorch returns"
    assert torch.memory._record_memory_history == torch.original
    assert torch.calls == [OURS, THEIR_CALL]
    assert (ours.status().running, ours.status().ours) == (True, False)
    with pytest.raises(RecordingError, match="another one is"):
        ours.stop()
    ours.close()
    assert torch.enabled
    assert torch.calls == [OURS, THEIR_CALL]
    torch.memory._record_memory_history("all", "state", "all", max_entries=77)
    assert torch.calls[2:] == [THEIR_CALL]
    torch.memory._record_memory_history(None)


def test_a_recording_that_the_user_ends_is_over(torch, ours):
    """The user may end ours; then there is nothing to stop, and a new one can start."""
    ours.start()
    torch.memory._record_memory_history(None)
    assert ours.status() == OFF
    with pytest.raises(RecordingError, match="start one first"):
        ours.stop()
    ours.start()
    torch.work()
    assert len(ours.stop().events(0)) == 4
    assert torch.calls == [OURS, END, OURS, END]


def test_a_call_of_the_users_that_is_refused_changes_nothing(torch, ours):
    """Wrong arguments raise PyTorch's own error, and our recording is still ours to stop."""
    ours.start()
    with pytest.raises(RuntimeError, match="expected None"):
        torch.memory._record_memory_history("every")
    with pytest.raises(TypeError):
        torch.memory._record_memory_history(entries=5)
    assert ours.status().ours
    ours.stop()
    assert torch.calls == [OURS, END]


def test_the_users_view_of_the_function_stays(torch, ours):
    """While we watch, PyTorch's function keeps its name, its documentation and its signature."""
    ours.start()
    watched = torch.memory._record_memory_history
    assert (watched.__name__, watched.__wrapped__) == ("_record_memory_history", torch.original)
    assert watched.__doc__ == torch.original.__doc__


def test_a_recording_goes_on_beside_devices_that_stand_in(torch, ours):
    """While a virtual GPU is asked instead, ours is set aside; what is recorded there, and by whom, is not in it."""
    ours.start()
    torch.work()
    go_on = ours.set_aside()
    assert torch.memory._record_memory_history == torch.original, "what stands in is not watched"
    torch.enabled, real = False, list(torch.events)
    assert ours.status() == OFF
    ours.start()
    torch.work()
    torch.memory._record_memory_history(None)
    torch.enabled = True
    torch.events.clear()
    torch.events.extend(real)
    go_on()
    torch.work()
    assert ours.status().ours
    once = ["alloc", "free_requested", "free_completed"]
    assert actions(ours.stop()) == ["segment_alloc", *once, *once]
    assert not torch.enabled


def test_no_recording_of_ours_is_set_aside(torch, ours):
    """Where the user records, or nobody does, there is nothing to go on with."""
    torch.memory._record_memory_history(**THEIRS)
    ours.set_aside()()
    assert not ours.status().ours
    assert torch.calls == [THEIR_CALL]


def test_a_recording_ended_out_of_sight_is_noticed(torch, ours):
    """Ended below the function that we watch, it is over all the same, and the next start leaves nothing replaced."""
    ours.start()
    torch.enabled = False
    assert ours.status() == OFF
    assert torch.memory._record_memory_history == torch.original
    ours.start()
    torch.enabled = False
    with pytest.raises(RecordingError, match="start one first"):
        ours.stop()
    ours.start()
    torch.enabled = False
    ours.start()
    ours.stop()
    assert torch.calls == [OURS, OURS, OURS, OURS, END]


def test_a_forked_child_leaves_the_recording_to_its_parent(torch, ours):
    """In a child CUDA counts as not initialised; ending a recording there would fail."""
    ours.start()
    torch.initialised = False
    ours.close()
    assert torch.calls == [OURS]


def test_a_wrapper_on_top_of_ours_keeps_working(torch, ours):
    """What somebody else puts on top of our watch stays there and works, after ours has ended and in the next one."""
    ours.start()
    below, seen = torch.memory._record_memory_history, []

    @functools.wraps(below)
    def theirs(*args, **kwargs):
        seen.append(args)
        return below(*args, **kwargs)

    torch.memory._record_memory_history = theirs
    ours.stop()
    assert torch.memory._record_memory_history is theirs
    theirs("all", max_entries=9)
    assert (seen, torch.calls[-1][1]["max_entries"]) == ([("all",)], 9)
    with pytest.raises(RecordingError, match="not ours"):
        ours.start()
    theirs(None)
    ours.start()
    torch.work()
    assert ours.status().ours
    assert len(ours.stop().events(0)) == 4
    assert torch.memory._record_memory_history is theirs
    torch.memory._record_memory_history = torch.original


def test_an_old_watch_called_later_harms_nothing(torch, ours):
    """Who kept the watched function and calls it after we stopped reaches PyTorch, and a later recording is theirs."""
    ours.start()
    kept = torch.memory._record_memory_history
    ours.stop()
    kept(**THEIRS)
    assert torch.calls[-1] == THEIR_CALL
    kept(None)
    ours.start()
    kept(**THEIRS)
    assert not ours.status().ours
    ours.close()
    assert torch.enabled
    kept(None)


def test_a_torch_that_cannot_be_asked_is_watched(torch, ours):
    """Without the binding that tells whether anyone records, at least ours is known."""
    del torch._C._cuda_isHistoryEnabled
    assert not ours.status().running
    ours.start()
    torch.work()
    assert ours.status() == RecorderStatus(running=True, ours=True, events=4, max_entries=1_000_000, stacks=True)
    assert len(ours.stop().events(0)) == 4
