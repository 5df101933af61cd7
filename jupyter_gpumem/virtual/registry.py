"""The operators' places in PyTorch's dispatcher: taken once for the life of the process, and lent to a virtual GPU.

A kernel that is taken out of the dispatcher while another thread calls it ends the process. So none ever is: what is
registered passes a call on to the kernel of the virtual GPU that is on, and refuses it while none is.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from jupyter_gpumem.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = Callable[..., Any]

_places: dict[tuple[str, str], _Place] = {}
_passed: set[str] = set()


class _Place:
    """An operator's place for a dispatch key; of the name `_`, that of all that have none of their own."""

    __slots__ = ("kernel", "refuse", "text")

    def __init__(self, name: str, key: str) -> None:
        self.refuse: Kernel = _refuse_cuda if key == "CUDA" else self._refuse
        self.kernel = self.refuse
        self.text = "an operator" if name == "_" else name.partition(".")[0]

        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return self.kernel(*args, **kwargs)

        if name == "_":
            _library("_").fallback(call, key)
            return
        with warnings.catch_warnings():  # PyTorch's builds for CUDA warn that their own kernel is replaced: it is meant
            warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
            _library("aten").impl(name, call, key)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise what there is to say while no virtual GPU is on."""
        __tracebackhide__ = True
        op = args[0] if args else None
        name = op._schema.name.rpartition("::")[2] if isinstance(op, torch._ops.OpOverload) else self.text
        raise UnavailableError(
            f"the virtual GPU is off, and {name} was called for a tensor of it; switch it on and make the tensor again"
        )


def _refuse_cuda(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise what PyTorch says of `cuda` here: it asks its own question only once, which a virtual GPU has answered."""
    __tracebackhide__ = True
    torch.cuda._lazy_init()
    raise RuntimeError("No CUDA GPUs are available")


class Registry:
    """The places that a virtual GPU has taken."""

    def __init__(self) -> None:
        self._taken: list[_Place] = []

    def impl(self, name: str, kernel: Kernel, key: str) -> None:
        """Have an operator, as `torch.library` names it, done by a kernel."""
        place = _places.get((name, key))
        if place is None:
            place = _places[name, key] = _Place(name, key)
        place.kernel = kernel
        self._taken.append(place)

    def fallback(self, kernel: Kernel, key: str) -> None:
        """Have every operator without a place of its own done by a kernel, which is given the operator first."""
        self.impl("_", kernel, key)

    def pass_through(self, key: str) -> None:
        """Have operators without a place of their own go on to the next key."""
        if key not in _passed:
            _passed.add(key)
            _library("_").fallback(torch.library.fallthrough_kernel, key)

    def close(self) -> None:
        """Give the places back: they refuse from now on."""
        while self._taken:
            place = self._taken.pop()
            place.kernel = place.refuse


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "IMPL")
