"""Everything `torch.cuda` answers for virtual cards.

The way is to answer underneath: PyTorch's own Python functions call bindings of `torch._C`, which are added (a CPU
build has none) or replaced; so what users call, its arguments, its errors and its formats stay PyTorch's.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from jupyter_gpumem import devices
from jupyter_gpumem.errors import RecordingError, UnavailableError
from jupyter_gpumem.ledger import LEDGER
from jupyter_gpumem.recorder import RECORDER

from . import absent, accelerator, classes, communication, generators
from .availability import Availability
from .counters import MemoryCounters
from .driver import VirtualBackend, VirtualDriver
from .history import History
from .state import State
from .streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyter_gpumem.virtual.memory import VirtualMemory
    from jupyter_gpumem.virtual.patches import Patches
    from jupyter_gpumem.virtual.session import VirtualGpu


class Facade:
    """The answers of `torch.cuda` for the cards of a memory.

    Args:
        memory: the cards and what they hold.
        note: told what was asked for that a virtual card does not have, and what was given for it.
        workspaces: returns `{address: bytes}` of the library workspaces on a card.
    """

    def __init__(
        self,
        memory: VirtualMemory,
        note: Callable[[str, str], object],
        workspaces: Callable[[int], dict[int, int]] = lambda index: {},  # noqa: ARG005
    ) -> None:
        self.state = State(memory, note)
        self._workspaces = workspaces
        self._counters = MemoryCounters(self.state)
        self._history = History(self.state, self._counters)
        self._restore: Callable[[], None]

    def install(self, patches: Patches) -> None:
        """Put every answer in place, and let what measures and records find these cards, until all is undone."""
        LEDGER.detach()
        patches.on_undo(RECORDER.set_aside())  # done last, when all that follows is undone
        Availability(self.state).install(patches)
        self._counters.install(patches)
        self._history.install(patches)
        Streams(self.state).install(patches)
        accelerator.install(self.state, self._counters, patches)
        generators.install(self.state, patches)
        classes.install(patches)
        communication.install(patches)
        absent.install(self.state, patches)
        self._restore = devices.stand_in(VirtualBackend(self.state.memory, self._workspaces), VirtualDriver(self.state))
        patches.on_undo(self._let_go)
        LEDGER.attach()

    @contextlib.contextmanager
    def trial(self, moved: list[dict[int, int]]) -> Iterator[None]:
        """Forget afterwards what is set, selected and recorded meanwhile.

        Args:
            moved: for each card, the addresses in the trial's memory of what was there before.
        """
        selection, streams = self.state.selection, self.state.streams
        kept = selection.device, dict(selection.streams)
        self.state.streams = streams.copy()
        try:
            with self._counters.trial(moved), self._history.trial():
                yield
        finally:
            self.state.streams = streams
            selection.device, selection.streams = kept

    def _let_go(self) -> None:
        """Take the cards away from what measures and records; a recording of ours is kept, as if stopped."""
        with contextlib.suppress(RecordingError, UnavailableError):  # none of ours is running, or none can be read
            RECORDER.stop()
        LEDGER.detach()
        self._history.uninstall()
        for index in sorted(self.state.memory.ready):
            devices.backend("cuda").device(index)  # a measurement that is still open will ask who it was
        self._restore()


def install(gpu: VirtualGpu) -> Facade:
    """Let `torch.cuda` answer for the cards of a virtual GPU until its patches are undone; returns what answers."""

    def workspaces(index: int) -> dict[int, int]:
        return {
            address: gpu.cards[index].cublas if library == "cuBLAS" else gpu.cards[index].cublaslt
            for (library, card, _, _), address in gpu.kernels.workspaces.items()
            if card == index
        }

    gpu.patches.set(torch._C, "_cuda_clearCublasWorkspaces", gpu.kernels.clear_workspaces)
    installed = Facade(gpu.memory, gpu.notes.add, workspaces)
    installed.install(gpu.patches)
    return installed
