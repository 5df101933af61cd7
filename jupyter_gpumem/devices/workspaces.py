"""Recognising cuBLAS workspaces: memory that PyTorch takes at the first matrix product and keeps for the process.

Each thread's cuBLAS handle gets one for each stream (so a backward pass, which runs on a thread of its own, adds a
second), and it is counted as allocated. Blaming it on the user's cell would be wrong (pytorch/pytorch#95668).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.units import KiB, MiB

if TYPE_CHECKING:
    from jupyter_gpumem.records import DeviceUsage

    from .base import Backend

DEFAULT_SIZES = frozenset(
    {
        32 * MiB,  # compute capability 9.0 and later
        8 * MiB + 8 * 16 * KiB,  # before that: ":4096:2:16:8"
    }
)
_PAIR = re.compile(r":(\d+):(\d+)")


def sizes() -> frozenset[int]:
    """Return the sizes in bytes that a cuBLAS workspace can have in this process."""
    pairs = _PAIR.findall(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return frozenset({sum(int(size) * KiB * int(count) for size, count in pairs)}) if pairs else DEFAULT_SIZES


def candidates(segments: list[dict[str, Any]]) -> dict[int, int]:
    """Return `{address: bytes}` of live blocks in the default pools whose requested size is that of a workspace."""
    wanted = sizes()
    found = {}
    for segment in segments:
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block.get("requested_size") in wanted:
                found[block.get("address", address)] = block["requested_size"]
            address += block["size"]
    return found


class WorkspaceLog:
    """Which workspaces were there when, so that an interval is charged with those that came inside it and no others.

    A search walks every block, so it is made only after an interval that left as much behind as a workspace takes.
    """

    _MOST_BLOCKS = 20_000  # about 1 us for each block: beyond this many the search is not made

    def __init__(self) -> None:
        self._known: dict[str, tuple[int | None, frozenset[int]]] = {}

    def appeared(self, backend: Backend, usage: DeviceUsage) -> int | None:
        """Return the bytes of workspaces that came in the interval; `None` if there are none or it cannot be told."""
        grown = usage.delta_allocated or 0
        if grown <= 0 or grown < (smallest := min(sizes())) or (usage.end.live or 0) > self._MOST_BLOCKS:
            return None
        found = backend.workspaces(usage.device.index)
        seen_at, known = self._known.get(usage.device.label, (None, frozenset()))
        self._known[usage.device.label] = (usage.end.allocation_count, frozenset(found))
        if (usage.start.allocated or 0) < smallest:
            known = frozenset()  # too little memory at the start for even one
        elif seen_at != usage.start.allocation_count:
            return None  # something was allocated that nobody measured: a workspace may have been among it
        return sum(size for address, size in found.items() if address not in known) or None
