"""Putting a recording where the user wants it, without harming what is there already."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from .arguments import check_path
from .errors import RecordingError


def check_place(path: str | os.PathLike[str]) -> Path:
    """Return the file that a path names, links followed, if one can be saved there; nothing is written.

    Raises:
        InvalidValueError: it is no path.
        RecordingError: what is there is no ordinary file, or its folder cannot be written to.
    """
    check_path(path)
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode if target.exists() else stat.S_IFREG
        target.parent.stat()
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from error
    if stat.S_ISDIR(mode):
        raise RecordingError(f"{_shown(path)} is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        # A file that is complete takes the place of what is there: that would be the end of a device or a pipe.
        raise RecordingError(f"{_shown(path)} is a device or a pipe, not a file; name another place")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise RecordingError(f"{_shown(path)} cannot be written: its folder does not permit it; name another place")
    return target


def save_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Save bytes in a file, which is replaced only once the new one is complete, and stays as accessible as it was.

    Raises:
        RecordingError: see `check_place`; or the file cannot be written.
    """
    target = check_place(path)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
    try:
        # Not `tempfile`: what that makes, nobody else may read.
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: str | os.PathLike[str], error: OSError | ValueError) -> RecordingError:
    reason = getattr(error, "strerror", None) or type(error).__name__
    return RecordingError(f"{_shown(path)} cannot be written: {reason}; name another place")


def _shown(path: str | os.PathLike[str]) -> str:
    return repr(str(Path(path)))
