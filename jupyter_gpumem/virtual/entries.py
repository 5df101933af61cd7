"""What `os.scandir` finds, with files whose content lies elsewhere."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Entry:
    """An entry of a folder, like those of `os.scandir`."""

    def __init__(self, folder: Any, path: str, name: str) -> None:
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = self.name if isinstance(folder, int) else os.path.join(os.fspath(folder), self.name)
        self._path = os.path.join(path, name)

    def __fspath__(self) -> Any:
        return self.path

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return os.path.islink(self._path)

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._path, follow_symlinks=follow_symlinks)

    def _is(self, kind: Callable[[int], bool], follow_symlinks: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except FileNotFoundError:
            return False


class Entries:
    """What `os.scandir` returns: an iterator, and a context."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
