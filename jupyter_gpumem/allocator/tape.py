"""A modelled allocator that writes down what it does, as PyTorch does: recordings without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .blocks import DEFAULT_POOL
from .driver import TopDownDriver
from .model import Allocator
from .oom import ModelOutOfMemoryError

if TYPE_CHECKING:
    from .blocks import PoolId
    from .settings import AllocatorSettings

_STEP_US = 10


class TapedAllocator:
    """An allocator and its trace.

    Args:
        settings: PyTorch's settings; by default its defaults.
        total_memory: bytes of the device, or `None` without end.
        limit: bytes that may be reserved, or `None` without a cap.
        pool_ids: whether events name the pool, as PyTorch 2.12 and later do.

    Attributes:
        allocator: the model.
        events: what it did, in the format of PyTorch's trace entries.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        total_memory: int | None = None,
        limit: int | None = None,
        pool_ids: bool = True,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.allocator = Allocator(
            settings, total_memory=total_memory, limit=limit, driver=_TapedDriver(self, total_memory)
        )
        self._pool_ids = pool_ids
        self._asking: tuple[int, PoolId] = (0, DEFAULT_POOL)
        self._live: dict[int, tuple[int, int, PoolId]] = {}

    def malloc(self, size: int, stream: int = 0, pool: PoolId = DEFAULT_POOL) -> int:
        """Return the address of a new allocation.

        Raises:
            ModelOutOfMemoryError: there is no memory; the trace says so too.
        """
        self._asking = (stream, pool)
        try:
            address = self.allocator.malloc(size, stream, pool)
        except ModelOutOfMemoryError:
            self._note("oom", size, stream, pool, device_free=self.allocator.driver.free or 0)
            raise
        self._live[address] = (size, stream, pool)
        self._note("alloc", size, stream, pool, addr=address)
        return address

    def free(self, address: int) -> None:
        """Free an allocation that no other stream uses."""
        size, stream, pool = self._live.pop(address)
        self.allocator.free(address)
        self._note("free_requested", size, stream, pool, addr=address)
        self._note("free_completed", size, stream, pool, addr=address)

    def empty_cache(self) -> None:
        """Give the cache back to the driver."""
        self.allocator.empty_cache()

    def snapshot(self) -> dict[str, Any]:
        """Return segments and trace in the format of `torch.cuda.memory._snapshot()`."""
        return {"segments": self.allocator.snapshot(), "device_traces": [self.events]}

    def note_segment(self, action: str, address: int, size: int, whose: tuple[int, PoolId] | None = None) -> None:
        """Write down a call of the driver, by the request being served or on behalf of another owner."""
        self._note(action, size, *(whose or self._asking), addr=address)

    @property
    def asking(self) -> tuple[int, PoolId]:
        """Stream and pool of the request being served."""
        return self._asking

    def _note(self, action: str, size: int, stream: int, pool: PoolId, **more: int) -> None:
        event: dict[str, Any] = {"action": action, "size": size, "stream": stream, **more}
        if self._pool_ids:
            event["pool_id"] = pool
        event["time_us"] = len(self.events) * _STEP_US
        self.events.append(event)


class _TapedDriver(TopDownDriver):
    """A driver whose calls are written down."""

    def __init__(self, tape: TapedAllocator, capacity: int | None) -> None:
        super().__init__(capacity)
        self._tape = tape
        self._owners: dict[int, tuple[int, PoolId]] = {}
        self._ranges_of: list[tuple[int, int, tuple[int, PoolId]]] = []

    def allocate(self, size: int) -> int | None:
        address = super().allocate(size)
        if address is not None:
            self._owners[address] = self._tape.asking
            self._tape.note_segment("segment_alloc", address, size)
        return address

    def release(self, address: int, size: int) -> None:
        super().release(address, size)
        self._tape.note_segment("segment_free", address, size, self._owners.pop(address))

    def reserve(self, size: int) -> int | None:
        address = super().reserve(size)
        if address is not None:
            self._ranges_of.append((address, address + size, self._tape.asking))
        return address

    def map(self, address: int, size: int) -> bool:
        mapped = super().map(address, size)
        if mapped:
            self._tape.note_segment("segment_map", address, size)
        return mapped

    def unmap(self, address: int, size: int) -> None:
        super().unmap(address, size)
        owner = next(owner for low, high, owner in reversed(self._ranges_of) if low <= address < high)
        self._tape.note_segment("segment_unmap", address, size, owner)
