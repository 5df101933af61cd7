"""The environment variables that PyTorch reads its allocator settings from, once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from jupyter_gpumem.allocator.settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The first that is set wins (pytorch/pytorch, seen with torch 2.13, although a comment there says the opposite)."""


class Environment(NamedTuple):
    """What the environment says now.

    Attributes:
        variable: the variable that wins, or `None` when none is set.
        text: its settings string; empty without one.
        notes: what is odd about it, one sentence each.
    """

    variable: str | None
    text: str
    notes: tuple[str, ...]


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
    notes = []
    if len(set(given.values())) > 1:
        others = " and ".join(name for name in given if name != winner)
        notes.append(f"{winner} and {others} are both set and differ: {winner} wins; unset the other.")
    return Environment(winner, given[winner], tuple(notes))


def starting_settings() -> AllocatorSettings:
    """Return the settings that PyTorch would take from the environment at the first use of a GPU.

    Raises:
        InvalidValueError: they are not understood.
    """
    return AllocatorSettings.parse(read_environment(os.environ).text)


def permanent_line(text: str, environment: Environment) -> str | None:
    """Return the Python line that makes a settings string permanent, before `import torch`; `None`: none is needed."""
    if text:
        return f'os.environ["{environment.variable or VARIABLES[0]}"] = "{text}"'
    return None if environment.variable is None else f'del os.environ["{environment.variable}"]'
