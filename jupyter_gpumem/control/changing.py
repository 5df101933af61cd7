"""Showing and changing the allocator settings of the running process, as a user asks for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jupyter_gpumem.allocator.environment import permanent_line, read_environment
from jupyter_gpumem.allocator.keys import KEYS
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.arguments import check_flag
from jupyter_gpumem.devices import actable_backend, loaded_torch, torch_installed
from jupyter_gpumem.errors import InvalidValueError, UnavailableError
from jupyter_gpumem.records import AllocatorConfig, SettingChange
from jupyter_gpumem.units import format_bytes

from .book import RESERVATIONS
from .configuration import configuration
from .hazards import notes_on_change

if TYPE_CHECKING:
    from jupyter_gpumem.devices import Backend

    from .configuration import Configuration


def allocator_config(
    changes: str | None = None, *, undo: bool = False, reset: bool = False, force: bool = False
) -> AllocatorConfig:
    """Return the allocator settings in force, after changing them if asked to. Works for the whole process.

    Args:
        changes: `KEY:VALUE,...` as in `PYTORCH_CUDA_ALLOC_CONF`; keys that are not named keep what they have, and
            `KEY:default` takes one back to PyTorch's default.
        undo: take the latest change back.
        reset: go back to what the process started with.
        force: also do what is refused for being unsafe or without effect.

    Raises:
        InvalidValueError: a key, a value or a flag is wrong, or more than one thing was asked for.
        SettingsRefusedError: the change is unsafe or has no effect, or PyTorch refuses it; nothing was changed.
        UnavailableError: there is no PyTorch, no GPU, or no allocator with settings.
    """
    for name, flag in (("undo", undo), ("reset", reset), ("force", force)):
        check_flag(name, flag)
    if (changes is not None) + undo + reset > 1:
        raise InvalidValueError("a change, undo and reset are three things; ask for one of them")
    if changes is not None:
        AllocatorSettings().merged(changes)  # what is wrong in itself is said first, and everywhere
    if changes is None and not undo and not reset:
        here = configuration()
        return here.record(here.in_force(), notes=here.absence())
    if loaded_torch() is None and torch_installed() and changes is not None:
        line = permanent_line(str(configuration().in_force().merged(changes)), read_environment(os.environ))
        raise UnavailableError(
            f"torch is not imported yet, and reads its settings when it is: write {line} before that"
        )
    here = configuration(*actable_backend("the allocator settings cannot be changed"))
    now = here.in_force()
    if undo:
        before, after = here.undo(force=force)
    else:
        wanted = now.merged(changes) if changes is not None else here.start
        before, after = here.change(wanted, force=force, back=reset)
    old, new = before.named(), after.named()
    changed = tuple(
        SettingChange(key, old.get(key, known.default), new.get(key, known.default), known.effect)
        for key, known in KEYS.items()
        if old.get(key) != new.get(key)
    )
    return here.record(after, changed, tuple(_consequences(here, before, after)))


def _consequences(here: Configuration, before: AllocatorSettings, after: AllocatorSettings) -> list[str]:
    """Return what a change meant for the memory that is there, after giving back what would never be used again."""
    notes = []
    if before.expandable_segments != after.expandable_segments:
        aside = _put_aside(here.backend)
        returned = here.return_unused()
        if returned:
            why = "could not grow" if after.expandable_segments else "would not be used again"
            what = f", with what was put aside as {', '.join(aside)}" if aside else ""
            notes.append(f"{format_bytes(returned)} of unused memory went back to the driver{what}: it {why}.")
    return notes + notes_on_change(before, after, here.segments(), shared=here.shares_memory())


def _put_aside(backend: Backend) -> tuple[str, ...]:
    """Return the names of what goes back to the driver with the cache of what `reserve` put there."""
    return tuple(
        name
        for index in backend.ready()
        for name in RESERVATIONS.returnable(backend, index, backend.segments(index) or [])
    )
