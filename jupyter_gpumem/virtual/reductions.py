"""What a reduction on a CUDA device needs while it runs: partial results of the blocks that share an output.

The rules are those of PyTorch's `Reduce.cuh` (`setReduceConfig`): how the work is spread over threads and blocks
follows from the sizes and strides of the input, and from the number of multiprocessors of the card.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WARP = 32
_THREADS = 512
_LEAST_VALUES, _MOST_VALUES = 16, 256  # of a thread
_VECTOR = 4
_SEMAPHORE = 4


def temporaries(
    size: Sequence[int],
    stride: Sequence[int],
    dims: Iterable[int],
    partial: int,
    processors: int,
    threads: int,
    input_vector: int = _VECTOR,
) -> list[int]:
    """Return the bytes of the partial results and of the semaphores; nothing where each output is one block's.

    Args:
        size: sizes of the input.
        stride: its strides, in elements.
        dims: the dimensions that are reduced; none for all.
        partial: bytes of one partial result.
        processors: multiprocessors of the card.
        threads: threads that one of them can hold.
        input_vector: elements that a thread reads at once from a contiguous input.
    """
    reduced, kept = _loops(size, stride, set(dims) or set(range(len(size))))
    inputs, outputs = (math.prod(count for count, _ in loops) for loops in (reduced, kept))
    if not inputs or not outputs or not reduced:
        return []
    on_fastest = not kept or reduced[0][1] < kept[0][1]
    first, second = (inputs, outputs) if on_fastest else (outputs, inputs)
    vector = 1
    if (reduced if on_fastest else kept)[0][1] == 1:
        if not on_fastest:
            vector = _output_vector(reduced, kept)
            first //= vector
        elif first > 128 and len(reduced) == 1 and not kept:
            first //= input_vector
    limit = _THREADS // vector
    width, height = (min(_last_power(count), limit) for count in (first, second))
    most_height = height
    across = min(width, _WARP)
    height = min(most_height, limit // across)
    across = min(width, limit // height)
    step_in, step_out = (across, 1) if on_fastest else (1, across)
    values = -(-inputs // step_in)
    split = values >= min(height * 16, _MOST_VALUES)
    if split:
        step_in *= height
    else:
        step_out *= height
    values = -(-inputs // step_in)
    grid = -(-(outputs // vector) // step_out)
    target = processors * (threads // (across * height))
    if not split or values < _MOST_VALUES or grid > target:
        return []
    blocks = max(min(-(-target // grid), -(-values // _LEAST_VALUES)), -(-values // _MOST_VALUES))
    if blocks <= 1:
        return []
    return [outputs * blocks * partial * (1 if on_fastest else across * vector), _SEMAPHORE * grid]


def _loops(
    size: Sequence[int], stride: Sequence[int], dims: set[int]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return count and stride of the loops over what is reduced and what is kept, innermost first, joined."""
    pairs = [(count, step, at in dims) for at, (count, step) in enumerate(zip(size, stride, strict=True)) if count != 1]
    reduced = _joined(sorted(((count, step) for count, step, gone in pairs if gone), key=lambda loop: loop[1]))
    kept = _joined([(count, step) for count, step, gone in reversed(pairs) if not gone])
    return reduced or [(1, 1)], kept


def _joined(loops: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for count, step in loops:
        if found and found[-1][0] * found[-1][1] == step:
            found[-1] = (found[-1][0] * count, found[-1][1])
        else:
            found.append((count, step))
    return found


def _output_vector(reduced: list[tuple[int, int]], kept: list[tuple[int, int]]) -> int:
    numbers = [kept[0][0], *(step for _, step in reduced), *(step for _, step in kept[1:])]
    return next(vector for vector in (_VECTOR, 2, 1) if all(number % vector == 0 for number in numbers))


def _last_power(count: int) -> int:
    return 1 << (max(1, count).bit_length() - 1)
