"""The device's guard: what PyTorch asks for the current device and stream, in a few bytes of machine code.

PyTorch can have the guard in Python (`torch._C._acc.DeviceGuard`), but asks it in places where nothing may be raised:
when a backward pass fails with an error that is still set in Python, or is interrupted just there, the call fails and
the process aborts. So the methods that would call Python are replaced, in the guard's table of virtual functions, by
ones that return a constant or their argument.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import re
from pathlib import Path
from typing import Any

import torch

from jupyter_gpumem.errors import UnavailableError

# A device is its type (20) and its index in one byte each; a stream is a device and 8 bytes for its id. Results of up
# to 16 bytes come back in two registers.
_FIRST_DEVICE, _GIVEN_DEVICE, _GIVEN_STREAM = "first device", "given device", "given stream"
_COUNT, _NONE = "count", "none"
CODE = {
    "x86_64": {
        _FIRST_DEVICE: "b8 14 00 00 00  c3",  # mov eax, 20; ret
        _GIVEN_DEVICE: "0f b7 c6  31 d2  c3",  # movzx eax, si; xor edx, edx; ret
        _GIVEN_STREAM: "48 89 f0  c3",  # mov rax, rsi; ret, with the id in rdx already
        _COUNT: "b8 10 00 00 00  c3",  # mov eax, 16; ret
        _NONE: "31 c0  c3",  # xor eax, eax; ret
    },
    "aarch64": {
        _FIRST_DEVICE: "80 02 80 52  c0 03 5f d6",  # mov w0, #20; ret
        _GIVEN_DEVICE: "20 3c 40 92  01 00 80 d2  c0 03 5f d6",  # and x0, x1, #0xffff; mov x1, #0; ret
        _GIVEN_STREAM: "e0 03 01 aa  e1 03 02 aa  c0 03 5f d6",  # mov x0, x1; mov x1, x2; ret
        _COUNT: "00 02 80 52  c0 03 5f d6",  # mov w0, #16; ret
        _NONE: "00 00 80 52  c0 03 5f d6",  # mov w0, #0; ret
    },
}
"""By machine, as `platform.machine()` names it under Linux: a virtual GPU needs one of these."""
_METHODS = {
    "type": _FIRST_DEVICE,
    "exchangeDevice": _FIRST_DEVICE,
    "getDevice": _FIRST_DEVICE,
    "getStream": _GIVEN_DEVICE,
    "getNewStream": _GIVEN_DEVICE,
    "exchangeStream": _GIVEN_STREAM,
    "deviceCount": _COUNT,  # as many as there may be
}
_SLOT = 32  # bytes of code for each
_WORD = ctypes.sizeof(ctypes.c_void_p)
_LIBRARY = "lib/libc10.so"
_GUARDS, _CUDA = "_ZN3c104impl26device_guard_impl_registryE", 1  # a table of guards, and the place of CUDA's
_GET_ALLOCATOR = "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE"
_SET_ALLOCATOR = "_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh"
_META, _OURS = 14, 20  # c10::DeviceType
_HEADER = "include/c10/core/impl/DeviceGuardImplInterface.h"


def register() -> None:
    """Register the guard, for the life of the process.

    Raises:
        UnavailableError: the guard cannot be made on this machine or for this PyTorch.
    """
    names = _virtual_functions()
    # Autograd starts a thread for each device there is at the first backward pass. Ours needs none, and a thread that
    # waits for Python at the interpreter's exit would abort it: so that must be over before the device exists.
    torch.zeros(1, requires_grad=True).sum().backward()
    device_type = torch._C._autograd.DeviceType.PrivateUse1

    class Guard(torch._C._acc.DeviceGuard):  # type: ignore[misc]
        def type_(self) -> Any:
            return device_type

    guard = Guard()
    stubs = _executable(CODE[platform.machine()])
    # A pybind11 object has the address of the C++ object after Python's own head, and that object begins with the
    # address of its table. The two words before the table belong to it.
    instance = ctypes.c_void_p.from_address(id(guard) + object.__basicsize__).value or 0
    before = ctypes.c_void_p.from_address(instance)
    count = len(names) + 2  # two of them destructors
    table = (ctypes.c_void_p * (2 + count)).from_buffer_copy(
        ctypes.string_at((before.value or 0) - 2 * _WORD, (2 + count) * _WORD)
    )
    for name, kind in _METHODS.items():
        table[2 + names.index(name)] = stubs[kind]
    before.value = ctypes.addressof(table) + 2 * _WORD
    _keep_for_good(guard)
    _keep_for_good(table)
    if torch._C._acc.DeviceGuard.type_(guard) != device_type:
        raise UnavailableError(f"the device guard of torch {torch.__version__} is not understood; use another version")
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    count_at = 2 + names.index("deviceCount")
    table[count_at] = stubs[_NONE]
    _stand_in_for_cuda(instance)
    table[count_at] = stubs[_COUNT]


def _stand_in_for_cuda(guard: int) -> None:
    """See to it that CUDA has a guard too: PyTorch's own fake one where there are no real cards.

    Autograd asks for it where a tensor says that it is on `cuda`, as those of subclasses and fake ones do, and the
    process ends if there is none. PyTorch sets the fake one in place of one that counts no devices, but not of none
    (pytorch/pytorch, `ensureCUDADeviceGuardSet`).

    Args:
        guard: the address of a guard that counts no devices.
    """
    guards = (ctypes.c_void_p * (_CUDA + 1)).in_dll(_library(), _GUARDS)
    guards[_CUDA] = guards[_CUDA] or guard
    torch._C._ensureCUDADeviceGuardSet()


def _keep_for_good(kept: Any) -> None:
    """Never let go of an object, not at the interpreter's exit either: objects that go after it may ask the guard."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def give_allocator() -> None:
    """Give the device an allocator, for the life of the process: storages that PyTorch itself makes ask for it.

    Without one the process ends, also for a storage that is left after the device is off. It is that of `meta`, which
    has no memory; what belongs on a card is made by kernels and methods of ours.
    """
    library = _library()
    get, give = getattr(library, _GET_ALLOCATOR), getattr(library, _SET_ALLOCATOR)
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.POINTER(ctypes.c_int8),)
    give.restype, give.argtypes = None, (ctypes.c_int8, ctypes.c_void_p, ctypes.c_uint8)
    give(_OURS, get(ctypes.c_int8(_META)), 0)


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / _LIBRARY))


