"""Virtual cards with nothing but their memory, and all of PyTorch that they replace."""

from __future__ import annotations

import pytest

from jupyter_gpumem.virtual.cards import parse_cards
from jupyter_gpumem.virtual.facade import Facade
from jupyter_gpumem.virtual.memory import VirtualMemory
from jupyter_gpumem.virtual.patches import Patches

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the profiler would import it

OWNERS = (
    torch,
    torch._C,
    torch._C._CudaEventBase,
    torch._C._CudaStreamBase,
    torch.accelerator,
    torch.cuda,
    torch.cuda.CUDAGraph,
    torch.cuda.Event,
    torch.cuda.MemPool,
    torch.cuda.Stream,
    torch.cuda.graphs,
    torch.cuda.memory,
    torch.cuda.nvtx,
    torch.cuda.random,
    torch.cuda.streams,
    torch.version,
)


class Machine:
    """Virtual cards with nothing but their memory."""

    def __init__(self, cards: str) -> None:
        self.memory = VirtualMemory(parse_cards(cards))
        self.patches = Patches()
        self.notes: list[str] = []
        Facade(self.memory, lambda what, given: self.notes.append(f"{what}: {given}")).install(self.patches)

    def allocate(self, size: int, device: int = 0) -> int:
        """Take memory as a tensor would."""
        return self.memory.allocate(device, size)
