"""What was being built when an error was raised: values that no variable holds, and that went with the error.

A list that a comprehension fills lies on the stack of its frame, which Python clears when an error leaves that frame.
When the error is explained, that memory is free again.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

from jupyter_gpumem.units import format_bytes

from .shapes import users_steps

if TYPE_CHECKING:
    from types import CodeType

    from jupyter_gpumem.records import DeviceHolders

_WORTH_NAMING = 0.02
_FUNCTIONS = {"<listcomp>": "list", "<setcomp>": "set", "<dictcomp>": "dict"}
"""What a comprehension is called until Python 3.11: a function of its own. Later it is part of the code around it."""

_ADDING = {"LIST_APPEND": "list", "SET_ADD": "set", "MAP_ADD": "dict"}
"""Instructions with which a comprehension ends each of its rounds, before it jumps back."""


def nameless(before: int | None, books: DeviceHolders, error: BaseException | None) -> list[str]:
    """Say how much nobody can be named for: what went with the error, and what no object shows; without small parts.

    Args:
        before: bytes that were allocated when memory ran out.
        books: who holds memory on that device now.
        error: the error, where it is at hand.
    """
    if not before:
        return []
    told = []
    if (gone := before - books.allocated) >= _WORTH_NAMING * before:
        built = None if error is None else being_built(error)
        held = "held by what was being computed or built" if built is None else f"probably held by {built}"
        told.append(f"{format_bytes(gone)} of what was allocated then is free again: it was {held}")
    if books.unattributed >= _WORTH_NAMING * before:
        told.append(f"{format_bytes(books.unattributed)} are not attributed: no Python object shows them")
    return told


def being_built(error: BaseException) -> str | None:
    """Return what the innermost comprehension that an error left was building, with its line; `None` without one."""
    for step in reversed(users_steps(error)):
        code = step.tb_frame.f_code
        kind = _FUNCTIONS.get(code.co_name) or _inlined(code, step.tb_lasti)
        if kind is not None:
            return f"the {kind} that the comprehension in line {step.tb_lineno} was building"
    return None


def _inlined(code: CodeType, at: int) -> str | None:
    """Return what is built by the innermost loop around an instruction, if that loop is a comprehension's."""
    before, innermost, kind = "", -1, None
    for one in dis.get_instructions(code):
        if one.opname == "EXTENDED_ARG":
            continue
        if one.opname == "JUMP_BACKWARD" and innermost < one.argval <= at <= one.offset:
            innermost, kind = one.argval, None
        if one.opname == "JUMP_BACKWARD" and one.argval == innermost and before in _ADDING:
            kind = _ADDING[before]
        before = one.opname
    return kind
