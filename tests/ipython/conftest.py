"""A fresh shell in this process for each test, and what its cells leave."""

from __future__ import annotations

import atexit
import gc
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_gpumem.notebook import LAST_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MiB = 2**20
RUNNING_OUT = """
import threading, torch, jupyter_gpumem as gm
def take(mib): return torch.empty(mib * 2**20, dtype=torch.uint8, device='cuda')
def fail(mib=9000):
    kept = take(64)
    return take(mib)
def quietly(mib=9000):
    try: fail(mib)
    except torch.OutOfMemoryError: pass
"""


@dataclass
class Outcome:
    """What a cell left: its last value, its error, what it printed and the texts it displayed."""

    value: Any
    error: BaseException | None
    stdout: str
    stderr: str
    displays: list[dict[str, str]] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """The text form of everything displayed."""
        return [bundle["text/plain"] for bundle in self.displays]


class Cells:
    """Runs cells in a shell, as a front end does."""

    def __init__(self, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell = shell
        self._capsys = capsys

    def __call__(self, code: str, **options: Any) -> Outcome:
        """Run a cell."""
        self._capsys.readouterr()
        publisher = self.shell.display_pub = CapturingDisplayPublisher()
        result = self.shell.run_cell(code, **({"store_history": True} | options))
        out, err = self._capsys.readouterr()
        displays = [output["data"] for output in publisher.outputs]
        return Outcome(result.result, result.error_before_exec or result.error_in_exec, out, err, displays)

    def __getitem__(self, name: str) -> Any:
        return self.shell.user_ns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.shell.user_ns

    def complete(self, line: str) -> list[str]:
        """Return what Tab offers at the end of a line, names of the notebook among it."""
        with provisionalcompleter():
            return [item.text for item in self.shell.Completer.completions(line, len(line))]


@pytest.fixture
def bare(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cells]:
    """A fresh shell that has not loaded the extension."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts its own there
    config = Config()
    config.HistoryManager.enabled = False
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    yield Cells(shell, capsys)
    shell.extension_manager.unload_extension("jupyter_gpumem")
    atexit.unregister(shell.atexit_operations)  # it would only tidy up after the process
    InteractiveShell.clear_instance()


@pytest.fixture
def on_virtual(bare: Cells) -> Iterator[Callable[..., Cells]]:
    """Return a function that switches a virtual GPU on in a fresh shell, and runs cells there; off afterwards."""
    from jupyter_gpumem.virtual import session

    def switch_on(card: str, *prepare: str) -> Cells:
        gc.collect()
        for cell in (f"%load_ext jupyter_gpumem\n%gpumem_virtual on --gpu {card}", *prepare):
            assert bare(cell).error is None
        return bare

    yield switch_on
    bare.shell.reset(new_session=False)
    for name in LAST_ERROR:
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    session.stop()


@pytest.fixture
def gpu(on_virtual: Callable[..., Cells]) -> Cells:
    """Cells with the extension and a virtual GPU of 8 GiB.

    `fail()` runs out of its memory while it holds 64 MiB, and `quietly()` handles that.
    """
    return on_virtual("8GiB", RUNNING_OUT)


@pytest.fixture
def cells(bare: Cells, fake: Any) -> Cells:
    """A fresh shell that has loaded the extension, in a process that uses a scripted device."""
    bare.shell.user_ns |= {"fake": fake, "MiB": MiB}
    assert bare("%load_ext jupyter_gpumem").error is None
    return bare
