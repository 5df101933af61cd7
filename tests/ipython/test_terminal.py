"""The magic in a real terminal: typed, with the line editor that people use."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pexpect
import pytest

import jupyter_gpumem

SETUP = """
from jupyter_gpumem import devices
from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.ledger import LEDGER
fake = FakeBackend()
async def endless():
    global kept
    kept = fake.allocate(2**20)
    print("waiting")
    await __import__("asyncio").sleep(600)
devices.add_backend(fake)
"""


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background of a shell ignore it


@pytest.fixture
def terminal(tmp_path):
    """A terminal with a running `ipython` that has loaded the extension, and a scripted device `fake`."""
    setup = tmp_path / "setup.py"
    setup.write_text(SETUP)
    package = str(Path(jupyter_gpumem.__file__).parent.parent)
    environment = os.environ | {
        "IPYTHONDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "TERM": "xterm",
        "NO_COLOR": "1",
    }
    options = ["--no-banner", "--no-confirm-exit", "--HistoryManager.enabled=False", "--ext=jupyter_gpumem"]
    options += ["--colors=NoColor", f"--InteractiveShellApp.exec_files={setup}"]
    child = pexpect.spawn(
        sys.executable,
        ["-m", "IPython", *options],
        env=environment,
        cwd=tmp_path,
        dimensions=(60, 160),
        encoding="utf-8",
        timeout=30,
        preexec_fn=_heed_ctrl_c,
    )
    try:
        child.expect("In \\[1\\]:")
        yield child
        child.sendcontrol("d")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    assert child.exitstatus == 0


def read(terminal, prompt: str) -> str:
    """Return what the terminal showed up to a prompt, without its control sequences."""
    terminal.expect(prompt)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", terminal.before)


def test_a_cell_typed_in_a_terminal(terminal):
    """`%%gpumem` waits for its cell; blank lines run it, and output, report and value appear."""
    terminal.send("%%gpumem\r")
    terminal.expect("\\.\\.\\.:")
    terminal.send("x = fake.allocate(2**20); print('print' + 'ed')\r")
    terminal.send("6 * 7\r")
    terminal.send("\r\r")
    shown = read(terminal, "In \\[2\\]:")
    assert "\nprinted\n" in shown
    assert "\nfake:0 · scripted device · " in shown
    assert "\n  allocated  0 B    1.00 MiB   +1.00 MiB  1.00 MiB  +1.00 MiB\n" in shown
    assert "\n  Needed 1.00 MiB on top of what was there; all of it stays.\n" in shown
    assert re.search(r"Out\[1\]: 42\n", shown)
    assert "UsageError" not in shown


def test_ctrl_c_at_an_await_in_a_terminal(terminal):
    """Ctrl-C while a cell awaits ends it and its measurement, with a report."""
    terminal.send("%%gpumem\r")
    terminal.expect("\\.\\.\\.:")
    terminal.send("await endless()\r")
    terminal.send("\r\r")
    terminal.expect("waiting")
    terminal.sendcontrol("c")
    shown = read(terminal, "In \\[2\\]:")
    assert "KeyboardInterrupt" in shown
    assert "fake:0 · scripted device · stopped by KeyboardInterrupt after " in shown
    terminal.send("LEDGER.open_intervals, 'open'\r")
    assert "Out[2]: (0, 'open')" in read(terminal, "In \\[3\\]:")
