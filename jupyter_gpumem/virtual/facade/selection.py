"""Which card and which stream a thread works on, as CUDA keeps them: for each thread, from card 0 and stream 0 on."""

from __future__ import annotations

import threading

PER_PRIORITY = 32
"""Streams that PyTorch makes for each card and priority before it hands out the first again."""

PRIORITIES = 2
"""High and low."""

_HANDLES = 0x5600_0000_0000
_SPACE = 1 << 20


class Selection(threading.local):
    """The choices of the running thread.

    Attributes:
        device: index of the card.
        streams: id of the current stream of each card where it is not the default one.
    """

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, int] = {}

    def stream(self, device: int) -> int:
        """Return the id of the stream in use on a card."""
        return self.streams.get(device, 0)

    def handle(self, device: int) -> int:
        """Return the handle of the stream in use on a card, which is what the allocator tells streams apart by."""
        return handle(device, self.stream(device))


def handle(device: int, stream_id: int) -> int:
    """Return `cuda_stream` of a stream; that of the default stream is 0, that of an external one its own."""
    if 0 < stream_id <= PER_PRIORITY * PRIORITIES:
        return _HANDLES + device * _SPACE + stream_id * 0x40
    return stream_id


class StreamPool:
    """Hands out the ids of a card's streams in turn, as PyTorch does."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, bool], int] = {}
        self._lock = threading.Lock()

    def copy(self) -> StreamPool:
        """Return one that goes on from here by itself."""
        other = StreamPool()
        with self._lock:
            other._next.update(self._next)
        return other

    def take(self, device: int, *, high: bool) -> int:
        """Return the id of the next stream of that priority."""
        with self._lock:
            turn = self._next.get((device, high), 0)
            self._next[device, high] = turn + 1
        return 1 + turn % PER_PRIORITY + PER_PRIORITY * high


def is_high(stream_id: int) -> bool:
    """Whether a stream has high priority."""
    return PER_PRIORITY < stream_id <= PER_PRIORITY * PRIORITIES
