"""Every attribute that the virtual GPU replaces, and its exact return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class _Patch:
    owner: Any
    name: str
    before: Any
    value: Any
    kept_by_owner: bool


class Patches:
    """The replaced attributes of modules, classes and other objects, in the order in which they were replaced.

    What is kept and put back is what lies in the owner's own `vars()`: a `staticmethod` stays one, and an attribute
    that the owner inherits or computes is not there any more afterwards. One thread at a time.
    """

    def __init__(self) -> None:
        self._made: list[_Patch | Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._made)

    def on_undo(self, function: Callable[[], object]) -> None:
        """Have a function called when all that was replaced up to now is about to be put back."""
        self._made.append(function)

    def set(self, owner: Any, name: str, value: Any, *, kept_by_owner: bool = False) -> None:
        """Replace an attribute, or add it.

        Args:
            owner: a module, class or other object.
            name: the attribute.
            value: what it is from now on.
            kept_by_owner: whether the owner writes to it in the course of things (a cache, a flag): then it is put back
                whatever it has become.

        Raises:
            TypeError, AttributeError: the owner does not allow it; nothing has changed then.
        """
        before = _own(owner, name)
        setattr(owner, name, value)
        # Read again: a property of the owner may keep something else than it was given.
        self._made.append(_Patch(owner, name, before, _own(owner, name), kept_by_owner))

    def before(self, owner: Any, name: str, default: Any = None) -> Any:
        """Return what the attribute was before the first replacement, or `default` if it was not there."""
        for patch in self._made:
            if isinstance(patch, _Patch) and patch.owner is owner and patch.name == name:
                return default if patch.before is _ABSENT else patch.before
        return getattr(owner, name, default)

    def undo(self) -> list[str]:
        """Put everything back, last first; returns a sentence for each attribute that somebody else has replaced.

        Such an attribute is left as it is: what it was before is somebody else's now.
        """
        notes = []
        while self._made:
            patch = self._made.pop()
            if not isinstance(patch, _Patch):
                patch()
            elif not patch.kept_by_owner and _own(patch.owner, patch.name) is not patch.value:
                notes.append(f"{_name(patch.owner)}.{patch.name} was replaced by somebody else meanwhile; it is left")
            elif patch.before is _ABSENT:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.before)
        return notes


def _own(owner: Any, name: str) -> Any:
    """Return the attribute as it lies in the owner itself; only what has no `vars()` is asked for it."""
    try:
        return vars(owner).get(name, _ABSENT)
    except TypeError:
        return getattr(owner, name, _ABSENT)


def _name(owner: Any) -> str:
    return getattr(owner, "__qualname__", None) or getattr(owner, "__name__", None) or type(owner).__name__
