"""PyTorch's allocator settings: read from a string, checked, printed back.

PyTorch's own parser is lenient where it hurts (`64abc` means 64, `-1` becomes a huge number) and obscure where it is
strict (`INTERNAL ASSERT FAILED`). This one accepts what PyTorch accepts with a clear meaning, means the same by it, and
says in one line what is wrong with the rest.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import MiB

from .keys import KEYS, is_power_of_two, read_flag, read_megabytes, unknown_key
from .tokens import Value, split_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERVALS = 16
"""How many size ranges `roundup_power2_divisions` tells apart: below 2 MiB, 2 MiB, 4 MiB, ... 32 GiB and above."""

_DEFAULT_LARGE_SEGMENT = 20 * MiB
_NO_ROUNDUP = (0,) * INTERVALS

_RESET_BY_EVERY_CALL = frozenset(
    {"max_split_size", "max_non_split_rounding", "garbage_collection_threshold", "roundup_power2_divisions"}
)
_SMALLEST_NUMBER = sys.float_info.min
"""PyTorch reads nothing smaller but 0."""


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The settings of PyTorch's CUDA caching allocator; `AllocatorSettings()` are its defaults.

    Attributes:
        max_split_size: bytes; larger blocks are never split, nor given to smaller requests. `None` is unlimited.
        max_non_split_rounding: bytes that an oversize block may be larger than its request; `None` follows
            `large_segment_size`.
        roundup_power2_divisions: steps per power of two to which sizes are rounded up, for each of the 16 intervals;
            0 is off.
        garbage_collection_threshold: the share of the memory cap above which old free segments are given back; 0.0 is
            off.
        expandable_segments: whether new memory is mapped into growing segments instead of being allocated piecewise.
        large_segment_size: bytes of a new segment for requests below 10 MiB; the page size of expandable segments.
        per_process_memory_fraction: the cap set at start-up as a share of the card; 1.0 is none.
        throw_on_cudamalloc_oom: whether a request above the cap fails at once, without freeing cached memory first.
        others: keys that do not matter to device memory, with their text, in alphabetical order.
    """

    max_split_size: int | None = None
    max_non_split_rounding: int | None = None
    roundup_power2_divisions: tuple[int, ...] = _NO_ROUNDUP
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_size: int = _DEFAULT_LARGE_SEGMENT
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    others: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Return the settings of a process that starts with this string in `PYTORCH_CUDA_ALLOC_CONF`.

        Raises:
            InvalidValueError: a key or value is wrong; the text names the bad token and what to write instead.
        """
        return cls().then(text)

    @classmethod
    def from_snapshot(cls, values: Mapping[str, Any], conf: str | None = None) -> AllocatorSettings:
        """Return the settings that a snapshot's `allocator_settings` tell, and the settings string what they leave out.

        Args:
            values: the dict of the snapshot, whose numbers are in bytes and win over the string.
            conf: the settings string in force; by default the one in `values`.

        Raises:
            InvalidValueError: the settings string cannot be understood, or a value is of the wrong kind.
        """
        text = conf if conf is not None else values.get("PYTORCH_CUDA_ALLOC_CONF", "")
        if not isinstance(text, str):
            raise InvalidValueError(f"the recorded settings are a {type(text).__name__}, not a string")
        return cls.parse(text).observed(values)

    def observed(self, values: Mapping[str, Any]) -> AllocatorSettings:
        """Return these settings, corrected by what a snapshot's `allocator_settings` tell; the rest is left as it is.

        Raises:
            InvalidValueError: a value is of the wrong kind.
        """
        found: dict[str, Any] = {}
        split = _number(values, "max_split_size")
        if split is not None:
            found["max_split_size"] = int(split) if split > 0 else None
        threshold = _number(values, "garbage_collection_threshold")
        if threshold is not None:
            found["garbage_collection_threshold"] = float(threshold) if 0 < threshold < 1 else 0.0
        if isinstance(values.get("expandable_segments"), bool):
            found["expandable_segments"] = values["expandable_segments"]
        divisions = values.get("roundup_power2_divisions")
        if isinstance(divisions, dict):
            found["roundup_power2_divisions"] = tuple(
                int(_number(divisions, str(1 << power)) or 0) for power in range(INTERVALS)
            )
        flags = {key: str(values[key]) for key in _CARRIED_FLAGS if isinstance(values.get(key), bool)}
        return dataclasses.replace(self, others=_carried(dict(self.others) | flags), **found)

    def then(self, text: str) -> AllocatorSettings:
        """Return what a running process has after it is handed this string.

        As in PyTorch, one call is not incremental: what decides about splitting, rounding and collecting goes back to
        its default unless named; the rest stays.

        Raises:
            InvalidValueError: a key or value is wrong; the text names the bad token and what to write instead.
        """
        values = split_settings(text)
        found: dict[str, Any] = {name: getattr(_DEFAULTS, name) for name in _RESET_BY_EVERY_CALL}
        found["large_segment_size"] = self.large_segment_size
        others = dict(self.others)
        # PyTorch reads this one first, wherever it stands: others are measured against it.
        values.sort(key=lambda value: value.key != "large_segment_size_mb")
        for value in values:
            if value.key in _CARRIED:
                _CARRIED[value.key](value)
                others[value.key] = value.text
            elif value.key in _READERS:
                name, read = _READERS[value.key]
                found[name] = read(value, found)
            else:
                raise InvalidValueError(unknown_key(value.key))
        return dataclasses.replace(self, **found, others=_carried(others))

    def merged(self, text: str) -> AllocatorSettings:
        """Return these settings with those changed that a string names, and all others kept.

        `KEY:default` takes a key back to PyTorch's default.

        Raises:
            InvalidValueError: a key or value is wrong; the text names the bad token and what to write instead.
        """
        named = self.named()
        for value in split_settings(text):
            if value.key not in KEYS:
                raise InvalidValueError(unknown_key(value.key))
            # Where no back end is named PyTorch has its own: naming that changes nothing.
            same = value.key == "backend" and value.text == KEYS["backend"].default and "backend" not in named
            if value.text == "default" or same:
                named.pop(value.key, None)
            else:
                named[value.key] = value.text
        return self.parse(_joined(named))

    def change_from(self, before: AllocatorSettings) -> str:
        """Return what `merged` has to be given to make these settings of those before."""
        old, new = before.named(), self.named()
        back = {key: "default" for key in old if key not in new}
        return _joined(back | {key: value for key, value in new.items() if old.get(key) != value})

    def command(self, before: AllocatorSettings) -> str:
        """Return the string that makes a running process have these settings instead of those before.

        Raises:
            InvalidValueError: a key would have to go back to a default that cannot be written.
        """
        named = self.named()
        for key in before.named().keys() - named.keys():
            known = KEYS[key]
            if known.writable:
                named[key] = known.default
            elif known.lasting:
                raise InvalidValueError(
                    f"{key} cannot go back to {known.default} in a running process; restart it without the key"
                )
        return _joined(named)

    def named(self) -> dict[str, str]:
        """Return `{key: value}`, as they are written, of everything that differs from PyTorch's defaults."""
        named = {}
        if self.expandable_segments:
            named["expandable_segments"] = "True"
        if self.max_split_size is not None:
            named["max_split_size_mb"] = str(self.max_split_size // MiB)
        if self.max_non_split_rounding is not None:
            named["max_non_split_rounding_mb"] = str(self.max_non_split_rounding // MiB)
        if self.roundup_power2_divisions != _NO_ROUNDUP:
            named["roundup_power2_divisions"] = _print_divisions(self.roundup_power2_divisions)
        if self.garbage_collection_threshold:
            named["garbage_collection_threshold"] = _print_number(self.garbage_collection_threshold)
        if self.large_segment_size != _DEFAULT_LARGE_SEGMENT:
            named["large_segment_size_mb"] = str(self.large_segment_size // MiB)
        if self.per_process_memory_fraction != 1.0:
            named["per_process_memory_fraction"] = _print_number(self.per_process_memory_fraction)
        if self.throw_on_cudamalloc_oom:
            named["throw_on_cudamalloc_oom"] = "True"
        return named | dict(self.others)

    def __str__(self) -> str:
        """Return the shortest string that PyTorch reads as these settings; empty for the defaults."""
        return _joined(self.named())


def warnings(settings: AllocatorSettings, *, capped: bool) -> tuple[str, ...]:
    """Return what is known to be unsafe or pointless about a combination, one sentence each.

    Args:
        settings: the settings.
        capped: whether a memory cap (a fraction below 1) is in force.
    """
    found, one = [], "%gpumem_limit, or per_process_memory_fraction from the start"
    capped = capped or settings.per_process_memory_fraction < 1
    if settings.max_split_size is not None and settings.expandable_segments:
        found.append(
            "unsafe: max_split_size_mb with expandable_segments lets reserved memory grow without bound; use only one"
        )
    if settings.garbage_collection_threshold and not capped:
        found.append(f"pointless: garbage_collection_threshold does nothing without a memory cap; set one: {one}")
    if settings.throw_on_cudamalloc_oom and not capped:
        found.append(f"pointless: throw_on_cudamalloc_oom does nothing without a memory cap; set one: {one}")
    if dict(settings.others).get("backend", "native") != "native":
        found.append("not modelled: another backend than 'native' ignores these settings")
    if settings.large_segment_size % (2 * MiB):
        found.append("unsafe: large_segment_size_mb should be even, the driver works in pages of 2 MiB")
    return tuple(found)


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidValueError(f"the recorded setting {key!r} is {value!r:.60}, not a number")
    return value


def _joined(named: Mapping[str, str]) -> str:
    return ",".join(f"{key}:{value}" for key, value in named.items())


def _carried(others: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the keys that are only carried along, without those that say the default; `backend` always counts."""
    return tuple(sorted((k, v) for k, v in others.items() if v != KEYS[k].default or k == "backend"))


Found: TypeAlias = "Mapping[str, Any]"
"""What is known so far of the settings that a string is read into."""


def _read_split(value: Value, found: Found) -> int:
    return read_megabytes(value, found["large_segment_size"] // MiB) * MiB


def _read_large(value: Value, found: Found) -> int:  # noqa: ARG001 - all readers take the same
    return read_megabytes(value, 11) * MiB


def _read_flag(value: Value, found: Found) -> bool:  # noqa: ARG001
    return read_flag(value)


def _read_threshold(value: Value, found: Found) -> float:  # noqa: ARG001
    number = value.number()
    if not _SMALLEST_NUMBER <= number < 1:
        raise InvalidValueError(f"{value} is out of range; write a number between 0.0 and 1.0, or leave it out for off")
    return number


def _read_fraction(value: Value, found: Found) -> float:  # noqa: ARG001
    number = value.number()
    if number and not _SMALLEST_NUMBER <= number <= 1:
        raise InvalidValueError(f"{value} is out of range; write a number from 0.0 to 1.0")
    return number


def _read_divisions(value: Value, found: Found) -> tuple[int, ...]:
    if value.items is None:
        return (_division(value.key, value.text, zero=False),) * INTERVALS
    # A second list in one string goes on top of the first.
    divisions, last, first = list(found["roundup_power2_divisions"]), 0, True
    for boundary, text in value.items:
        division = _division(value.key, text, zero=True)
        if boundary == ">":
            divisions[last + 1 :] = [division] * (INTERVALS - last - 1)
            continue
        if not (boundary.isascii() and boundary.isdigit() and is_power_of_two(int(boundary))):
            raise InvalidValueError(f"{value.key}: interval {boundary!r} is not a power of two (in MB), nor '>'")
        last = min(int(boundary).bit_length() - 1, INTERVALS - 1)
        if first:
            divisions[:last] = [division] * last
            first = False
        divisions[last] = division
    return tuple(divisions)


def _division(key: str, text: str, *, zero: bool) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not (is_power_of_two(number) or (zero and number == 0)):
        wanted = "a power of two, or 0 for off" if zero else "a power of two"
        raise InvalidValueError(f"{key}: {text!r} divisions are not possible; write {wanted}")
    return number


def _print_divisions(divisions: tuple[int, ...]) -> str:
    first = next((i for i, d in enumerate(divisions) if d != divisions[0]), INTERVALS) - 1
    if first == INTERVALS - 1:
        return str(divisions[0])
    tail = INTERVALS - 1
    while tail - 1 > first and divisions[tail - 1] == divisions[-1]:
        tail -= 1
    parts = [f"{1 << i}:{divisions[i]}" for i in range(first, tail)]
    return f"[{','.join([*parts, f'>:{divisions[-1]}'])}]"


def _print_number(number: float) -> str:
    return f"{Decimal(repr(number)):f}"  # never with an exponent, which the grammar does not have


_DEFAULTS = AllocatorSettings()
_READERS: dict[str, tuple[str, Any]] = {
    "expandable_segments": ("expandable_segments", _read_flag),
    "garbage_collection_threshold": ("garbage_collection_threshold", _read_threshold),
    "large_segment_size_mb": ("large_segment_size", _read_large),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _read_split),
    "max_split_size_mb": ("max_split_size", _read_split),
    "per_process_memory_fraction": ("per_process_memory_fraction", _read_fraction),
    "roundup_power2_divisions": ("roundup_power2_divisions", _read_divisions),
    "throw_on_cudamalloc_oom": ("throw_on_cudamalloc_oom", _read_flag),
}

_CARRIED = {key: known.check for key, known in KEYS.items() if known.check is not None}
"""Keys that change nothing about device memory (or, like `backend`, select another allocator): checked and kept."""

_CARRIED_FLAGS = frozenset(key for key in _CARRIED if KEYS[key].default == "False")
