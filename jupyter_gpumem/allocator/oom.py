"""The model's out-of-memory error, with the numbers and in the words of PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.errors import GpumemError
from jupyter_gpumem.units import format_bytes

from .blocks import ALLOCATED, DEFAULT_POOL, PENDING

if TYPE_CHECKING:
    from .reserve import Reserve


_ADVICE = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)
"""What PyTorch adds, whether or not it can help."""


class ModelOutOfMemoryError(GpumemError):
    """The modelled allocator is out of memory.

    Attributes:
        tried: bytes of the segment that was asked for, as PyTorch prints.
        total, free: bytes of the device; `None` when they have no end.
        limit: the cap in bytes, or `None`.
        allocated, reserved: bytes in live blocks, and bytes held from the driver.
        private: bytes allocated in private pools.
    """

    def __init__(
        self,
        message: str,
        *,
        tried: int,
        total: int | None,
        free: int | None,
        limit: int | None,
        allocated: int,
        reserved: int,
        private: int,
    ) -> None:
        super().__init__(message)
        self.tried, self.total, self.free, self.limit = tried, total, free, limit
        self.allocated, self.reserved, self.private = allocated, reserved, private


def out_of_memory(allocator: Reserve, tried: int) -> ModelOutOfMemoryError:
    """Return the error for a request that needed a segment of so many bytes."""
    total, free, limit = allocator.total_memory, allocator.driver.free, allocator.limit
    allocated, reserved = allocator.total.size + allocator.total.pending_size, allocator.reserved
    private = sum(
        block.size
        for block in (allocator.blocks.values() if len(allocator.groups) > 1 else ())
        if block.shelf.pool.group.id != DEFAULT_POOL and block.state in {ALLOCATED, PENDING}
    )
    parts = [f"CUDA out of memory. Tried to allocate {_size(tried)}."]
    if total is not None and free is not None:
        parts.append(
            f"GPU {allocator.device} has a total capacity of {_size(total)} of which {_size(free)} is free. "
            f"Including non-PyTorch memory, this process has {_size(total - free)} memory in use."
        )
    if limit is not None:
        parts.append(f"{_size(limit)} allowed;")
    pools = f", with {_size(private)} allocated in private pools (e.g., CUDA Graphs)," if private else ","
    parts.append(
        f"Of the allocated memory {_size(allocated)} is allocated by PyTorch{pools} "
        f"and {_size(reserved - allocated)} is reserved by PyTorch but unallocated."
    )
    parts.append(_ADVICE)
    return ModelOutOfMemoryError(
        " ".join(parts),
        tried=tried,
        total=total,
        free=free,
        limit=limit,
        allocated=allocated,
        reserved=reserved,
        private=private,
    )


def _size(size: int) -> str:
    return f"{size} bytes" if size < 1024 else format_bytes(size)
