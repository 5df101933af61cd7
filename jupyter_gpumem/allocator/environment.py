"""The environment variables that PyTorch reads its allocator settings from, once."""

from __future__ import annotations

import os
import re
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from jupyter_gpumem.errors import InvalidValueError

from .keys import KEYS
from .settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The first that is set wins (pytorch/pytorch, seen with torch 2.13, although a comment there says the opposite)."""

_WITH_FRACTION = frozenset({"garbage_collection_threshold", "per_process_memory_fraction"})
_FRACTION = re.compile(r"\+?(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)")
_WHOLE = re.compile(r"\+?(\d+)")


class Environment(NamedTuple):
    """What the environment says now.

    Attributes:
        variable: the variable that wins, or `None` when none is set.
        text: its settings string; empty without one.
        notes: what is odd about it, one sentence each.
        others: the variables that are set too, and would win without it.
    """

    variable: str | None
    text: str
    notes: tuple[str, ...]
    others: tuple[str, ...] = ()


def read_environment(environ: Mapping[str, str], in_force: str | None = None) -> Environment:
    """Return the settings string of the environment.

    Args:
        environ: the variables of the process.
        in_force: the string that PyTorch says it was given, which shows which variable won; `None` if not known.
    """
    given = {name: environ[name] for name in VARIABLES if environ.get(name)}
    if not given:
        return Environment(None, "", ())
    seen = [name for name, text in given.items() if text == in_force]
    winner = seen[0] if seen else next(iter(given))
    others, notes = tuple(name for name in given if name != winner), []
    if len(set(given.values())) > 1:
        named = " and ".join(others)
        notes.append(f"{winner} and {named} are both set and differ: {winner} wins; unset the other.")
    if (read := as_pytorch_reads(given[winner])) != "".join(given[winner].split()):
        notes.append(f"PyTorch reads {winner} as {read}: for it a number ends where a character is none of a number.")
    return Environment(winner, given[winner], tuple(notes), others)


def as_pytorch_reads(text: str) -> str:
    """Return a settings string with its numbers as PyTorch's lenient parser reads them: `64abc` and `64.5` are 64.

    What it fails at stays as it is.
    """
    parts, key = re.split(r"([:,\[\]])", "".join(text.split())), ""
    for position, part in enumerate(parts):
        key = part if part in KEYS else key
        number = (_FRACTION if key in _WITH_FRACTION else _WHOLE).match(part)
        if number is not None:
            parts[position] = f"{Decimal(number[1]):f}"
    return "".join(parts)


def starting_settings() -> AllocatorSettings:
    """Return the settings that PyTorch would take from the environment at the first use of a GPU.

    Raises:
        InvalidValueError: they are not understood.
    """
    environment = read_environment(os.environ)
    try:
        return AllocatorSettings.parse(as_pytorch_reads(environment.text))
    except InvalidValueError as error:
        raise InvalidValueError(f"the environment variable {environment.variable} is wrong: {error}") from None


def permanent_line(text: str, environment: Environment) -> str | None:
    """Return the Python line that makes a settings string permanent, before `import torch`; `None`: none is needed."""
    if text:
        return f'os.environ["{environment.variable or VARIABLES[0]}"] = "{text}"'
    if environment.variable is None:
        return None
    return "del " + ", ".join(f'os.environ["{name}"]' for name in (environment.variable, *environment.others))
