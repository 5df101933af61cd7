"""Functions of the user's that code puts into modules and classes of others, such as `torch.nn.functional.relu`."""

from __future__ import annotations

import functools
import operator
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from .ownership import is_users

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ROOTS = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.utils.data.DataLoader)
_NOTHING = object()


class Replaced:
    """What modules and PyTorch's kinds of classes have by name, so that what the user's code puts there goes again.

    Such a function would look for names that are gone after a trial. What packages replace themselves, as parts that
    are loaded late may, stays.
    """

    def __init__(self) -> None:
        self._before = [(owner, dict(vars(owner))) for owner in _owners()]

    def look(self) -> dict[tuple[int, str], Any]:
        """Return the functions of the user's that were put somewhere, for `keep_changes`."""
        return {(id(owner), name): value for owner, _, name, value in self._put()}

    def keep_changes(self, since: dict[tuple[int, str], Any]) -> None:
        """Have the functions that were put somewhere since then stay there."""
        for owner, before, name, value in self._put():
            if since.get((id(owner), name), _NOTHING) is not value:
                before[name] = value

    def add(self, modules: Iterable[types.ModuleType]) -> None:
        """Have what code puts into these modules go again as well."""
        self._before += [(module, dict(vars(module))) for module in modules]

    def restore(self) -> None:
        """Have every name be what it was that is a function of the user's now."""
        for owner, before, name, _ in self._put():
            known = before.get(name, _NOTHING)
            if known is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, known)

    def _put(self) -> Iterator[tuple[Any, dict[str, Any], str, Any]]:
        """Yield where functions of the user's are that were not there, and what there was."""
        for owner, before in self._before:
            now = vars(owner)
            if len(now) == len(before) and all(map(operator.is_, list(now.values()), before.values())):
                continue
            for name, value in list(now.items()):
                if value is not before.get(name, _NOTHING) and _is_users_function(value):
                    yield owner, before, name, value


def _owners() -> Iterator[Any]:
    for module in list(sys.modules.values()):
        if type(module) is types.ModuleType and not is_users(module.__name__):
            yield module
    yield torch.Tensor
    todo: list[Any] = list(_ROOTS)
    seen = set(map(id, todo))
    while todo:
        kind = todo.pop()
        if not is_users(kind.__module__):
            yield kind
        fresh = [one for one in type.__subclasses__(kind) if id(one) not in seen]
        seen.update(map(id, fresh))
        todo.extend(fresh)


def _is_users_function(value: Any) -> bool:
    while True:
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif type(value) is functools.partial:
            value = value.func
        else:
            break
    return isinstance(value, types.FunctionType) and is_users(value.__globals__.get("__name__", ""))
