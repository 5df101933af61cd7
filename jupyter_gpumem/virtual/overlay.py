"""What code on trial finds on disk: what it has written, renamed, removed and made, on top of what was there before."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import stat
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import UnavailableError

from .entries import Entries, Entry

if TYPE_CHECKING:
    from collections.abc import Callable

_WRITING = frozenset("wax+")
DEVICES = ("/dev/", "/proc/", "/sys/")
_OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST_LINKS = 40  # as many as Linux follows
_lstat, _rename, _symlink = os.lstat, os.rename, os.symlink  # as they are: this is imported before they are replaced


class Overlay:
    """Files whose content lies elsewhere, files that are hidden, links that are none, and what is made for real.

    Folders, and files that must not exist yet (temporary ones), are made for real, so that libraries can use them, and
    are removed again at the end. All methods take the absolute path, and the name that the code has used, for errors;
    those that stand in for a function of `os` are given that as well.

    Args:
        plain_open: `open`, as it is.
    """

    def __init__(self, plain_open: Callable[..., Any]) -> None:
        self._plain_open = plain_open
        self._folder = tempfile.mkdtemp(prefix="gpumem-")  # at once: a forked process could not tell of its own
        self._count = 0
        self._unsaved: dict[str, str] = {}  # by path, as the code names them
        self._written: dict[str, str] = {}  # a path and where its content lies: in our folder, or where it was before
        self._links: dict[str, str] = {}
        self._gone: set[str] = set()
        self._made: dict[str, bool] = {}  # in their order, and whether they are to be removed at the end
        self._other_threads = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Return the files that `torch.save` was to write."""
        return tuple(self._unsaved.values())

    def close(self) -> list[str]:
        """Remove all that was made; returns a sentence for each folder that others have written into meanwhile."""
        shutil.rmtree(self._folder, ignore_errors=True)
        notes, temporary = [], tempfile.gettempdir()
        for path in [path for path, ours in reversed(self._made.items()) if ours]:
            if os.path.dirname(path) == temporary:  # packages keep such a folder for the life of the process
                continue
            try:
                (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.remove)(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                notes.append(f"{path!r} stays, because it cannot be removed: {error.strerror}")
        return notes

    def resolve(self, path: str, *, follow: bool = True) -> str:
        """Return where a path leads by the links that the code has made.

        Args:
            path: an absolute path.
            follow: whether a link at its end is followed too.

        Raises:
            OSError: the links go in a circle.
        """
        __tracebackhide__ = True
        for _ in range(_MOST_LINKS):
            for link, target in self._links.items():
                if path.startswith(link + os.sep) or (follow and path == link):
                    path = os.path.normpath(os.path.join(os.path.dirname(link), target, path[len(link) + 1 :]))
                    break
            else:
                return path
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    # Content

    def place(self, path: str, name: Any, mode: str) -> Any:
        """Return what is to be opened instead, in a mode of `open`."""
        __tracebackhide__ = True
        place = self._written.get(path)
        if not _WRITING & set(mode) or path.startswith(DEVICES):
            self._check(path, name)
            return name if place is None else place
        if place is not None and self._is_ours(place):
            return place
        there = os.path.exists(path)
        if "x" in mode and there:
            raise _error(errno.EEXIST, name)
        if ("r" in mode and not there) or not os.path.isdir(os.path.dirname(path)):
            raise _error(errno.ENOENT, name)
        if os.path.isdir(path):
            raise _error(errno.EISDIR, name)
        fresh = self._fresh()
        if "w" not in mode and there:
            with self._plain_open(place or path, "rb") as source, self._plain_open(fresh, "wb") as copy:
                shutil.copyfileobj(source, copy)
        self._written[path] = fresh
        self._gone.discard(path)
        return fresh

    def note_unsaved(self, path: str, name: str) -> None:
        """Note a file that `torch.save` was to write."""
        self._unsaved[path] = name

    def _fresh(self) -> str:
        self._count += 1
        return os.path.join(self._folder, f"{os.getpid()}-{self._count}")

    def _is_ours(self, place: str) -> bool:
        return os.path.dirname(place) == self._folder or place in self._made

    def _is_made(self, path: str) -> bool:
        """Return whether the code has made it, or a folder above it: then it is not the user's."""
        return any(above in self._made for above in (path, *map(str, pathlib.PurePath(path).parents)))

    def _check(self, path: str, name: Any) -> None:
        __tracebackhide__ = True
        if path in self._gone and path not in self._written:
            raise _error(errno.ENOENT, name)

    def _note_made(self, path: str) -> None:
        self._made[path] = threading.get_ident() not in self._other_threads
        self._gone.discard(path)

    # Functions of `os`

    def open(self, plain: Any, path: str, name: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        """Stand in for `os.open`."""
        __tracebackhide__ = True
        if not flags & _OPENED_TO_WRITE:
            self._check(path, name)
            opened: int = plain(self._written.get(path, name), flags, *args, **kwargs)
        elif flags & os.O_TMPFILE == os.O_TMPFILE:  # a file without a name, and the path is that of a folder
            opened = plain(name, flags, *args, **kwargs)
        elif flags & os.O_EXCL and path not in self._written and path not in self._gone:
            opened = plain(name, flags, *args, **kwargs)  # a file of a name that nobody has, such as a temporary one
            self._note_made(path)
        else:
            mode = "x" if flags & os.O_EXCL else "w" if flags & os.O_TRUNC else "a"
            exists = flags & os.O_CREAT or os.path.exists(path)
            place = self.place(path, name, mode if exists else "r+")
            opened = plain(place, flags if place is name else flags | os.O_CREAT, *args, **kwargs)
        return opened

    def ask(self, plain: Any, path: str, name: Any, *args: Any, **kwargs: Any) -> Any:
        """Stand in for functions that only read: `os.stat` and the like."""
        __tracebackhide__ = True
        if path not in self._written:
            self._check(path, name)
        return plain(self._written.get(path, name), *args, **kwargs)

    def access(self, plain: Any, path: str, name: Any, *args: Any, **kwargs: Any) -> bool:
        """Stand in for `os.access`, which never raises."""
        __tracebackhide__ = True
        there = path in self._written or path not in self._gone
        return there and bool(plain(self._written.get(path, name), *args, **kwargs))

    def mark(self, plain: Any, path: str, name: Any, *args: Any, **kwargs: Any) -> None:
        """Stand in for functions that change what is known about a file: `os.chmod`, `os.utime`."""
        __tracebackhide__ = True
        place = self._written.get(path)
        if place is None and self._is_made(path):
            plain(name, *args, **kwargs)
        elif place is not None and self._is_ours(place):
            plain(place, *args, **kwargs)
        else:
            os.stat(name)  # a file of the user's stays as it is; one that is not there is an error

    def list(self, plain: Any, path: str, name: Any = ".") -> list[Any]:
        """Stand in for `os.listdir`."""
        __tracebackhide__ = True
        self._check(path, name)
        real = [os.fsdecode(entry) for entry in plain(name)]
        names = [entry for entry in real if os.path.join(path, entry) not in self._gone]
        names += self._written_in(path) - set(names)
        return [os.fsencode(entry) for entry in names] if isinstance(name, bytes) else names

    def scan(self, plain: Any, path: str, name: Any = ".") -> Entries:
        """Stand in for `os.scandir`."""
        __tracebackhide__ = True
        self._check(path, name)
        written = self._written_in(path)
        with plain(name) as found:
            entries = [
                entry
                for entry in found
                if (text := os.fsdecode(entry.name)) not in written and os.path.join(path, text) not in self._gone
            ]
        return Entries([*entries, *(Entry(name, path, text) for text in sorted(written))])

    def _written_in(self, path: str) -> set[str]:
        return {os.path.basename(file) for file in self._written if os.path.dirname(file) == path}

    def make(self, plain: Any, path: str, name: Any, *args: Any, **kwargs: Any) -> None:
        """Stand in for `os.mkdir`."""
        __tracebackhide__ = True
        if path in self._written:
            raise _error(errno.EEXIST, name)
        if path in self._gone and os.path.isdir(os.path.dirname(path)) and _is_really(stat.S_ISDIR, path):
            self._gone.discard(path)  # what was in it stays hidden
        else:
            plain(name, *args, **kwargs)
            self._note_made(path)

    def remove(self, plain: Any, path: str, name: Any) -> None:
        """Stand in for `os.remove` and `os.rmdir`."""
        __tracebackhide__ = True
        folder = plain.__name__ == "rmdir"
        if folder and os.path.isdir(path) and os.listdir(path):
            raise _error(errno.ENOTEMPTY, name)
        if path in self._written:
            if folder:
                raise _error(errno.ENOTDIR, name)
            del self._written[path]
            self._links.pop(path, None)
        elif self._is_made(path):
            plain(name)
            self._made.pop(path, None)
        else:
            if path in self._gone or not os.path.lexists(path):
                raise _error(errno.ENOENT, name)
            if _is_really(stat.S_ISDIR, path) != folder:
                raise _error(errno.ENOTDIR if folder else errno.EISDIR, name)
        self._gone.add(path)

    def rename(self, path: str, name: Any, target: str, to: Any) -> None:
        """Stand in for `os.rename` and `os.replace`."""
        __tracebackhide__ = True
        if not os.path.lexists(path) or not os.path.isdir(os.path.dirname(target)):
            raise _error(errno.ENOENT, name)
        if os.path.isdir(path) and path not in self._written:
            self._rename_folder(path, name, target)
            return
        if os.path.isdir(target) and target not in self._links:
            raise _error(errno.EISDIR, to)
        if path == target:
            return
        self._written[target] = self._written.pop(path, path)
        for moved in (self._links, self._unsaved):
            moved.pop(target, None)
            if path in moved:
                moved[target] = moved.pop(path)
        if target in self._unsaved:
            self._unsaved[target] = os.fsdecode(to)
        self._gone.discard(target)
        self._gone.add(path)

    def _rename_folder(self, path: str, name: Any, target: str) -> None:
        """Rename a folder that the code has made, with what lies elsewhere of its content."""
        __tracebackhide__ = True
        if path not in self._made or _is_really(bool, target):
            what = "rename or move a file, not a folder that was there before, or do that outside the cell"
            raise UnavailableError(f"a prediction cannot rename the folder {os.fspath(name)!r}; {what}")
        _rename(path, target)
        for moved in (self._written, self._links, self._unsaved, self._made):
            for file in [file for file in moved if file == path or file.startswith(path + os.sep)]:
                moved[target + file[len(path) :]] = moved.pop(file)  # type: ignore[assignment]
        self._unsaved.update({file: file for file in self._unsaved if file.startswith(target + os.sep)})
        self._gone = {target + file[len(path) :] if file.startswith(path + os.sep) else file for file in self._gone}
        self._gone.add(path)

    def symlink(self, text: str, path: str, name: Any) -> None:
        """Stand in for `os.symlink`: a link that is in our folder only."""
        __tracebackhide__ = True
        self._check_new(path, name)
        fresh = self._fresh()
        _symlink(text, fresh)
        self._written[path], self._links[path] = fresh, text

    def link(self, path: str, name: Any, target: str, to: Any) -> None:
        """Stand in for `os.link`: another name for the same content."""
        __tracebackhide__ = True
        self._check_new(target, to)
        if not os.path.exists(path):
            raise _error(errno.ENOENT, name)
        self._written[target] = self._written.get(path, path)

    def _check_new(self, path: str, name: Any) -> None:
        __tracebackhide__ = True
        if os.path.lexists(path):
            raise _error(errno.EEXIST, name)
        if not os.path.isdir(os.path.dirname(path)):
            raise _error(errno.ENOENT, name)

    def truncate(self, plain: Any, path: str, name: Any, length: int) -> None:
        """Stand in for `os.truncate`."""
        __tracebackhide__ = True
        made = path not in self._written and self._is_made(path)
        plain(name if made else self.place(path, name, "r+"), length)


def _is_really(kind: Callable[[int], bool], path: str) -> bool:
    """Whether there is something of a kind at a path, whatever is hidden."""
    try:
        return kind(_lstat(path).st_mode)
    except OSError:
        return False


def _error(code: int, name: Any) -> OSError:
    return OSError(code, os.strerror(code), name)  # which is a FileNotFoundError and so on, by its code
