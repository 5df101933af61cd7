"""The panel in the kernel: where it can be shown, and how it ends. No browser, no real time."""

from __future__ import annotations

import pytest
from panel_steps import Pipe, hello

from jupyter_gpumem import devices, live
from jupyter_gpumem.errors import UnavailableError
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.live import controller, placement, widget
from jupyter_gpumem.live.controller import Panel
from jupyter_gpumem.units import MiB


def test_an_error_is_shown_and_raised_once(driven, gpu):
    """What ends the thread is in the panel and in its line of text, is raised once, and opening anew starts over."""
    hello(driven)
    gpu.broken = ZeroDivisionError("broken counters")
    driven.step()
    assert driven.pipe.sent[-1].content["error"] == "ZeroDivisionError: broken counters"
    assert "broken counters" in repr(driven.panel)
    with pytest.raises(ZeroDivisionError, match="broken counters"):
        driven.panel.check()
    driven.panel.check()
    assert driven.panel.failed
    gpu.broken = None


def test_a_lost_context_ends_the_panel(driven):
    """After a device-side assert nothing is asked any more, and the panel says what to do."""
    driven.panel.began(1)
    driven.clock.go.release()
    devices.note_loss(RuntimeError("CUDA error: device-side assert triggered\nCompile with ..."))
    driven.panel.ended()
    assert not driven.panel._heart.running
    assert driven.pipe.sent[-1].content["error"] == devices.lost_context()
    with pytest.raises(UnavailableError, match="restart the kernel"):
        driven.panel.check()


def test_other_errors_leave_it_alone(driven):
    """An error of the user's own ends nothing."""
    driven.panel.began(1)
    devices.note_loss(RuntimeError("CUDA out of memory"))
    driven.panel.ended()
    driven.step()
    assert driven.panel._heart.running
    driven.panel.check()


def test_closing_ends_everything(driven):
    """Thread, interval and widget are gone; closing twice and messages afterwards are harmless."""
    driven.clock.go.release()
    driven.panel.close()
    assert driven.pipe.closed
    assert LEDGER.open_intervals == 0
    assert not driven.panel._heart.running
    driven.panel.close()
    driven.panel.received({"kind": "hello", "view": "v", "slot": 0})
    assert driven.panel.closed


def test_a_broken_connection_ends_the_thread_quietly(driven, capfd):
    """When sending fails the thread ends, keeps the error and prints nothing."""
    driven.pipe.broken = LookupError("shell_parent")
    hello(driven)
    assert driven.panel.failed
    assert capfd.readouterr() == ("", "")


def test_the_line_of_text(driven, gpu):
    """Where no widget can be shown there is a line with the newest numbers."""
    gpu.allocate(3 * MiB)
    driven.step()
    assert driven.panel.mimebundle() == {
        "text/plain": "GPU memory panel: fake:0 3.00 MiB allocated, 20.00 MiB reserved",
        widget.MIME_TYPE: {"model_id": "m"},
    }
    assert live.opening.text_line().startswith("fake:0 3.00 MiB allocated, 20.00 MiB reserved. ")


@pytest.mark.parametrize("version", ["7.0.0", "7.0.1"])
def test_ipykernel_7_0_is_refused_in_one_line(monkeypatch, version):
    """On an ipykernel whose threads cannot send, one line says to upgrade."""
    monkeypatch.setattr(widget, "installed", lambda package: version)
    with pytest.raises(UnavailableError, match=rf"ipykernel {version} cannot show .*pip install -U ipykernel"):
        Panel()
    assert LEDGER.open_intervals == 0


def test_missing_packages_are_named(monkeypatch, tmp_path):
    """Without anywidget, or without a bundle, one line says what to do."""
    monkeypatch.setattr(widget, "installed", lambda package: None if package == "anywidget" else "8.0")
    with pytest.raises(UnavailableError, match="pip install anywidget"):
        widget.check_front_end()
    monkeypatch.setattr(widget, "installed", lambda package: "8.0")
    monkeypatch.setattr(widget, "STATIC", tmp_path)
    with pytest.raises(UnavailableError, match="make bundle"):
        widget.check_front_end()


def test_vs_code_has_no_sidebar(monkeypatch):
    """The sidebar is not tried where it cannot be."""
    monkeypatch.setattr(placement, "installed", lambda package: "0.8")
    monkeypatch.delenv("VSCODE_PID", raising=False)
    assert placement.can_dock()
    monkeypatch.setenv("VSCODE_PID", "1")
    assert not placement.can_dock()


@pytest.mark.parametrize(
    ("session", "title"),
    [
        (None, "GPU memory"),
        ("train.ipynb", "GPU memory · train"),
        ("/home/me/deep/train.v2.ipynb", "GPU memory · train.v2"),
        ("a-notebook-with-a-name-that-is-very-long.ipynb", "GPU memory · a-notebook-with-a-name-that-i…"),
        ("0a1b/", "GPU memory"),
    ],
)
def test_the_tab_has_the_notebooks_name(monkeypatch, session, title):
    """Of two notebooks with panels, each tab says whose it is; where no server has told, none."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    if session is not None:
        monkeypatch.setenv("JPY_SESSION_NAME", session)
    assert placement.title() == title


def test_which_server_surely_serves_lab(monkeypatch):
    """The command that started the server tells; without one, nothing is sure."""
    commands = {
        ("python", "/usr/bin/jupyter-lab", "--no-browser"): True,
        ("python", "-m", "jupyterlab"): True,
        ("jupyterhub-singleuser",): False,
        ("python", "/usr/bin/jupyter-notebook"): False,
    }
    for command, expected in commands.items():
        monkeypatch.setenv("JPY_PARENT_PID", "1")
        monkeypatch.setattr(placement.psutil.Process, "cmdline", lambda self, c=command: list(c))
        assert placement.surely_lab() is expected, command
    monkeypatch.delenv("JPY_PARENT_PID")
    assert not placement.surely_lab()


def test_there_is_one_panel(gpu, monkeypatch):
    """Opening twice gives the same panel; after it was closed, or has failed, a new one."""
    made = []

    class Fresh(Panel):
        def __init__(self, *, docked):
            made.append(docked)
            super().__init__(docked=False, channel=Pipe())

    monkeypatch.setattr(live.opening, "Panel", Fresh)
    first = live.panel(inline=True)
    assert live.panel() is first is live.opened()
    first._failed(UnavailableError("no more"))
    second = live.panel()
    assert second is not first
    assert first.closed
    live.close()
    assert live.opened() is None
    assert made == [False, True]
    live.close()


def test_controller_numbers_are_formatted_in_one_place():
    """A device without counters is a dash, not a crash."""
    assert controller.numbers("mps:0", 1024, None) == "mps:0 1.00 KiB allocated, - reserved"
