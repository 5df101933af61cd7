"""What the allocator model keeps track of: blocks in segments, and the free ones on shelves in best-fit order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .counters import Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .counters import Tally

PoolId: TypeAlias = tuple[int, int]
"""PyTorch's name of a pool: `(0, 0)` is the default one, `(k, 0)` and `(0, k)` are private pools."""

DEFAULT_POOL: PoolId = (0, 0)

FREE, ALLOCATED, PENDING, UNMAPPED = range(4)
"""States of a block: on a shelf; handed out; freed, but another stream may still use it; address space only."""

ADDRESS_BITS = 64
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
"""A free block is `size << ADDRESS_BITS | address` on its shelf: one integer, so that comparing is cheap."""

_UNSIGNED = (1 << 64) - 1


class Block:
    """A piece of a segment.

    Attributes:
        address, size: where it lies, in bytes.
        requested: bytes that were asked for when it was last handed out.
        state: FREE, ALLOCATED, PENDING or UNMAPPED.
        prev, next: the neighbours in the same segment.
        shelf: where it goes when it is free.
        segment: the expandable segment it lies in, or `None` in a segment of its own.
        streams: other streams that use it, or `None`.
        age_base: how often its pool had been searched when the block became free.
    """

    __slots__ = ("address", "age_base", "next", "prev", "requested", "segment", "shelf", "size", "state", "streams")

    address: int
    size: int
    requested: int
    state: int
    prev: Block | None
    next: Block | None
    shelf: Shelf
    segment: ExpandableSegment | None
    streams: set[int] | None
    age_base: int

    def __init__(self) -> None:
        # Only what the hot path does not set itself: it makes a block for every split.
        self.streams = None
        self.age_base = 0

    @property
    def is_split(self) -> bool:
        """Whether it shares its segment with other blocks."""
        return self.prev is not None or self.next is not None

    @property
    def key(self) -> int:
        """Its place on the shelf."""
        return self.size << ADDRESS_BITS | self.address


class Shelf:
    """The free blocks of one pool and stream, which are never given to another.

    Attributes:
        keys: the free blocks as `Block.key`, in order: by size, then by address.
        unmapped: addresses of the unmapped blocks of expandable segments, in order.
        grows: whether a block of an expandable segment was ever here.
    """

    __slots__ = ("grows", "keys", "pool", "stream", "tally", "unmapped")

    def __init__(self, pool: Pool, stream: int) -> None:
        self.pool, self.stream, self.tally = pool, stream, pool.tally
        self.keys: list[int] = []
        self.unmapped: list[int] = []
        self.grows = False


class Pool:
    """The small or the large half of a pool.

    Attributes:
        searches: how often a free block was looked for; the clock of garbage collection.
        reserved: bytes its segments hold.
    """

    __slots__ = ("group", "reserved", "searches", "shelves", "small", "tally")

    def __init__(self, group: PoolGroup, tally: Tally, *, small: bool) -> None:
        self.group, self.tally, self.small = group, tally, small
        self.shelves: dict[int, Shelf] = {}
        self.searches = 0
        self.reserved = Level()

    def shelf(self, stream: int) -> Shelf:
        """Return the shelf of a stream, made when it is first needed."""
        shelf = self.shelves.get(stream)
        if shelf is None:
            shelf = self.shelves[stream] = Shelf(self, stream)
        return shelf

    def in_order(self) -> Iterator[Shelf]:
        """Yield the shelves in PyTorch's order: by stream handle, as an unsigned number."""
        for stream in sorted(self.shelves, key=lambda handle: handle & _UNSIGNED):
            yield self.shelves[stream]


class PoolGroup:
    """One pool by its id: the default one, or a private one of a `MemPool` or a CUDA graph.

    Attributes:
        in_use: whether its owner lives; only then is its memory kept from the driver. Always true of the default pool.
        no_split: blocks are handed out whole.
        use_on_oom: its free blocks are a last resort for requests of the default pool.
        custom: it has an allocator of its own, which gives it segments also where expandable ones are on
            (pytorch/pytorch#147851).
        reserved: bytes its segments hold.
    """

    __slots__ = ("custom", "id", "in_use", "large", "no_split", "reserved", "small", "use_on_oom")

    def __init__(self, pool_id: PoolId, small: Tally, large: Tally) -> None:
        self.id = pool_id
        self.small = Pool(self, small, small=True)
        self.large = Pool(self, large, small=False)
        self.in_use, self.no_split, self.use_on_oom, self.custom = True, False, False, False
        self.reserved = Level()


class ExpandableSegment:
    """A range of address space into which pages are mapped as needed."""

    __slots__ = ("address", "page", "size")

    def __init__(self, address: int, size: int, page: int) -> None:
        self.address, self.size, self.page = address, size, page
