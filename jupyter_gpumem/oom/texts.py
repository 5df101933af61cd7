"""Reading the texts of out-of-memory errors, old and new, of every platform; and telling look-alikes apart.

The wordings were collected from public reports (pytorch/pytorch#59778, #112377, #175431, microsoft/WSL#11050, ...).
"""

from __future__ import annotations

import re

from jupyter_gpumem.errors import GpumemError
from jupyter_gpumem.notebook import chained, text_of
from jupyter_gpumem.records import OomText
from jupyter_gpumem.units import GiB, KiB, MiB, TiB

_UNITS = {"b": 1, "bytes": 1, "kib": KiB, "kb": KiB, "mib": MiB, "mb": MiB, "gib": GiB, "gb": GiB, "tib": TiB}
"""MPS prints `GB` and means powers of two."""

_UNKNOWN = 2**63
"""What is printed for a value that the driver does not know: 2^64 - 1, as GiB 17179869184 (microsoft/WSL#11050)."""

_S = r"(\d+(?:\.\d+)?) ?(bytes|[KMGT]i?B|B)"
_START = re.compile(
    rf"(?:\b([A-Z]+)(?: backend)? o|\bO)ut of memory\b.*?(?:Tried to allocate|Requested size:) {_S}", re.DOTALL
)
_ENORMOUS = re.compile(r"\b([A-Z]+) out of memory\. Tried to allocate more than 1EB memory")
_ASYNC = re.compile(rf"Allocation on device (\d+) would exceed allowed memory.*?Requested\s*: {_S}", re.DOTALL)

_NUMBERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("total", rf"total capac(?:i)?ty of {_S}"),
        ("free", rf"of which {_S} is free"),
        ("own", rf"[Tt]his process has {_S} memory in use"),
        ("limit", rf"{_S} allowed"),
        ("allocated", rf"Of the allocated memory {_S} is allocated by PyTorch"),
        ("private", rf"with {_S} allocated in private pools"),
        ("unallocated", rf"{_S} is reserved by PyTorch but unallocated"),
        # Until PyTorch 2.0:
        ("total", rf"{_S} total capacity"),
        ("allocated", rf"{_S} already allocated"),
        ("free", rf"{_S} free;"),
        ("reserved", rf"{_S} reserved in total by PyTorch"),
        ("unallocated", rf"{_S} cached"),
        # MPS:
        ("allocated", rf"MPS allocated: {_S}"),
        ("own", rf"other allocations: {_S}"),
        ("limit", rf"max allowed: {_S}"),
        # backend:cudaMallocAsync:
        ("allocated", rf"Currently allocated\s*: {_S}"),
        ("total", rf"Device limit\s*: {_S}"),
        ("free", rf"Free \(according to CUDA\): {_S}"),
        ("limit", rf"PyTorch limit \(set by user-supplied memory fraction\)\s*: {_S}"),
        # A request that was refused at the cap:
        ("limit", rf"would exceed memory limit \({_S}"),
    )
)
_DEVICE = re.compile(r"\b(?:GPU|NPU|XPU|[Dd]evice) (\d+)\b")
_PROCESS = re.compile(rf"Process (\d+) has {_S} memory in use")
_HOST = re.compile(r"DefaultCPUAllocator: (?:not enough|can't allocate) memory: you tried to allocate (\d+) bytes")

_DRIVER = re.compile(
    r"(?:CUDA|HIP|XPU) (?:driver )?error: out of memory|cuda runtime error \(2\)|(?:hip|cuda)Error(?:Out|Memory)\w*"
    r"|Cuda failure \d* ?'out of memory'",
)
_LIBRARY = re.compile(
    r"(?:CUBLAS|HIPBLAS|ROCBLAS|CUDNN|MIOPEN|CUSOLVER|CUSPARSE|CUFFT)_(?:STATUS_)?(?:ALLOC_FAILED|INTERNAL_ALLOC)"
    r"|CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublasCreate|NCCL .*out of memory"
)
_BARE = re.compile(
    r"\A(?:(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b:? ?)(?:(CUDA|HIP|XPU|MPS) .*)?"
    r"|\A(?:RuntimeError: )?(CUDA|HIP|XPU|MPS) (?:backend )?out of memory\b"
)
"""Without numbers, as people raise it themselves: the class alone, or a text that begins as PyTorch's do."""

_HIDDEN = re.compile(r"NVML_SUCCESS == r INTERNAL ASSERT FAILED at .*CUDACachingAllocator")


def parse(text: str) -> OomText | None:
    """Return what a text says if it is that of an out-of-memory error, else `None`."""
    for start in (_START, _ENORMOUS):
        found = start.search(text)
        if found is not None:
            platform = (found[1] or "CUDA").lower()
            size = _size(found[2], found[3]) if start is _START else None
            return _with_numbers(text[found.start() :], "cuda" if platform == "gpu" else platform, size)
    found = _ASYNC.search(text)
    if found is not None:
        return _with_numbers(text, "cuda", _size(found[2], found[3]))
    found = _HOST.search(text)
    if found is not None:
        return OomText("host", "cpu", int(found[1]))
    for family, pattern in (("library", _LIBRARY), ("driver", _DRIVER), ("assert", _HIDDEN)):
        found = pattern.search(text)
        if found is not None:
            return OomText(family, "hip" if re.search(r"hip|roc|miopen", found[0], re.IGNORECASE) else "cuda")
    found = _BARE.search(text)
    return None if found is None else OomText("bare", (found[1] or found[2] or "CUDA").lower())


def _with_numbers(text: str, platform: str, requested: int | None) -> OomText:
    found: dict[str, int | None] = {}
    for name, pattern in _NUMBERS:
        match = pattern.search(text)
        if match is not None and name not in found:
            found[name] = _size(match[1], match[2])
    reserved = found.pop("reserved", None)
    if reserved is not None and found.get("allocated") is not None:
        found["unallocated"] = reserved - (found["allocated"] or 0)
    device = _DEVICE.search(text)
    return OomText(
        family="allocator",
        platform=platform,
        requested=requested,
        device=int(device[1]) if device is not None else None,
        processes=tuple((int(pid), _size(number, unit)) for pid, number, unit in _PROCESS.findall(text)),
        **found,
    )


def _size(number: str, unit: str) -> int | None:
    size = int(float(number) * _UNITS[unit.lower()])
    return size if size < _UNKNOWN else None


def find_oom(error: BaseException, handled: BaseException | None = None) -> tuple[BaseException, OomText] | None:
    """Return the out-of-memory error that an error is, was raised from, or groups: one with numbers if there is one.

    Args:
        error: the error.
        handled: what was being handled already when the code began that raised it: that is none of its reasons.
    """
    found = [
        (one, text)
        for one in chained(error, handled=handled)
        if not isinstance(one, GpumemError)  # the model's own is behind PyTorch's
        and (text := parse(f"{type(one).__name__}: {text_of(one)}")) is not None
    ]
    told = [entry for entry in found if entry[1].family == "allocator"] or found
    if not told:
        return None
    # A trainer's own error may repeat the text: the original one comes last in the chain. One about another request was
    # being handled, such as by trying a smaller batch, when memory ran out again.
    request = told[0][1].requested
    return next(entry for entry in reversed(told) if request is None or entry[1].requested == request)
