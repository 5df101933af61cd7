"""Whether PyTorch takes the virtual device for the accelerator of this process, of which it knows one only.

From the moment the `PrivateUse1` device has a name, PyTorch takes it for the accelerator: the streams of backward
passes, pinned memory and `torch.accelerator` come from it. Beside a real GPU every backward pass on that one then
fails with an internal assertion (pytorch/pytorch#161129), also when the virtual one is off. PyTorch goes by a flag
that it sets and never takes back. Its address is read from the function that answers with it, so that we can.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from jupyter_gpumem.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARY = "lib/libc10.so"
_FUNCTION = "_ZN3c1033is_privateuse1_backend_registeredEv"
_READ = 32  # bytes of its code, of which the first few matter


def check() -> None:
    """See to it that a claim can be given up again, before PyTorch knows the device.

    Raises:
        UnavailableError: it cannot, and there is a real accelerator that would be lost.
    """
    if _flag() is None and torch.accelerator.is_available():
        raise UnavailableError(
            f"a virtual GPU beside a real one is not possible with torch {torch.__version__} on {platform.machine()}: "
            "backward passes on the real one would fail afterwards; start a process with CUDA_VISIBLE_DEVICES='' for it"
        )


def make() -> None:
    """Have the virtual device taken for the accelerator."""
    _set(True)


def give_up() -> None:
    """Have what was the accelerator before taken for it again; without one, PyTorch says so."""
    _set(False)


def _set(claimed: bool) -> None:
    flag = _flag()
    if flag is not None:
        flag.value = claimed


@functools.cache
def _flag() -> ctypes.c_bool | None:
    """Return PyTorch's flag, or `None` where the code that reads it is not understood."""
    find = {"x86_64": _address_x86, "aarch64": _address_arm}.get(platform.machine())
    try:
        function = getattr(ctypes.CDLL(str(Path(torch.__file__).parent / _LIBRARY)), _FUNCTION)
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_bool
    start = ctypes.cast(function, ctypes.c_void_p).value or 0
    address = find(ctypes.string_at(start, _READ), start) if find is not None else None
    if address is None:
        return None
    flag = ctypes.c_bool.from_address(address)
    return flag if _answers_with(function, flag) else None


def _answers_with(function: Callable[[], bool], flag: ctypes.c_bool) -> bool:
    """Whether the function says what the flag says, either way; the flag is left as it was."""
    before = flag.value
    try:
        for value in (not before, before):
            flag.value = value
            if function() is not value:
                return False
    finally:
        flag.value = before
    return True


def _address_x86(code: bytes, start: int) -> int | None:
    """Return what `movzx eax, byte ptr [rip + distance]` reads, with which the function begins."""
    if code[:3] != bytes.fromhex("0f b6 05"):
        return None
    (distance,) = struct.unpack_from("<i", code, 3)
    return int(start + 7 + distance)


def _address_arm(code: bytes, start: int) -> int | None:
    """Return what `adrp x0, page; add x0, x0, #offset; ldarb w0, [x0]` reads, with which the function begins."""
    page, offset, load = struct.unpack_from("<3I", code)
    if page & 0x9F00001F != 0x90000000 or offset & 0xFFC003FF != 0x91000000 or load != 0x08DFFC00:
        return None
    pages = (page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3
    pages -= (pages & 1 << 20) << 1
    return int((start & ~0xFFF) + (pages << 12) + (offset >> 10 & 0xFFF))
