"""Modules that code on trial imports first: they stay imported, so what their own code does stays, too.

Undone, it would be lost for good: a class that a module registers somewhere as it is imported is not registered again,
because a later `import` does not run the module a second time. Nor can modules be unloaded instead: operators of
PyTorch and much else in other packages can be registered but once.
"""

from __future__ import annotations

import importlib._bootstrap
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .patches import Patches
    from .undo import Undo

_OF_PYTHON: Any = importlib._bootstrap


def keep_imports(patches: Patches, undo: Undo) -> None:
    """Have what a module changes while it is imported be what there was, from then on until the patches are undone."""
    plain = _OF_PYTHON._load_unlocked
    thread = threading.local()

    def load(spec: Any) -> Any:
        if getattr(thread, "imports", False):  # what modules import themselves is part of that
            return plain(spec)
        thread.imports = True
        with torch._C.DisableTorchFunction():
            before, modules = undo.before_import(), set(sys.modules)
        try:
            return plain(spec)
        finally:
            thread.imports = False
            fresh = [module for name, module in list(sys.modules.items()) if name not in modules]
            with torch._C.DisableTorchFunction():
                undo.after_import(before, [module for module in fresh if type(module) is types.ModuleType])

    # Python leaves the functions of this file out of tracebacks, so that the user sees his own lines.
    load.__code__ = load.__code__.replace(co_filename=plain.__code__.co_filename)
    patches.set(_OF_PYTHON, "_load_unlocked", load)