def _virtual_functions() -> list[str]:
    """Return the names of the guard's virtual functions in their order, from PyTorch's own header.

    Raises:
        UnavailableError: the header is not there or not understood.
    """
    path = Path(torch.__file__).parent / _HEADER
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnavailableError(
            f"a virtual GPU needs PyTorch's headers, {path} cannot be read; reinstall torch"
        ) from error
    body = text.partition("DeviceGuardImplInterface {")[2].partition("\n};")[0]
    names = re.findall(r"^\s*virtual\s+(?:[\w:]+[\s*&]+)?(~?\w+)\(", body, re.MULTILINE)
    if not set(_METHODS) <= set(names) or names[-1] != "~DeviceGuardImplInterface":
        raise UnavailableError(f"the device guard of torch {torch.__version__} is not understood; use another version")
    return names[:-1]


def _executable(code: dict[str, str]) -> dict[str, int]:
    """Return the addresses of the pieces of code, in memory that can be run but no longer written."""
    area = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for at, text in enumerate(code.values()):
        piece = bytes.fromhex(text)
        area[at * _SLOT : at * _SLOT + len(piece)] = piece
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC):
        raise UnavailableError("this system allows no code made at run time; a virtual GPU cannot be had here")
    _keep_for_good(area)
    return {name: address + at * _SLOT for at, name in enumerate(code)}
