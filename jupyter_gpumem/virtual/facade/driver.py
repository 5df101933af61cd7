"""What reports and measurements are told of the virtual cards, beside what `torch.cuda` answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.devices.pytorch import CachingAllocator
from jupyter_gpumem.records import Device, DriverMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_gpumem.virtual.memory import VirtualMemory

    from .state import State


class VirtualBackend(CachingAllocator):
    """PyTorch's devices, as always, but for what is a workspace and whose a tensor is: that is known here.

    Args:
        memory: the cards' memory.
        workspaces: returns `{address: bytes}` of the library workspaces on a card.
    """

    def __init__(self, memory: VirtualMemory, workspaces: Callable[[int], dict[int, int]]) -> None:
        super().__init__("cuda")
        self._memory = memory
        self._workspaces = workspaces
        self._started_with = str(memory.allocators[0].settings)

    def starting_text(self) -> str:
        return self._started_with

    def memory(self, index: int) -> DriverMemory | None:
        """Return total and free bytes; `None` inside a prediction, whose memory has no end."""
        return None if self._memory.allocators[index].driver.free is None else super().memory(index)

    def owns(self, index: int, address: int, storage: object) -> bool:
        return self._memory.owns(index, address, storage)

    def workspaces(self, index: int) -> dict[int, int]:
        return self._workspaces(index)


class VirtualDriver:
    """Speaks for the cards in the place of NVIDIA's driver, which must not be asked: it could know another card.

    All that is on a card is this process's.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def memory(self, device: Device) -> DriverMemory | None:
        """Return the card's memory; `None` inside a prediction, whose memory has no end."""
        return None if self._state.allocator(device.index).driver.free is None else self._memory(device.index)

    def cards(self) -> tuple[tuple[Device, DriverMemory], ...]:
        return tuple(
            (Device("cuda", index, card.label, card.total, virtual=True), self._memory(index))
            for index, card in enumerate(self._state.cards)
        )

    def _memory(self, index: int) -> DriverMemory:
        total = self._state.cards[index].total
        used = self._state.used(index)
        return DriverMemory(total=total, used=used, free=total - used, process=used, source="model")
