"""Whether code decides on a value that it asks the virtual device for: read from its source, at the place that asks.

What becomes of a number once Python has it cannot be watched: it is one like any other. So the source is read from the
place on: where the value is tested, counted with or a size, where the names that it is given are, and, where a function
returns it, at the call. What another function or another cell does with it is not seen.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from .places import TRIAL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, _TORCH + "_ops.py")
_AS_USUAL = os.path.join(_TORCH, "amp", "grad_scaler.py")
"""It leaves a step out where a gradient is infinite: what is assumed, zero, is what nearly always happens."""

_SHOWN = frozenset({"format", "hasattr", "id", "isinstance", "len", "print", "repr", "str", "type"})
"""Functions whose result does not come from the value, or is one to be read."""
_COUNTS = frozenset(
    {
        "arange",
        "empty",
        "expand",
        "eye",
        "full",
        "linspace",
        "narrow",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "range",
        "repeat",
        "reshape",
        "split",
        "unflatten",
        "view",
        "zeros",
    }
)
"""Functions of which a number is a count or a size."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module, ast.ClassDef)
_DECIDES, _RETURNED, _NEITHER = "decides", "returned", "neither"
_PARTS = ("test", "value", "iter")
"""What a statement is about."""
_FILES, _PLACES = 2, 4096
_fates: dict[tuple[CodeType, int], str] = {}


def decides() -> bool:
    """Whether the code that has just asked for a value decides on it; where its source is not to be had, it may."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file == TRIAL:  # what the code returns goes no further
            return False
        if not file.startswith(_OURS):
            if file == _AS_USUAL:
                return False
            fate = _known_fate(frame)
            if fate is not _RETURNED:
                return fate is _DECIDES
        frame = frame.f_back
    return False


def _known_fate(frame: FrameType) -> str:
    key = frame.f_code, frame.f_lasti
    fate = _fates.get(key)
    if fate is None:
        if len(_fates) >= _PLACES:
            _fates.clear()
        fate = _fates[key] = _fate(frame)
    return fate


def _fate(frame: FrameType) -> str:
    """Return what becomes of a value that a frame has asked for, inside its function."""
    source = _source(frame.f_code.co_filename)
    nodes = [] if source is None else source.at(frame)
    if source is None or not nodes:
        return _DECIDES
    names = _Names(frame)
    fates = {source.climb(node, names) for node in nodes}
    if names.found and not frame.f_code.co_filename.startswith(_TORCH):
        fates.add(source.follow(nodes[0], names))
    return next(fate for fate in (_DECIDES, _RETURNED, _NEITHER) if fate in fates)


class _Names:
    """The names that a value is given."""

    def __init__(self, frame: FrameType) -> None:
        self.found: set[str] = set()
        self._others = {"", "self", "cls"} | {
            name for name, value in frame.f_globals.items() if isinstance(value, ModuleType)
        }

    def add(self, names: Iterator[str]) -> None:
        self.found.update(name for name in names if name not in self._others)


@functools.lru_cache(_FILES)
def _source(file: str) -> _Source | None:
    lines = linecache.getlines(file)
    try:
        return _Source(ast.parse("".join(lines))) if lines else None
    except SyntaxError:  # a cell with magics in it, as it was written
        return None


class _Source:
    """The source of a file, with what contains what."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def at(self, frame: FrameType) -> list[ast.AST]:
        """Return the innermost expression that a frame is at; all calls of its statement where that is not told."""
        inside: list[Any] = []
        if sys.version_info >= (3, 11):
            positions = frame.f_code.co_positions()
            first, last, begin, end = next(itertools.islice(positions, frame.f_lasti // 2, None), (None,) * 4)
            if None not in (first, last, begin, end):
                inside = [node for node in self._above if _covers(node, (first, begin), (last, end))]
        told = bool(inside)
        if not told:
            line = frame.f_lineno
            inside = [one for one in self._above if isinstance(one, ast.stmt) and one.lineno <= line <= _end(one)[0]]
        node = min(inside, key=_extent, default=None)
        if isinstance(node, ast.stmt):  # as for a name that is all of a test
            node = next((part for name in _PARTS if (part := getattr(node, name, None)) is not None), None)
        if told or node is None:
            return [] if node is None else [node]
        return [node, *(one for one in ast.walk(node) if isinstance(one, ast.Call))]

    def climb(self, node: ast.AST, names: _Names) -> str:
        """Return what becomes of an expression's value, and collect the names that it is given."""
        while (above := self._above.get(node)) is not None:
            if _tests(above, node) or _counts(above, node):
                return _DECIDES
            if isinstance(above, (ast.Return, ast.Yield, ast.YieldFrom, ast.Lambda)):
                return _RETURNED
            if isinstance(above, _SCOPES) or _shows(above, node):
                break
            names.add(_given(above, node))
            if isinstance(above, ast.stmt):
                break
            node = above
        return _NEITHER

    def follow(self, node: ast.AST, names: _Names) -> str:
        """Return what becomes of the value of some names in the function that a node is in."""
        while node is not self._tree and not isinstance(node, _SCOPES):
            node = self._above[node]
        uses = [one for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute, ast.NamedExpr))]
        returned, before = False, 0
        while before != len(names.found):
            before = len(names.found)
            for use in uses:
                if isinstance(getattr(use, "ctx", None), ast.Load) and _name(use) in names.found:
                    fate = self.climb(use, names)
                    if fate is _DECIDES:
                        return fate
                    returned = returned or fate is _RETURNED
        return _RETURNED if returned else _NEITHER


