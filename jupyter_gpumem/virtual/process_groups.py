"""Process groups of `torch.distributed` that code on trial makes end with it, so that it can make them for real."""

from __future__ import annotations

from typing import Any

import torch


class ProcessGroups:
    """Which process groups there are, to be put back once."""

    def __init__(self) -> None:
        self._world: Any = torch.distributed.distributed_c10d._world if torch.distributed.is_available() else None
        self._before: dict[Any, str] = {}
        self._count = 0
        if self._world is not None:
            self._before, self._count = dict(self._world.pg_names), self._world.group_count

    def restore(self) -> list[str]:
        """Destroy those that are new; returns a sentence for each that was destroyed, which cannot be made again."""
        if self._world is None:
            return []
        gone = [name for group, name in self._before.items() if group not in self._world.pg_names]
        new = [group for group in self._world.pg_names if group not in self._before]
        # With the default group go all others; a group made later may need an earlier one to end.
        for group in [self._world.default_pg] if self._world.default_pg in new else reversed(new):
            torch.distributed.destroy_process_group(group)
        if self._before and not gone:
            self._world.group_count = self._count  # by which all processes name the next one
        return [f"the process group {name!r} was destroyed, which cannot be undone" for name in gone]
