"""What shape an absurd request has, where the tensors at hand give it away. A guess, and said to be one."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from jupyter_gpumem.holding.edges import local_names
from jupyter_gpumem.holding.tensors import view_of_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType, TracebackType

_NOT_THE_USERS = frozenset({"torch", __name__.partition(".")[0]})
_MOST_TENSORS = 12
_ROUNDING = 2 * 2**20


def guess_shape(error: BaseException, request: int) -> str | None:
    """Return which two local tensors would make a result of that size, in one sentence, or `None`.

    Args:
        error: the error, with its traceback.
        request: bytes of the segment that was asked for.
    """
    torch = view_of_torch()
    frame = _innermost(error)
    if torch is None or frame is None:
        return None
    with torch.undisturbed():
        tensors = [
            (name, tuple(value.shape), value.element_size(), str(value.dtype).removeprefix("torch."))
            for name, value in local_names(frame).items()
            if torch.is_tensor(type(value)) and value.layout is torch.strided
        ][:_MOST_TENSORS]
    for (left, a, size, dtype), (right, b, other, _) in itertools.product(tensors, repeat=2):
        if size != other:
            continue
        for how, shape in _results(a, b):
            nbytes = math.prod(shape) * size
            if request - _ROUNDING < nbytes <= request:
                return f"It fits a {dtype} tensor of shape {shape}, as {how.format(left, right)} makes"
    return None


def _results(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield how two shapes can be combined, and to what."""
    broadcast = []
    for one, two in itertools.zip_longest(reversed(a), reversed(b), fillvalue=1):
        if one != two and 1 not in {one, two}:
            break
        broadcast.append(max(one, two))
    else:
        yield "broadcasting {} with {}", tuple(reversed(broadcast))
    if len(a) >= 2 and len(b) >= 2:
        if a[-1] == b[-2]:
            yield "{} @ {}", (*a[:-1], b[-1])
        if a[-1] == b[-1]:
            yield "{} @ {}.mT", (*a[:-1], b[-2])
        if a[-2] == b[-2]:
            yield "{}.mT @ {}", (*a[:-2], a[-1], b[-1])


def _innermost(error: BaseException) -> FrameType | None:
    """Return the innermost frame of the error that is not PyTorch's own."""
    steps = users_steps(error)
    return steps[-1].tb_frame if steps else None


def users_steps(error: BaseException) -> list[TracebackType]:
    """Return the steps of an error's traceback, the outermost first, without PyTorch's and our own."""
    found, traceback = [], error.__traceback__
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USERS:
            found.append(traceback)
        traceback = traceback.tb_next
    return found


def frame_place(error: BaseException) -> str | None:
    """Return where it failed: `function, line` of the innermost frame that is not PyTorch's own, or `None`."""
    steps = users_steps(error)
    return f"{steps[-1].tb_frame.f_code.co_name}, line {steps[-1].tb_lineno}" if steps else None