def _covers(node: ast.AST, first: Any, last: Any) -> bool:
    return isinstance(node, (ast.expr, ast.stmt)) and (node.lineno, node.col_offset) <= first and last <= _end(node)


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _extent(node: Any) -> tuple[int, int, bool]:
    line, column = _end(node)
    lines = line - node.lineno
    return lines, column - (0 if lines else node.col_offset), isinstance(node, ast.stmt)


def _tests(above: ast.AST, node: ast.AST) -> bool:
    """Whether something is done or not by the value of an expression right below."""
    if isinstance(above, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        return node is above.test
    if isinstance(above, ast.comprehension):
        return node in above.ifs
    return isinstance(above, ast.BoolOp) or (isinstance(above, ast.Match) and node is above.subject)


def _counts(above: ast.AST, node: ast.AST) -> bool:
    """Whether the value is a count or a size."""
    if isinstance(above, ast.Call) and node is not above.func:
        return _name(above.func).rpartition(".")[2] in _COUNTS
    return isinstance(above, ast.Slice)


def _shows(above: ast.AST, node: ast.AST) -> bool:
    """Whether the value ends here: it is shown, or something is asked that does not depend on it."""
    if isinstance(above, ast.Call):
        return node is not above.func and _name(above.func) in _SHOWN
    if isinstance(above, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in above.ops)
    return isinstance(above, ast.JoinedStr)


def _given(above: ast.AST, node: ast.AST) -> Iterator[str]:
    """Yield the names that an expression right below is assigned to, or handed to a method of."""
    if isinstance(above, ast.Assign):
        targets = above.targets
    elif isinstance(above, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        targets = [above.target]
    elif isinstance(above, (ast.For, ast.AsyncFor, ast.comprehension)):
        targets = [above.target] if node is above.iter else []
    elif isinstance(above, ast.withitem):
        targets = [above.optional_vars] if above.optional_vars is not None else []
    elif isinstance(above, ast.Call) and node is not above.func:
        targets = [above.func.value if isinstance(above.func, ast.Attribute) else above.func]
    else:
        targets = []
    for target in targets:
        yield from _bound(target)


def _bound(target: Any) -> Iterator[str]:
    """Yield the names that an assignment to a target changes."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for one in target.elts:
            yield from _bound(one)
    elif isinstance(target, (ast.Starred, ast.Subscript)) or (isinstance(target, ast.Attribute) and not _name(target)):
        yield from _bound(target.value)
    else:
        yield _name(target)


def _name(node: Any) -> str:
    """Return a dotted name; of anything else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""
