"""Whether the CUDA context is lost: after a device-side assert every call fails, and only a restart helps.

From then on nothing of this package touches the device. That is seen to at the bottom: devices under PyTorch's
allocator are not in use any more, their bindings and controls refuse, and so does whatever asks why there is none.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from jupyter_gpumem.errors import UnavailableError
from jupyter_gpumem.notebook import chained, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_STICKY = re.compile(
    r"device-side assert|an illegal memory access|unspecified launch failure|misaligned address|illegal instruction"
    r"|invalid program counter|hardware stack error|illegal address space|uncorrectable ECC error",
)
_PLATFORM = re.compile(
    r"\b(?:CUDA|HIP|cuda|hip)\w* (?:driver |runtime )?error|CUBLAS_|CUDNN_|cudaError|AcceleratorError"
)

_lost: list[str] = []


def sticky_error(text: str) -> str | None:
    """Return what a driver's error says has happened if the context does not survive it, else `None`."""
    found = _STICKY.search(text)
    return found[0] if found is not None and _PLATFORM.search(text) is not None else None


def loss_in(error: BaseException) -> str | None:
    """Return what has happened if an error, or one that it was raised from, means that the context is lost."""
    lines = (f"{type(one).__name__}: {text_of(one)}" for one in chained(error))
    return next((reason for line in lines if (reason := sticky_error(line)) is not None), None)


def note_loss(error: BaseException) -> bool:
    """Note that the context is lost, if that is what an error means; returns whether it is."""
    reason = loss_in(error)
    if reason is not None:
        _lost[:] = [reason]
    return reason is not None


def find_context_again() -> None:
    """Take that back: a test's process goes on."""
    _lost.clear()


def lost_context() -> str | None:
    """Return in one sentence that the context is lost, or `None`."""
    return f"the CUDA context is lost ({_lost[0]}); save what is on the CPU, then restart the kernel" if _lost else None


def check_context() -> None:
    """Refuse to go on without a context.

    Raises:
        UnavailableError: it is lost.
    """
    if _lost:
        raise UnavailableError(lost_context())


@contextlib.contextmanager
def touching() -> Iterator[None]:
    """Touch the device inside: not without a context, and if it turns out to be lost, that is noted and said.

    Raises:
        UnavailableError: the context is lost.
    """
    check_context()
    try:
        yield
    except RuntimeError as error:
        if note_loss(error):
            raise UnavailableError(lost_context()) from error
        raise
