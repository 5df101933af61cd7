"""What a checkpoint keeps (`torch.utils.checkpoint`, not the reentrant kind): the inputs from which it computes again.

In place of each tensor that was to be saved, a graph has a holder and a function that computes the tensor when it is
asked for. C++ keeps both, and shows the holder alone. The function keeps the checkpoint's frame with the inputs, and
that one knows its holders.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import FunctionType
from typing import Any

from .classes import module_of, name_of
from .collector import objects, referents

_MODULE, _HOLDER, _FRAME = "torch.utils.checkpoint", "_Holder", "_CheckpointFrame"
_HOLDERS, _INPUTS = "weak_holders", "saved_args"
"""Attributes of a frame. In older versions of PyTorch it has the inputs as the node of a graph, which shows them."""


def is_holder(kind: type) -> bool:
    """Whether a type's objects stand for what a checkpoint does not save."""
    return name_of(kind) == _HOLDER and module_of(kind) == _MODULE


class Checkpoints:
    """The checkpoints of the process, looked for when they are first asked for; none is kept alive."""

    def children(self, holder: Any) -> list[Any]:
        """Return what a holder keeps, and what the function keeps that goes with it: the frame, and the inputs."""
        frames = [one for one in (known() for known in self._of(holder)[:1]) if one is not None]
        # The inputs themselves too: no Python object leads from them back to the list that the frame has them in.
        inputs = [part for one in frames for part in getattr(one, _INPUTS, ())]
        return [*referents([holder]), *frames, *inputs]

    def between(self, holder: Any) -> list[Any]:
        """Return the functions that go with a holder, and in what they keep the frame."""
        functions = [one for one in (known() for known in self._of(holder)[1:]) if one is not None]
        closures = [one.__closure__ for one in functions]
        return [*functions, *closures, *(cell for closure in closures for cell in closure)]

    def _of(self, holder: Any) -> list[Any]:
        return self._by_holder.get(id(holder), [])

    @functools.cached_property
    def _by_holder(self) -> dict[int, list[Any]]:
        """The frame and the functions of each holder, by the ids of holders, as weak references."""
        module = sys.modules.get(_MODULE)
        kind, names = getattr(module, _FRAME, None), getattr(module, "__dict__", None)
        found: dict[int, list[Any]] = {}
        for item in objects():
            if type(item) is FunctionType and item.__globals__ is names and item.__closure__:
                for frame in referents(item.__closure__):
                    if type(frame) is kind:
                        for holder in filter(None, (known() for known in getattr(frame, _HOLDERS, ()))):
                            found.setdefault(id(holder), [weakref.ref(frame)]).append(weakref.ref(item))
        return found
