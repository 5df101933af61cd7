"""Whose an object is: the user's, or that of Python, of an installed package, or of this one."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import sys
import types
from importlib import metadata

import torch

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_STANDARD = os.path.dirname(os.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH_OBJECTS = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
_OF_PYTHON = {
    *(f"collections.{name}" for name in ("ChainMap", "UserDict", "UserList", "UserString")),
    *(f"queue.{name}" for name in ("Queue", "LifoQueue", "PriorityQueue")),
    *(f"threading.{name}" for name in ("Event", "Semaphore", "BoundedSemaphore")),
    *("_thread._local", "argparse.Namespace", "contextlib.ExitStack"),
}
"""Classes of Python's own that hold what the user puts into them, and nothing of the system's."""


@functools.lru_cache(maxsize=4096)
def is_of_the_user(kind: type) -> bool:
    """Whether objects of a class are the user's: their own classes, PyTorch's, and containers of Python's."""
    if f"{kind.__module__}.{kind.__qualname__}" in _OF_PYTHON:
        return True
    if issubclass(kind, _TORCH_OBJECTS) or kind in {types.SimpleNamespace, types.FunctionType}:
        return True
    return kind.__module__.partition(".")[0] == "torch" or is_users(kind.__module__)


def modules_of_the_user() -> list[types.ModuleType]:
    """Return the modules that are neither Python's nor installed."""
    modules = [module for module in list(sys.modules.values()) if type(module) is types.ModuleType]
    return [module for module in modules if is_users(module.__name__)]


def is_users(name: str) -> bool:
    """Whether a module is the user's, by its name."""
    path = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")  # nothing lazy is asked for
    if name == "__main__" or not isinstance(path, str):
        return name == "__main__"
    return not path.startswith((_STANDARD, _OURS)) and not _is_installed(name, path)


def _is_installed(name: str, path: str) -> bool:
    """Whether a module was installed, into whatever folder (`pip install --target`): a kernel's own, above all."""
    if _INSTALLED.search(path):
        return True
    above = name.count(".") + (os.path.basename(path).partition(".")[0] == "__init__")
    folders = [str(folder) for folder in pathlib.Path(path).parents]
    return above < len(folders) and name.partition(".")[0] in _installed_in(folders[above])


@functools.cache
def _installed_in(folder: str) -> frozenset[str]:
    """Return the names of the modules and packages that were installed into a folder."""
    files = (file for one in metadata.distributions(path=[folder]) for file in one.files or ())
    return frozenset(file.parts[0].partition(".")[0] for file in files)
