"""What was assumed where in the user's code, and how the user learns of it."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .decisions import decides
from .places import PACKAGES, place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_DISTRIBUTIONS = os.path.join(os.path.dirname(torch.__file__), "distributions") + os.sep


class VirtualValueWarning(UserWarning):
    """Something asked for a value that a virtual GPU does not compute, and got a placeholder."""


@dataclass(frozen=True, slots=True)
class Note:
    """What was assumed at one place of the user's code.

    Attributes:
        file, line: the place.
        text: what was asked for, and what was given.
        given: what was given.
        decides: whether the code decides on it.
    """

    file: str
    line: int
    text: str
    given: str
    decides: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


class Notes:
    """Everything that was assumed, once for each place."""

    def __init__(self) -> None:
        self._found: dict[Note, None] = {}

    def __iter__(self) -> Iterator[Note]:
        return iter(tuple(self._found))

    @property
    def decisions(self) -> list[str]:
        """Return a sentence for each place at which the code decides on a value that was assumed."""
        found: dict[tuple[str, int], str] = {}
        for note in self._found:
            if note.decides:
                found.setdefault((note.file, note.line), note.given)
        return [
            f"{file}:{line}: a decision depends on a value that does not exist, taken to be {given}"
            for (file, line), given in found.items()
        ]

    def __len__(self) -> int:
        return len(self._found)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Keep what is noted inside apart, and forget it afterwards."""
        kept, self._found = self._found, {}
        try:
            yield
        finally:
            self._found = kept

    def add(self, what: str, given: str, *, usual: bool = False) -> None:
        """Note what was asked for and what was given for it, and warn when it is the first time at this place.

        Args:
            what: what was asked for.
            given: what was given.
            usual: whether it is what it would be on a real card, if the code is right.
        """
        text = f"{what} has no value on a virtual GPU; it was given {given}"
        note = Note(*place(), text, given, not usual and decides())
        if note not in self._found:
            self._found[note] = None
            warnings.warn_explicit(text, VirtualValueWarning, note.file, note.line)


def in_distributions() -> bool:
    """Whether `torch.distributions` asks: no code of the user is between it and here."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGES):
        if frame.f_code.co_filename.startswith(_DISTRIBUTIONS):
            return True
        frame = frame.f_back
    return False
