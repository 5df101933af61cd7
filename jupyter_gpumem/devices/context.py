"""Whether the CUDA context is lost: after a device-side assert every call fails, and only a restart helps."""

from __future__ import annotations

import re

from jupyter_gpumem.errors import UnavailableError

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


def lose_context(reason: str) -> None:
    """Note that the context is lost: nothing of this package touches the device from now on."""
    _lost[:] = [reason]


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
    text = lost_context()
    if text is not None:
        raise UnavailableError(text)
