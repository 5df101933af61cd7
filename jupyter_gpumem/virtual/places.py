"""Where in the user's code something happens: the file, and the line as the user counts it."""

from __future__ import annotations

import linecache
import os
import re
import sys
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import FrameType

PACKAGES = tuple(
    os.path.dirname(path) + os.sep for path in (torch.__file__, os.path.dirname(os.path.abspath(__file__)))
)
_INSTALLED = re.compile(r"[/\\\\](?:site|dist)-packages[/\\\\]|^<frozen ")
_SKIPPED = (*PACKAGES, os.path.dirname(os.__file__) + os.sep)
TRIAL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trial.py")
"""It calls the code that is tried: what is outside it is none of that code."""
_RUNS_BODY = "run_cell_magic"


def place() -> tuple[str, int]:
    """Return file and line of the innermost frame of the user's code: nothing that is installed, nothing of ours."""
    innermost = sys._getframe(1)
    frame: FrameType | None = innermost
    while frame is not None:
        path = frame.f_code.co_filename
        if _is_users(path):
            return _in_its_cell(frame)
        frame = frame.f_back
    return innermost.f_code.co_filename, innermost.f_lineno


def line_in(file: str) -> int:
    """Return the innermost line of a file or a cell that runs, or 0; what a cell magic runs is of its cell."""
    start: FrameType = sys._getframe(1)
    inner, frame = start, start.f_back
    while frame is not None:
        if frame.f_code.co_filename == file:
            if inner.f_code.co_name == _RUNS_BODY:
                return _lines(start)[0].get(file, frame.f_lineno)
            return frame.f_lineno
        inner, frame = frame, frame.f_back
    return 0


def _is_users(path: str) -> bool:
    return not path.startswith(_SKIPPED) and not _INSTALLED.search(path)


def _in_its_cell(start: FrameType) -> tuple[str, int]:
    file, line = start.f_code.co_filename, start.f_lineno
    frame = start.f_back
    while frame is not None and frame.f_code.co_name != _RUNS_BODY:
        frame = frame.f_back
    if frame is None:  # as nearly always
        return file, line
    lines, cells = _lines(start)
    while file in cells:
        file = cells[file]
        line = lines[file]
    return file, line


def _lines(frame: FrameType | None) -> tuple[dict[str, int], dict[str, str]]:
    """Return the innermost line of each file of the user's, and the cell of each that is the body of a cell magic.

    IPython counts the lines of a body on their own, from the first that is not blank.
    """
    lines: dict[str, int] = {}
    cells: dict[str, str] = {}
    last = ""
    while frame is not None and frame.f_code.co_filename != TRIAL:
        path, outer = frame.f_code.co_filename, frame.f_back
        if frame.f_code.co_name == _RUNS_BODY and last and outer is not None:
            body = frame.f_locals.get("cell")
            cell = outer.f_code.co_filename
            if isinstance(body, str) and cell != last:
                line = outer.f_lineno + _blank(body.splitlines()) + lines[last] - _blank(linecache.getlines(last))
                lines.setdefault(cell, line)
                cells[last] = cell
        elif _is_users(path):
            lines.setdefault(path, frame.f_lineno)
            last = path
        frame = outer
    return lines, cells


def _blank(lines: list[str]) -> int:
    """Return how many lines are blank before the first that is not."""
    return next((number for number, line in enumerate(lines) if line.strip()), 0)
