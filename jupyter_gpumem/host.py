"""The memory of this process on the host."""

from __future__ import annotations

import os
import sys

import psutil

_STATM = "/proc/self/statm" if sys.platform == "linux" else None


def resident_bytes() -> int | None:
    """Return this process's resident memory, or `None` where it cannot be read (no file descriptors left, no /proc).

    Every measured cell reads it twice, so on Linux the file that psutil parses is read without what psutil does around
    it, which takes four times as long. It is always that of the very process that asks, also after a fork.
    """
    try:
        if _STATM is None:
            return int(psutil.Process().memory_info().rss)
        file = os.open(_STATM, os.O_RDONLY)
        try:
            pages = os.read(file, 128).split()[1]
        finally:
            os.close(file)
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, psutil.Error):
        return None
