"""Every key that a settings string of PyTorch's can have: what it takes, what it does, and since when there is one.

From pytorch/pytorch, `c10/core/AllocatorConfig.h` and `c10/cuda/CUDAAllocatorConfig.cpp`, torch 2.6 to 2.14.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple

from jupyter_gpumem.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .tokens import Value

_FLAG = "True or False"
_FROM_NOW_ON = "memory requested from now on; blocks and segments that are there stay as they are"
_PINNED = "pinned host memory, not the device's"
_MOST_THREADS = 128
_MOST_MB = 2**43  # 2**63 bytes


class Key(NamedTuple):
    """One key of a settings string.

    Attributes:
        accepts: what may be written as its value, in words.
        effect: what a change in a running process applies to, in words.
        default: what is in force when nobody names it, as it is written, or in words where that cannot be written.
        writable: whether the default can be written; otherwise a process that has left it cannot go back, unless
            `kept` is false.
        kept: whether a later settings call that does not name it leaves it alone, instead of going back to the default.
        examples: values that Tab offers.
        since: the first PyTorch that knows it, where that is later than 2.6.
        check: refuses a value that PyTorch would refuse, for keys that say nothing about device memory.
    """

    accepts: str
    effect: str
    default: str
    writable: bool = True
    kept: bool = True
    examples: tuple[str, ...] = ()
    since: tuple[int, int] | None = None
    check: Callable[[Value], None] | None = None

    @property
    def lasting(self) -> bool:
        """Whether a running process that has it can change its value, and never go back to the default."""
        return self.kept and not self.writable


def read_flag(value: Value) -> bool:
    """Return a switch.

    Raises:
        InvalidValueError: it is neither `True` nor `False`, written just so.
    """
    if value.text not in {"True", "False"}:
        raise InvalidValueError(f"{value} is not understood; write exactly True or False")
    return value.text == "True"


def read_megabytes(value: Value, least: int) -> int:
    """Return a number of MB.

    Raises:
        InvalidValueError: it is no whole number, or out of range.
    """
    number = value.integer()
    if number >= _MOST_MB:
        raise InvalidValueError(f"{value} is out of range; write a whole number of MB < {_MOST_MB}")
    if number < least:
        raise InvalidValueError(f"{value} is out of range; write a whole number of MB >= {least}")
    return number


def is_power_of_two(number: int) -> bool:
    """Whether a number is 1, 2, 4, 8, ..."""
    return number > 0 and number & (number - 1) == 0


def _check_flag(value: Value) -> None:
    read_flag(value)


def _check_megabytes(value: Value) -> None:
    read_megabytes(value, 1)


def _check_threads(value: Value) -> None:
    if not is_power_of_two(number := value.integer()) or number > _MOST_THREADS:
        raise InvalidValueError(f"{value} is out of range; write a power of two up to {_MOST_THREADS}")


def _check_backend(value: Value) -> None:
    if value.text not in {"native", "cudaMallocAsync"}:
        raise InvalidValueError(f"{value} is not understood; write native or cudaMallocAsync")


def _switch(effect: str, check: Callable[[Value], None] | None = None, since: tuple[int, int] | None = None) -> Key:
    return Key(_FLAG, effect, "False", examples=("True", "False"), since=since, check=check)


KEYS: dict[str, Key] = {
    "backend": Key(
        "native or cudaMallocAsync",
        "nothing: it is chosen when PyTorch is loaded",
        "native",
        examples=("native", "cudaMallocAsync"),
        check=_check_backend,
    ),
    "expandable_segments": _switch(
        "memory taken from the driver from now on; segments that are there keep their kind until they are empty"
    ),
    "garbage_collection_threshold": Key(
        "a number between 0.0 and 1.0",
        "requests from now on that find no cached block, while a memory cap is set",
        "0 (off)",
        writable=False,
        kept=False,
        examples=("0.6", "0.8"),
    ),
    "graph_capture_record_stream_reuse": _switch("graph captures from now on", _check_flag, (2, 10)),
    "large_segment_size_mb": Key(
        "a whole number >= 11, better even",
        "segments taken from the driver from now on; expandable segments that are there keep their page size",
        "20",
        examples=("20", "64"),
        since=(2, 11),
    ),
    "max_non_split_rounding_mb": Key(
        "a whole number >= large_segment_size_mb",
        _FROM_NOW_ON,
        "large_segment_size_mb",
        writable=False,
        kept=False,
        examples=("64", "128"),
    ),
    "max_split_size_mb": Key(
        "a whole number >= large_segment_size_mb",
        "memory requested from now on; with a size, free blocks of it and more are kept whole, for requests as large",
        "unlimited",
        writable=False,
        kept=False,
        examples=("128", "256", "512"),
    ),
    "per_process_memory_fraction": Key(
        "a number from 0.0 to 1.0",
        "devices that are not in use yet; %gpumem_limit caps one that is",
        "1.0",
        examples=("0.5", "0.8"),
        since=(2, 10),
    ),
    "pinned_free_catch_all": _switch(_PINNED, _check_flag, (2, 12)),
    "pinned_max_cached_size_mb": Key(
        "a whole number >= 1", _PINNED, "unlimited", writable=False, since=(2, 13), check=_check_megabytes
    ),
    "pinned_max_round_threshold_mb": Key(
        "a whole number >= 1", _PINNED, "unlimited", writable=False, since=(2, 13), check=_check_megabytes
    ),
    "pinned_num_register_threads": Key(
        f"a power of two up to {_MOST_THREADS}", _PINNED, "1", examples=("1", "4", "8"), check=_check_threads
    ),
    "pinned_reserve_segment_size_mb": Key(
        "a whole number >= 1", _PINNED, "0 (off)", writable=False, since=(2, 10), check=_check_megabytes
    ),
    "pinned_use_background_threads": _switch(_PINNED, _check_flag),
    "pinned_use_cuda_host_register": _switch(_PINNED, _check_flag),
    "release_lock_on_cudamalloc": _switch("memory taken from the driver from now on", _check_flag),
    "roundup_power2_divisions": Key(
        "a power of two, or [MB:DIVISIONS,...,>:DIVISIONS]",
        _FROM_NOW_ON,
        "0 (off)",
        writable=False,
        kept=False,
        examples=("4", "8", "[256:1,512:2,1024:4,>:8]"),
    ),
    "throw_on_cudamalloc_oom": _switch("requests from now on, while a memory cap is set", since=(2, 12)),
}
"""By key, in alphabetical order."""


def unknown_key(key: str) -> str:
    """Return the one-line complaint about a key that PyTorch does not know, with the nearest one it does."""
    near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(KEYS)}"
    return f"unknown allocator setting {key!r}; {hint}"


def torch_release(version: str) -> tuple[int, int] | None:
    """Return major and minor of a version such as `2.13.0+cpu`, or `None` where they cannot be read."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def is_known_to(key: str, version: str) -> bool:
    """Whether a PyTorch of that version knows a key; taken as so where the version cannot be read."""
    since, release = KEYS[key].since, torch_release(version)
    return since is None or release is None or release >= since
