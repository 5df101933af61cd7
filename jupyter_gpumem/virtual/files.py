"""Files that code on trial writes, renames and removes: it all happens elsewhere, so that no checkpoint is lost."""

from __future__ import annotations

import builtins
import functools
import glob
import io
import os
import pathlib
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from .overlay import DEVICES, Overlay
from .storages import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from .patches import Patches

_OURS = __name__.partition(".")[0]
_PUBLIC = {"posix": "os", "_io": "io", "_sqlite3": "sqlite3"}
_UNTOUCHED = {"posix", "_io"}  # with which Python writes what it compiles
_OF_LINKS = {"lstat", "readlink", "mkdir", "remove", "unlink", "rmdir"}  # which follow no link at the end of a path
_raw_device = torch._C.StorageBase.device.__get__


class Files:
    """Lets `open` and `torch.save` write elsewhere, and `open` and `torch.load` read again what was written there.

    What the functions of `os` remove, rename or link (`shutil` and paths do it with these) stays as it is and is only
    hidden meanwhile from all of them. Folders that the code makes are there meanwhile, for libraries, and not
    afterwards; see `Overlay`. Names that any module, or the user, has for these functions stand for ours meanwhile.

    A module that is imported meanwhile may keep what it finds (`from torch import save`): afterwards that is as plain
    as what it stands for, and in the next prediction it is harmless again.

    Args:
        patches: where they are replaced; its undoing throws away what was written.
        names: finds the names that modules have for them.

    Attributes:
        instead: what stands for each function, by the id of that.
        notes: afterwards a sentence for each thing that stays.
    """

    def __init__(self, patches: Patches, names: BoundNames) -> None:
        self.notes: list[str] = []
        self.instead: dict[int, Any] = {}
        self._over = False
        self._acted: list[tuple[int, Any]] = []
        self._overlay = overlay = Overlay(builtins.open)
        patches.on_undo(self._throw_away)
        self._replace(builtins.open, self._open)
        self.instead[id(_FileIO)] = _FileIOHere
        self._act(_FileIO, self._place)
        instead: dict[str, Callable[..., Any]] = {
            "open": overlay.open,
            "stat": overlay.ask,
            "lstat": overlay.ask,
            "readlink": overlay.ask,
            "listxattr": overlay.ask,
            "getxattr": overlay.ask,
            "access": overlay.access,
            "listdir": overlay.list,
            "scandir": overlay.scan,
            "mkdir": overlay.make,
            "remove": overlay.remove,
            "unlink": overlay.remove,
            "rmdir": overlay.remove,
            "truncate": overlay.truncate,
            "chmod": overlay.mark,
            "chown": overlay.mark,
            "utime": overlay.mark,
            "setxattr": overlay.mark,
            "removexattr": overlay.mark,
        }
        for name, ours in instead.items():
            plain = getattr(os, name)
            self._replace(plain, self._of_one_path(plain, ours, follow=name not in _OF_LINKS))
        for name in ("rename", "replace", "link"):
            self._replace(getattr(os, name), self._of_two_paths(getattr(os, name)))
        self._replace(os.symlink, self._symlink)
        self._patch_archives(patches)
        self._replace(torch.save, self._save)
        self._replace(torch.load, self._load)
        if sqlite := sys.modules.get("_sqlite3"):
            self._replace(sqlite.connect, self._connect)
        for owner, name, key in names.find(self.instead):
            ours = self.instead[key]
            patches.set(owner, name, staticmethod(ours) if isinstance(owner, type) else ours)
        numpy: Any = sys.modules.get("numpy.lib._datasource")
        if numpy is not None:  # numpy.savetxt has its own; asking for the keys loads the others
            openers = {key: numpy._file_openers[key] for key in numpy._file_openers.keys()}  # noqa: SIM118
            patches.set(numpy._file_openers, "_file_openers", {**openers, None: builtins.open})

    @property
    def open(self) -> Callable[..., Any]:
        """Return what stands for `open`."""
        function: Callable[..., Any] = builtins.open
        return function

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Return the files that `torch.save` was to write."""
        return self._overlay.unsaved

    def _replace(self, plain: Any, ours: Callable[..., Any]) -> None:
        """Have a function called in place of a plain one, which it is given first, until it is over."""
        self.instead[id(plain)] = _stand_in(plain)
        self._act(plain, ours)

    def _act(self, plain: Any, ours: Callable[..., Any]) -> None:
        self._acted.append((id(plain), _acting.get(id(plain))))
        _acting[id(plain)] = ours

    def _of_one_path(self, plain: Any, ours: Callable[..., Any], *, follow: bool) -> Callable[..., Any]:
        def function(_: Any, path: Any = ".", *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if isinstance(path, int) and ours == self._overlay.scan:  # shutil.rmtree holds the folder open
                return ours(plain, _path_of(path), path)
            if not isinstance(path, (str, bytes, os.PathLike)):
                return plain(path, *args, **kwargs)
            if dir_fd is not None:
                path = os.path.join(_path_of(dir_fd), os.fsdecode(path))
            where = self._resolve(path, follow=follow and kwargs.get("follow_symlinks", True))
            return ours(plain, *where, *args, **kwargs)

        return function

    def _of_two_paths(self, plain: Any) -> Callable[..., Any]:
        ours = self._overlay.link if plain is os.link else self._overlay.rename

        def function(_: Any, src: Any, dst: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            if any(kwargs.get(name) is not None for name in ("src_dir_fd", "dst_dir_fd")):
                plain(src, dst, **kwargs)  # nothing in Python's own library does that
            else:
                ours(*self._resolve(src, follow=False), *self._resolve(dst, follow=False))

        return function

    def _symlink(self, plain: Any, src: Any, dst: Any, target_is_directory: bool = False, **kwargs: Any) -> None:
        __tracebackhide__ = True
        if kwargs.get("dir_fd") is not None:
            plain(src, dst, target_is_directory, **kwargs)
        else:
            self._overlay.symlink(os.fsdecode(src), *self._resolve(dst, follow=False))

    def _resolve(self, path: Any, *, follow: bool = True) -> tuple[str, Any]:
        """Return the absolute path that is meant, and a name for it: the given one, or where the code's links lead."""
        __tracebackhide__ = True
        absolute = os.path.abspath(os.fsdecode(path))
        meant = self._overlay.resolve(absolute, follow=follow)
        if meant != absolute:
            path = os.fsencode(meant) if isinstance(path, bytes) else meant
        return meant, path

    def _place(self, file: Any, mode: str) -> Any:
        """Return what is to be opened instead."""
        __tracebackhide__ = True
        if self._over or not isinstance(file, (str, bytes, os.PathLike)):
            return file
        return self._overlay.place(*self._resolve(file), mode)

    def _place_if_possible(self, file: Any, mode: str) -> Any:
        """Do the same for functions that have their own errors where there is no such folder."""
        is_path = isinstance(file, (str, bytes, os.PathLike))
        if is_path and not os.path.isdir(os.path.dirname(os.path.abspath(os.fsdecode(file)))):
            return file
        return self._place(file, mode)

    def _open(self, plain: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        opener = args[5] if len(args) > 5 else kwargs.get("opener")
        # An opener has its own idea of what to open, and does it with os.open.
        return plain(self._place(file, mode) if opener is None else file, mode, *args, **kwargs)

    def _save(self, plain: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        plain(obj, f, *args, **kwargs)  # which opens an archive, or a file
        if isinstance(f, (str, os.PathLike)):
            path, name = self._resolve(os.fspath(f))
            if not path.startswith(DEVICES):
                self._overlay.note_unsaved(path, name)

    def _load(self, plain: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return plain(self._place(f, "rb") if isinstance(f, (str, os.PathLike)) else f, *args, **kwargs)

    def _connect(self, plain: Any, database: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if not kwargs.get("uri") and database not in {"", ":memory:"}:
            database = self._place_if_possible(database, "a")
        return plain(database, *args, **kwargs)

    def _patch_archives(self, patches: Patches) -> None:
        """Have PyTorch's own archives elsewhere too, with holes for what has no values, not gigabytes of zeros."""
        plain_cpu, place = torch.UntypedStorage.cpu, self._place_if_possible

        @functools.wraps(plain_cpu)
        def cpu(storage: torch.UntypedStorage) -> Any:
            caller = sys._getframe(1).f_globals["__name__"]
            is_hole = caller == torch.serialization.__name__ and _raw_device(storage).type == BACKEND
            return storage if is_hole else plain_cpu(storage)

        class Writer(torch._C.PyTorchFileWriter):  # type: ignore[misc]
            def __init__(self, file: Any, *args: Any, **kwargs: Any) -> None:
                super().__init__(place(file, "wb"), *args, **kwargs)

            def write_record(self, name: str, data: Any, size: int) -> None:
                if isinstance(data, torch.UntypedStorage) and _raw_device(data).type == BACKEND:
                    self.write_record_metadata(name, size)
                else:
                    super().write_record(name, data, size)

        class Reader(torch._C.PyTorchFileReader):  # type: ignore[misc]
            def __init__(self, file: Any, *args: Any, **kwargs: Any) -> None:
                super().__init__(place(file, "rb"), *args, **kwargs)

        patches.set(torch.UntypedStorage, "cpu", cpu)
        patches.set(torch._C, "PyTorchFileWriter", Writer)
        patches.set(torch._C, "PyTorchFileReader", Reader)

    def _throw_away(self) -> None:
        self._over = True
        for key, before in reversed(self._acted):
            if before is None:
                del _acting[key]
            else:
                _acting[key] = before
        self.notes += self._overlay.close()


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


class BoundNames:
    """The names that modules have for functions, and those that Python's own paths have for them; looked for once."""

    def __init__(self) -> None:
        self._found: list[tuple[Any, str, int]] | None = None

    def find(self, functions: Container[int]) -> list[tuple[Any, str, int]]:
        """Return each with its owner and the function's id.

        Args:
            functions: their ids.
        """
        if self._found is None:
            self._found = [*_in_modules(functions), *_in_paths(functions)]
        return self._found


def _in_modules(functions: Container[int]) -> Iterator[tuple[Any, str, int]]:
    for module_name, module in list(sys.modules.items()):
        if module_name in _UNTOUCHED or module_name.partition(".")[0] == _OURS:
            continue
        if isinstance(module, types.ModuleType):
            for name, key in [(name, id(value)) for name, value in vars(module).items() if id(value) in functions]:
                yield module, name, key


def _in_paths(functions: Container[int]) -> Iterator[tuple[Any, str, int]]:
    for kind in (getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None)):  # Python 3.10, 3.13
        for name, value in list(vars(kind or object).items()):
            key = id(value.__func__ if isinstance(value, staticmethod) else value)
            if key in functions:
                yield kind, name, key


# What stands for a function, for the life of the process: modules may keep it, and it is found there by its id

_standing: dict[int, Callable[..., Any]] = {}
_acting: dict[int, Callable[..., Any]] = {}
"""What each of them does now, by the id of what it stands for; nothing but that where there is no prediction."""


def _stand_in(plain: Any) -> Callable[..., Any]:
    if id(plain) not in _standing:

        @functools.wraps(plain)
        def function(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            ours = _acting.get(id(plain))
            return plain(*args, **kwargs) if ours is None else ours(plain, *args, **kwargs)

        # Where a pickle finds it, which is what other processes are told of it by.
        function.__module__ = _PUBLIC.get(plain.__module__, plain.__module__)
        _standing[id(plain)] = function
    return _standing[id(plain)]


_FileIO = io.FileIO


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _FileIO)  # as the files of `open` are


class _FileIOHere(_FileIO, metaclass=_Kind):  # type: ignore[metaclass]
    """Stands for `io.FileIO`."""

    def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
        place = _acting.get(id(_FileIO))
        super().__init__(file if place is None or opener is not None else place(file, mode), mode, closefd, opener)
