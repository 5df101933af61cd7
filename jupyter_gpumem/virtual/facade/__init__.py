"""Everything `torch.cuda` answers for virtual cards.

The way is to answer underneath: PyTorch's own Python functions call bindings of `torch._C`, which are added (a CPU
build has none) or replaced; so what users call, its arguments, its errors and its formats stay PyTorch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import absent, accelerator, generators
from .availability import Availability
from .counters import MemoryCounters
from .history import History
from .state import State
from .streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_gpumem.virtual.memory import VirtualMemory
    from jupyter_gpumem.virtual.patches import Patches


class Facade:
    """The answers of `torch.cuda` for the cards of a memory, from `install` to `uninstall`.

    Args:
        memory: the cards and what they hold.
        note: told what cannot be answered truly.
    """

    def __init__(self, memory: VirtualMemory, note: Callable[[str], None]) -> None:
        self.state = State(memory, note)
        self._counters = MemoryCounters(self.state)
        self._history = History(self.state, self._counters)

    def install(self, patches: Patches) -> None:
        """Put every answer in place."""
        Availability(self.state).install(patches)
        self._counters.install(patches)
        self._history.install(patches)
        Streams(self.state).install(patches)
        accelerator.install(self.state, self._counters, patches)
        generators.install(self.state, patches)
        absent.install(self.state, patches)

    def uninstall(self) -> None:
        """Stop listening to the memory; the patches are undone by whoever made them."""
        self._history.uninstall()


def install(gpu: Any, patches: Patches) -> Facade:
    """Let `torch.cuda` answer for the cards of a virtual GPU; returns what `uninstall` is asked of later."""
    facade = Facade(gpu.memory, gpu.note)
    facade.install(patches)
    return facade
