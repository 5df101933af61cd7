"""Files that code on trial writes: they go elsewhere, so that no checkpoint is replaced by placeholders."""

from __future__ import annotations

import builtins
import functools
import io
import os
import pathlib
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .patches import Patches

_WRITING = frozenset("wax+")
_DEVICES = ("/dev/", "/proc/", "/sys/")


class Files:
    """Lets `open` and `torch.save` write elsewhere, and `open` read again what was written there.

    A module that is imported meanwhile may keep what it finds (`from torch import save`): afterwards that is as plain
    as what it stands for.

    Args:
        patches: where they are replaced; its undoing throws away what was written.

    Attributes:
        unsaved: the paths that `torch.save` was given: nothing is written there at all.
    """

    def __init__(self, patches: Patches) -> None:
        self.unsaved: dict[str, None] = {}
        self._written: dict[str, str] = {}
        self._folder: str | None = None
        self._over = False
        plain_open, plain_save = builtins.open, torch.save
        patches.on_undo(self._throw_away)

        @functools.wraps(plain_open)
        def open_elsewhere(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return plain_open(self._place(file, mode), mode, *args, **kwargs)

        @functools.wraps(plain_save)
        def save_nothing(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, (str, os.PathLike)) and not self._over:
                self.unsaved[os.fspath(f)] = None
            else:
                plain_save(obj, f, *args, **kwargs)

        patches.set(builtins, "open", open_elsewhere)
        patches.set(io, "open", open_elsewhere)
        paths: Any = getattr(pathlib, "_NormalAccessor", None)
        if paths is not None:  # Python 3.10: paths keep the function that they found when they were imported
            patches.set(paths, "open", staticmethod(open_elsewhere))
        patches.set(torch, "save", save_nothing)

    def _place(self, file: Any, mode: str) -> Any:
        """Return what is to be opened instead."""
        if self._over or not isinstance(file, (str, bytes, os.PathLike)):
            return file
        path = os.path.abspath(os.fsdecode(file))
        if path in self._written or not _WRITING & set(mode) or path.startswith(_DEVICES):
            return self._written.get(path, file)
        if ("x" in mode and os.path.exists(path)) or not os.path.isdir(os.path.dirname(path)):
            return file  # the error is that of the real place
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="gpumem-")
        place = os.path.join(self._folder, str(len(self._written)))
        if "w" not in mode and os.path.exists(path):
            shutil.copyfile(path, place)
        self._written[path] = place
        return place

    def _throw_away(self) -> None:
        self._over = True
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
