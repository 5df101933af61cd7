"""What CUDA's kernels take from the allocator while they run, and the libraries below them for good.

No operator shows this memory to PyTorch's dispatcher. What a kernel needs is a formula of its operands' sizes, checked
against measurements on a GPU (`temporaries.py`); workspaces are taken at the first product on each stream and in each
of autograd's threads.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from .operators import LAYERS, PRODUCTS, WITH_BIAS
from .temporaries import KERNELS, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .memory import VirtualMemory


_RANDOM_STATE = 24  # bytes of a thread's


class Kernels:
    """The memory that kernels and libraries take on the virtual cards.

    Args:
        memory: where they take it from.
    """

    def __init__(self, memory: VirtualMemory) -> None:
        self.memory = memory
        self.workspaces: dict[tuple[str, int, int, bool], int] = {}

    def launch(
        self,
        name: str,
        index: int,
        shapes: Sequence[Any],
        args: Any,
        make: Callable[[], None],
    ) -> None:
        """Take what an operator needs while it runs, and make its results among that.

        Args:
            name: the operator, without name space and overload.
            index: the card it runs on.
            shapes: sizes, strides and type of each result.
            args: its arguments.
            make: makes the next result.

        Raises:
            torch.OutOfMemoryError: the card is full.
        """
        __tracebackhide__ = True
        kernel = KERNELS.get(name)
        steps: Sequence[int | None] = []
        if kernel is not None:
            results = [Result(*one) if type(one) is tuple else None for one in shapes]
            steps = kernel(self.memory.cards[index], args, results)
        for _ in range(len(shapes) - list(steps).count(None)):
            make()
        if name in PRODUCTS:
            self._workspace(name, index, args)
        if steps:
            self.memory.scratch(index, steps, make)

    def dropout_state(self, index: int) -> None:
        """Take cuDNN's state of random numbers, one for each thread of the card; it is kept."""
        card = self.memory.cards[index]
        key = ("cuDNN", index, 0, False)
        if key not in self.workspaces:
            self.memory.scratch(index, [8])
            size = card.multiprocessors * card.threads * _RANDOM_STATE
            self.memory.allocate(index, size, hand_over=functools.partial(self.workspaces.__setitem__, key))

    def clear_workspaces(self) -> None:
        """Give the workspaces back, as `torch._C._cuda_clearCublasWorkspaces` does."""
        while self.workspaces:
            (_, index, _, _), address = self.workspaces.popitem()
            self.memory.free(index, address)

    def _workspace(self, name: str, index: int, args: Any) -> None:
        __tracebackhide__ = True
        card = self.memory.cards[index]
        self._take("cuBLAS", index, card.cublas)
        if (name in WITH_BIAS and args[0].dim() == 1) or name in LAYERS:
            self._take("cuBLASLt", index, card.cublaslt)

    def _take(self, library: str, index: int, size: int) -> None:
        # Autograd works in a thread of its own on a real device, and that thread has its own handles.
        __tracebackhide__ = True
        backward = torch._C._current_graph_task_id() != -1
        key = (library, index, self.memory.current_stream(index), backward)
        if key not in self.workspaces:
            self.memory.allocate(index, size, hand_over=functools.partial(self.workspaces.__setitem__, key))
