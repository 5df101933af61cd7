"""What CUDA's kernels take from the allocator while they run, and the libraries below them for good.

No operator shows this memory to PyTorch's dispatcher. What a kernel needs is a formula of its operands' sizes, from a
table measured on a GPU; workspaces are taken at the first product on each stream and in each of autograd's threads.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import torch

from .operators import PRODUCTS, WITH_BIAS
from .temporaries import KERNELS, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .memory import VirtualMemory


@dataclass(frozen=True, slots=True)
class Temporary:
    """One allocation inside a kernel: `fixed + elements * (bytes + items * item size)` of one operand.

    Attributes:
        operand: which of the tensors given, from 0.
        items, bytes, fixed: multiples of the operand's item size and of a byte per element, and bytes without any.
        dtypes: names of the operand's types that it holds for; empty for all.
    """

    operand: int = 0
    items: float = 0.0
    bytes: float = 0.0
    fixed: int = 0
    dtypes: tuple[str, ...] = ()

    def size(self, given: list[torch.Tensor]) -> int:
        """Return the bytes; 0 where the formula does not hold."""
        if self.operand >= len(given):
            return 0
        tensor = given[self.operand]
        count: int = tensor.numel()
        if not count or (self.dtypes and str(tensor.dtype).removeprefix("torch.") not in self.dtypes):
            return 0
        return self.fixed + round(count * (self.bytes + self.items * int(tensor.dtype.itemsize)))


@functools.cache
def table() -> dict[str, tuple[Temporary, ...]]:
    """Return the temporaries of every operator that has some, from `kernels.json`."""
    text = resources.files(__package__).joinpath("kernels.json").read_text(encoding="utf-8")
    return {
        name: tuple(Temporary(**{**term, "dtypes": tuple(term.get("dtypes", ()))}) for term in terms)
        for name, terms in json.loads(text)["operators"].items()
    }


class Kernels:
    """The memory that kernels and libraries take on the virtual cards.

    Args:
        memory: where they take it from.
    """

    def __init__(self, memory: VirtualMemory) -> None:
        self.memory = memory
        self.workspaces: dict[tuple[str, int, int, bool], int] = {}
        self._temporaries = table()

    def launch(
        self,
        name: str,
        index: int,
        given: list[torch.Tensor],
        shapes: Sequence[Any],
        args: Any,
        make: Callable[[], None],
    ) -> None:
        """Take what an operator needs while it runs, and make its results among that.

        Args:
            name: the operator, without name space and overload.
            index: the card it runs on.
            given: its tensors, those in lists as well.
            shapes: sizes, strides and type of each result.
            args: its arguments.
            make: makes the next result.

        Raises:
            torch.OutOfMemoryError: the card is full.
        """
        if name in PRODUCTS:
            self._workspace(name, index, args)
        kernel = KERNELS.get(name)
        if kernel is not None:
            results = [Result(*one) if type(one) is tuple else None for one in shapes]
            steps = kernel(self.memory.cards[index], args, results)
        else:
            steps = [size for term in self._temporaries.get(name, ()) if (size := term.size(given))]
        for _ in range(len(shapes) - steps.count(None)):
            make()
        if steps:
            self.memory.scratch(index, steps, make)

    def clear_workspaces(self) -> None:
        """Give the workspaces back, as `torch._C._cuda_clearCublasWorkspaces` does."""
        while self.workspaces:
            (_, index, _, _), address = self.workspaces.popitem()
            self.memory.free(index, address)

    def _workspace(self, name: str, index: int, args: Any) -> None:
        card = self.memory.cards[index]
        self._take("cuBLAS", index, card.cublas)
        if name in WITH_BIAS and args[0].dim() == 1:
            self._take("cuBLASLt", index, card.cublaslt)

    def _take(self, library: str, index: int, size: int) -> None:
        # Autograd works in a thread of its own on a real device, and that thread has its own handles.
        backward = torch._C._current_graph_task_id() != -1
        key = (library, index, self.memory.current_stream(index), backward)
        if key not in self.workspaces:
            self.workspaces[key] = self.memory.allocate(index, size)
