"""Noticing the user's `import torch`. Imports nothing, so that it can be there from the first cell on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class TorchImportWatch:
    """Tells, during `import torch`, the moment at which the bindings exist, so that no reset or first use is missed.

    It sits in `sys.meta_path` while a measurement is open or a cell runs, finds nothing, changes nothing, and calls
    back once: when `torch.cuda.memory` is looked for, `torch._C` is already complete. It stays there until it is
    removed: Python walks through that very list, and would skip the next finder, which may be another such watch.
    """

    _MODULE = "torch.cuda.memory"

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._told = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        """Notice the import and leave it to the other finders."""
        if name == self._MODULE and not self._told:
            self._told = True
            self._callback()

    def install(self) -> None:
        """Begin to watch."""
        self._told = False
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching; harmless when it has stopped already."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
