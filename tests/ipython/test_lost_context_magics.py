"""After a device-side assert: every magic that would touch the device refuses in one line, and the others go on."""

from __future__ import annotations

import gc
import sys

import pytest

from jupyter_gpumem import devices, live
from jupyter_gpumem.control.reservation import RESERVATIONS
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.magics.catalogue import MAGICS
from jupyter_gpumem.recorder import RECORDER
from jupyter_gpumem.virtual import session
from tests.lost_context import LINE, TEXT, watched

torch = pytest.importorskip("torch")

MAGICS_AFTERWARDS = {
    "gpumem": (
        [
            "%gpumem",
            "%gpumem -d 0",
            "%gpumem x = 1",
            "%gpumem -r 2 x = 1",
            "%%gpumem\nx = 1",
            "%%time\n%%gpumem\nx = 1",
        ],
        ["%gpumem --help"],
    ),
    "gpumem_auto": (["%gpumem_auto on", "%gpumem_auto on -d 0"], ["%gpumem_auto", "%gpumem_auto off"]),
    "gpumem_predict": (["%gpumem_predict x = 1", "%%gpumem_predict --gpu T4\nx = 1"], []),
    "gpumem_record": (
        ["%gpumem_record start", "%gpumem_record stop", "%gpumem_record save nothing.pickle"],
        ["%gpumem_record", "%gpumem_record status"],
    ),
    "gpumem_whatif": (["%gpumem_whatif"], []),
    "gpumem_virtual": (["%gpumem_virtual on", "%gpumem_virtual on --gpu T4"], ["%gpumem_virtual"]),
    "gpumem_config": (
        [
            "%gpumem_config",
            "%gpumem_config expandable_segments:True",
            "%gpumem_config --undo",
            "%gpumem_config --reset --force",
        ],
        [],
    ),
    "gpumem_empty": (["%gpumem_empty", "%gpumem_empty --workspaces -q"], []),
    "gpumem_reserve": (
        ["%gpumem_reserve 1MiB", "%gpumem_reserve 80%free -d 0", "%gpumem_reserve --release spare"],
        [],
    ),
    "gpumem_limit": (["%gpumem_limit", "%gpumem_limit 1GiB", "%gpumem_limit off -d 0"], []),
    "gpumem_audit": (["%gpumem_audit", "%gpumem_audit --compact", "%gpumem_audit -d 0"], []),
    "gpumem_who": (["%gpumem_who", "%gpumem_who kept", "%gpumem_who -d 0"], []),
    "gpumem_free": (["%gpumem_free", "%gpumem_free --errors", "%gpumem_free --dry-run"], []),
    "gpumem_oom": ([], ["%gpumem_oom"]),
    "gpumem_panel": (["%gpumem_panel", "%gpumem_panel on --inline"], ["%gpumem_panel off"]),
}
"""For each magic, what must refuse and what must not."""


@pytest.fixture
def gpu(bare, monkeypatch):
    """Cells with a virtual GPU of 8 GiB that was used: memory is held, and an out-of-memory error was explained."""
    monkeypatch.setattr(bare.shell, "kernel", None, raising=False)  # a notebook, where the panel is one
    assert bare("%load_ext jupyter_gpumem\n%gpumem_virtual on --gpu 8GiB").error is None
    assert bare("import torch\nkept = torch.ones(2**20, device='cuda')").error is None
    assert bare("torch.empty(2**40, device='cuda')").error is not None
    assert bare("%gpumem_reserve 2MiB --hold --name spare").error is None
    yield bare
    devices.find_context_again()
    bare.shell.reset(new_session=False)
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    bare("%unload_ext jupyter_gpumem")
    session.stop()


def lose(cells):
    """Lose the context as PyTorch tells it."""
    outcome = cells(f"raise RuntimeError({TEXT!r})")
    assert outcome.texts[-1] == f"{LINE[0].upper()}{LINE[1:]}."


def test_every_magic_is_here():
    """A new magic cannot be forgotten."""
    assert set(MAGICS_AFTERWARDS) == {magic.options.name for magic in MAGICS}


def test_magics_refuse_without_touching_the_device(gpu):
    """One line each, with what happened and what to do; whatever needs no device still works."""
    lose(gpu)
    with watched() as touched:
        for name, (refused, allowed) in MAGICS_AFTERWARDS.items():
            for line in refused:
                outcome = gpu(line)
                assert type(outcome.error).__name__ == "UsageError", line
                assert outcome.stderr == f"UsageError: %{name}: {LINE}\n", line
                assert outcome.displays == [], line
            for line in allowed:
                assert gpu(line).error is None, line
        assert touched == []
    assert live.opened() is None


def test_the_watch_sees_what_touches(gpu):
    """The check above would notice: the same magics on a device in order do call PyTorch."""
    with watched() as touched:
        for line in ("%gpumem", "%gpumem_empty", "%gpumem_config", "%gpumem_audit", "%gpumem_who"):
            touched.clear()
            assert gpu(line).error is None
            assert touched, line


def test_what_runs_when_it_happens_ends_quietly(gpu):
    """Measurements of every cell and a recording of ours go on without the device, and the user's cells run."""
    gpu("%gpumem_auto on\n%gpumem_record start")
    assert RECORDER.running
    lose(gpu)
    with watched() as touched:
        outcome = gpu("x = 6 * 7\nx")
        assert outcome.value == 42
        assert outcome.texts == [f"gpumem   GPU memory not measured: {LINE}   {outcome.texts[0].split('   ')[-1]}"]
        assert gpu("%gpumem_auto off").texts == []
        assert not RECORDER.running
        assert touched == []
    outcome = gpu("%unload_ext jupyter_gpumem")
    assert (outcome.error, outcome.stderr) == (None, "")
    assert (LEDGER.open_intervals, RESERVATIONS.names()) == (0, ())


def test_the_failed_cell_keeps_its_frames(gpu):
    """Letting go of tensors could end the process then, also where errors are released by themselves."""
    gpu("%gpumem_auto --free-errors on")
    gpu(f"def fail():\n    held = torch.ones(2**20, device='cuda')\n    raise RuntimeError({TEXT!r})")
    before = torch.cuda.memory_allocated()
    gc.disable()  # once another error has taken its place, the collector may let go of it at any time
    try:
        gpu("fail()")
        assert torch.cuda.memory_allocated() == before + 4 * 2**20
        gpu("1 / 0")  # nor does a later error of another kind
        assert torch.cuda.memory_allocated() == before + 4 * 2**20
    finally:
        gc.enable()


def test_a_loss_that_the_user_handled_is_noticed_at_the_next_touch(gpu):
    """Where no cell failed, the first magic that PyTorch refuses for it says so, and from then on none tries."""

    def broken():
        raise RuntimeError(TEXT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "empty_cache", broken)
        assert gpu("%gpumem_empty").stderr == f"UsageError: %gpumem_empty: {LINE}\n"
    with watched() as touched:
        assert gpu("%gpumem_empty").stderr == f"UsageError: %gpumem_empty: {LINE}\n"
        assert touched == []
