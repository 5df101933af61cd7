"""From the bytes that were asked for to the block that is looked for: PyTorch's rounding and splitting rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from jupyter_gpumem.units import MiB

from .blocks import ADDRESS_BITS, Pool
from .counters import Tally

if TYPE_CHECKING:
    from .blocks import PoolGroup
    from .settings import AllocatorSettings

MIN_BLOCK = 512
SMALL_SIZE = MiB
SMALL_BUFFER = 2 * MiB
MIN_LARGE_ALLOC = 10 * MiB
ROUND_LARGE = 2 * MiB

NEVER = 1 << 200
"""More than any size or key."""

Plan: TypeAlias = tuple[int, int, int, int, Pool, Tally]
"""What is known about a request from its size alone: the rounded size; the shelf keys between which a fitting block
lies (the second excluded); the remainder from which on a block is split; the half of the default pool; its counters."""


def round_size(size: int, divisions: tuple[int, ...]) -> int:
    """Return the bytes a request is rounded up to."""
    if size < MIN_BLOCK:
        return MIN_BLOCK
    power = size.bit_length() - 1
    steps = divisions[min(max(power - 20, 0), len(divisions) - 1)]
    if steps > 1 and size > MIN_BLOCK * steps:
        if size == 1 << power:
            return size
        step = (1 << power) >> (steps.bit_length() - 1)
        if step == 0:
            return 2 << power
        return -(-size // step) * step
    return -(-size // MIN_BLOCK) * MIN_BLOCK


def round_down(size: int, divisions: tuple[int, ...]) -> int:
    """Return the largest request that is rounded up to so many bytes at most; 0 if there is none."""
    if size < MIN_BLOCK:
        return 0
    power = size.bit_length() - 1
    steps = divisions[min(max(power - 20, 0), len(divisions) - 1)]
    if steps > 1 and size > MIN_BLOCK * steps:
        step = (1 << power) >> (steps.bit_length() - 1)
        return size // step * step if step else 1 << power
    return size // MIN_BLOCK * MIN_BLOCK


def too_large(rounded: int, settings: AllocatorSettings) -> int | None:
    """Return the size from which on a free block is not given to a request, or `None` if there is none."""
    split = settings.max_split_size
    if split is None:
        return None
    # A block this large is kept for requests as large, and such a request does not take a much larger one.
    slack = settings.max_non_split_rounding or settings.large_segment_size
    return split if rounded < split else rounded + slack


def segment_size(rounded: int, large_segment_size: int) -> int:
    """Return the bytes of the segment that a request which finds no free block needs."""
    if rounded <= SMALL_SIZE:
        return SMALL_BUFFER
    if rounded < MIN_LARGE_ALLOC:
        return large_segment_size
    return -(-rounded // ROUND_LARGE) * ROUND_LARGE


def plan(size: int, settings: AllocatorSettings, pools: PoolGroup) -> Plan:
    """Return the plan of a request of so many bytes."""
    rounded = round_size(size, settings.roundup_power2_divisions)
    small = rounded <= SMALL_SIZE
    limit = too_large(rounded, settings)
    ceiling = NEVER if limit is None else limit << ADDRESS_BITS
    keep = MIN_BLOCK if settings.expandable_segments else remainder(rounded, settings.max_split_size)
    pool = pools.small if small else pools.large
    return rounded, rounded << ADDRESS_BITS, ceiling, keep, pool, pool.tally


def remainder(rounded: int, max_split_size: int | None) -> int:
    """Return the bytes from which on what is left of an ordinary segment's block is split off."""
    if rounded <= SMALL_SIZE:
        return MIN_BLOCK
    return SMALL_SIZE + 1 if max_split_size is None or rounded < max_split_size else NEVER
