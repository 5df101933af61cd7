"""Files that code on trial writes, renames and removes: it all happens elsewhere, so that no checkpoint is lost."""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import pathlib
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .patches import Patches

_WRITING = frozenset("wax+")
_DEVICES = ("/dev/", "/proc/", "/sys/")
_OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Files:
    """Lets `open` and `torch.save` write elsewhere, and `open` read again what was written there.

    What the functions of `os` remove or rename (`shutil` and paths do it with these) stays where it is and is only
    hidden meanwhile: from `open`, `os.stat` (so from `os.path.exists` and paths) and `os.listdir`. What the code has
    made itself is really removed.

    A module that is imported meanwhile may keep what it finds (`from torch import save`): afterwards that is as plain
    as what it stands for.

    Args:
        patches: where they are replaced; its undoing throws away what was written.

    Attributes:
        unsaved: the paths that `torch.save` was given: nothing is written there at all.
    """

    def __init__(self, patches: Patches) -> None:
        self.unsaved: dict[str, None] = {}
        self._written: dict[str, str] = {}  # a path and where its content lies: in our folder, or where it was before
        self._gone: set[str] = set()
        self._made: set[str] = set()
        self._folder: str | None = None
        self._count = 0
        self._over = False
        patches.on_undo(self._throw_away)
        self._plain_open = plain_open = builtins.open
        plain_save = torch.save

        @functools.wraps(plain_open)
        def open_elsewhere(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return plain_open(self._place(file, mode), mode, *args, **kwargs)

        @functools.wraps(plain_save)
        def save_nothing(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, (str, os.PathLike)) and not self._over:
                self.unsaved[os.fspath(f)] = None
            else:
                plain_save(obj, f, *args, **kwargs)

        # Python 3.10: paths keep the functions that they found when they were imported.
        paths: Any = getattr(pathlib, "_NormalAccessor", None)
        for owner in filter(None, (builtins, io, paths)):
            patches.set(owner, "open", staticmethod(open_elsewhere) if owner is paths else open_elsewhere)
        numpy: Any = sys.modules.get("numpy.lib._datasource")
        if numpy is not None:  # so does numpy.savetxt; asking for the keys loads the others
            openers = {key: numpy._file_openers[key] for key in numpy._file_openers.keys()}  # noqa: SIM118
            patches.set(numpy._file_openers, "_file_openers", {**openers, None: open_elsewhere})
        patches.set(torch, "save", save_nothing)
        instead: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "stat": self._ask,
            "lstat": self._ask,
            "listdir": self._list,
            "mkdir": self._make,
            "remove": self._remove,
            "unlink": self._remove,
            "rmdir": self._remove,
            "rename": self._rename,
            "replace": self._rename,
            "truncate": self._truncate,
            "chmod": self._mark,
            "utime": self._mark,
            "listxattr": self._ask,
        }
        for name, ours in instead.items():
            wrapped = self._instead(getattr(os, name), ours)
            patches.set(os, name, wrapped)
            if name in vars(paths or object) and name != "open":
                patches.set(paths, name, staticmethod(wrapped))

    def _instead(self, plain: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that has `ours` called with the plain one and an absolute path, where there is a path."""

        @functools.wraps(plain)
        def function(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if self._over or not isinstance(path, (str, bytes, os.PathLike)):
                return plain(path, *args, **kwargs)
            absolute, folder = os.fsdecode(path), kwargs.get("dir_fd")
            if folder is not None and ours == self._remove:  # shutil.rmtree holds the folder open
                absolute = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), absolute)
            elif any(value is not None for key, value in kwargs.items() if key.endswith("dir_fd")):
                return plain(path, *args, **kwargs)
            return ours(plain, os.path.abspath(absolute), path, *args, **kwargs)

        return function

    def _place(self, file: Any, mode: str) -> Any:
        """Return what is to be opened instead."""
        if self._over or not isinstance(file, (str, bytes, os.PathLike)):
            return file
        path = os.path.abspath(os.fsdecode(file))
        place = self._written.get(path)
        if not _WRITING & set(mode) or path.startswith(_DEVICES):
            self._check(path, file)
            if place is None and not os.path.lexists(path) and path in map(os.path.abspath, self.unsaved):
                why = "torch.save writes nothing in a prediction: leave the loading out of what is predicted"
                raise UnavailableError(f"{os.fsdecode(file)!r} cannot be read: {why}")
            return file if place is None else place
        if place is not None and self._is_ours(place):
            return place
        there = os.path.exists(path)
        if "x" in mode and there:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
        if ("r" in mode and not there) or not os.path.isdir(os.path.dirname(path)):
            raise _not_found(file)
        fresh = self._fresh()
        if "w" not in mode and there:
            with self._plain_open(place or path, "rb") as source, self._plain_open(fresh, "wb") as copy:
                shutil.copyfileobj(source, copy)
        self._written[path] = fresh
        self._gone.discard(path)
        return fresh

    def _fresh(self) -> str:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="gpumem-")
        self._count += 1
        return os.path.join(self._folder, str(self._count))

    def _is_ours(self, place: str) -> bool:
        return self._folder is not None and os.path.dirname(place) == self._folder

    def _is_made(self, path: str) -> bool:
        """Return whether the code has made it, or a folder above it: then it is not the user's."""
        return any(above in self._made for above in (path, *map(str, pathlib.PurePath(path).parents)))

    def _check(self, path: str, name: Any) -> None:
        if path in self._gone and path not in self._written:
            raise _not_found(name)

    def _open(self, plain: Any, path: str, name: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if not flags & _OPENED_TO_WRITE:
            self._check(path, name)
            opened: int = plain(self._written.get(path, name), flags, *args, **kwargs)
        elif flags & os.O_EXCL:  # a file of a name that nobody has, such as a temporary one
            opened = plain(name, flags, *args, **kwargs)
            self._made.add(path)
        else:
            mode = "w" if flags & os.O_TRUNC else "a"
            exists = flags & os.O_CREAT or os.path.exists(path)
            place = self._place(name, mode if exists else "r+")
            opened = plain(place, flags if place is name else flags | os.O_CREAT, *args, **kwargs)
        return opened

    def _ask(self, plain: Any, path: str, name: Any, **kwargs: Any) -> Any:
        if path in self._written:
            name = self._written[path]
        else:
            self._check(path, name)
        return plain(name, **kwargs)

    def _mark(self, plain: Any, path: str, name: Any, *args: Any, **kwargs: Any) -> None:
        place = self._written.get(path)
        if place is None and self._is_made(path):
            plain(name, *args, **kwargs)
        elif place is not None and self._is_ours(place):
            plain(place, *args, **kwargs)
        else:
            os.stat(name)  # a file of the user's stays as it is; one that is not there is an error

    def _list(self, plain: Any, path: str, name: Any = ".") -> list[Any]:
        self._check(path, name)
        written = {os.path.basename(file) for file in self._written if os.path.dirname(file) == path}
        if isinstance(name, bytes):
            return [entry for entry in plain(name) if os.path.join(path, os.fsdecode(entry)) not in self._gone]
        real = {entry for entry in plain(name) if os.path.join(path, entry) not in self._gone}
        return [*real, *(written - real)]

    def _make(self, plain: Any, path: str, name: Any, *args: Any, **kwargs: Any) -> None:
        if path in self._gone and os.path.isdir(os.path.dirname(path)):
            self._gone.discard(path)  # what was in it stays hidden
        else:
            plain(name, *args, **kwargs)
            self._made.add(path)

    def _remove(self, plain: Any, path: str, name: Any, **kwargs: Any) -> None:
        if plain.__name__ == "rmdir":  # shutil.rmtree has not seen, and so not removed, what lies elsewhere
            for file in [file for file in self._written if os.path.dirname(file) == path]:
                del self._written[file]
        if self._is_made(path) and path not in self._written:
            plain(name, **kwargs)
        elif self._written.pop(path, None) is None and path not in self._gone:
            folder = os.path.isdir(path) and not os.path.islink(path)
            if not os.path.lexists(path):
                raise _not_found(name)
            if folder != (plain.__name__ == "rmdir"):
                code = errno.EISDIR if folder else errno.ENOTDIR
                raise OSError(code, os.strerror(code), name)
            if folder and os.listdir(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
        self._gone.add(path)

    def _rename(self, plain: Any, path: str, name: Any, to: Any) -> None:
        target = os.path.abspath(os.fsdecode(to))
        if os.fspath(name) in self.unsaved:  # what torch.save would have written first under another name
            self.unsaved[os.fspath(to)] = None
        elif self._is_made(path) and path not in self._written:
            plain(name, to)
            self._made.add(target)
        else:
            self._check(path, name)
            if not os.path.exists(path) or not os.path.isdir(os.path.dirname(target)):
                raise _not_found(name)
            if os.path.isdir(path):
                what = "rename or move a file, not a folder, or do that outside the cell"
                raise UnavailableError(f"a prediction cannot rename the folder {os.fspath(name)!r}; {what}")
            self._written[target] = self._written.pop(path, path)
            self._gone.discard(target)
            self._gone.add(path)

    def _truncate(self, plain: Any, path: str, name: Any, length: int) -> None:
        plain(name if self._is_made(path) else self._place(name, "r+"), length)

    def _throw_away(self) -> None:
        self._over = True
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _not_found(name: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
