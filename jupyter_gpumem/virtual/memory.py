"""The memory of the virtual cards: one allocator model each, asked and told by the device's storages."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.process import CALLS, ProcessDriver
from jupyter_gpumem.allocator.settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .cards import Card

    Observer = Callable[[str, int, int, int], Any]


_TRIAL_TOP = 0x3F00_0000_0000
"""Below this lies the memory of trials, far from that of the session: an address tells which of both it is."""


class _CurrentStreams(threading.local):
    """The handles of the streams that a thread uses, by card; one that is not here is the default one."""

    def __init__(self) -> None:
        self.handles: dict[int, int] = {}


class VirtualMemory:
    """The allocators of all virtual cards.

    Allocations and frees come from any thread. A free may also come out of the garbage collector while the same thread
    is inside an allocation, so it is put in a queue, and done when no allocation is going on.

    Args:
        cards: the cards, in the order of their indices.
        settings: PyTorch's settings; by default its defaults.

    Attributes:
        allocators: one per card.
        lock: held while an allocator works.
        ready: the cards that have a context.
        observers: told of every allocation and free: `alloc` or `free`, the device, the address, the size in bytes; and
            of every failure: `oom`, the device, 0, the bytes that were asked for.
        era: what tells allocations of the session (0) from those of each trial.
    """

    def __init__(self, cards: Sequence[Card], settings: AllocatorSettings | None = None) -> None:
        self.cards = tuple(cards)
        self.allocators = tuple(
            Allocator(
                settings or AllocatorSettings(),
                total_memory=card.total,
                driver=ProcessDriver(max(0, card.total - card.context)),
                device=index,
                finish_events=True,
            )
            for index, card in enumerate(cards)
        )
        self.lock = threading.RLock()
        self.ready: set[int] = set()
        self.observers: list[Observer] = []
        self._streams = _CurrentStreams()
        self._sizes: list[dict[int, int]] = [{} for _ in self.cards]
        self._freed: deque[tuple[int, int, int]] = deque()
        self._working = False
        self._calls = [0] * len(self.cards)
        self.era = 0
        self._eras = itertools.count(1)
        self._moved: list[dict[int, int]] = []
        self._freed_meanwhile: list[tuple[int, int]] = []

    def allocate(self, device: int, nbytes: int, stream: int | None = None) -> int:
        """Return the address of new memory; 0 for no bytes.

        Args:
            device: index of the card.
            nbytes: size in bytes.
            stream: handle of the stream; by default the thread's current one.

        Raises:
            torch.OutOfMemoryError: the card is full; the text is PyTorch's.
        """
        with self.lock:
            self.ready.add(device)
            if nbytes <= 0:
                return 0
            self._settle()
            self._working = True
            try:
                address = self.allocators[device].malloc(
                    nbytes, self.current_stream(device) if stream is None else stream
                )
            except ModelOutOfMemoryError as error:
                for observer in self.observers:
                    observer("oom", device, 0, nbytes)
                raise torch.OutOfMemoryError(str(error)) from None
            finally:
                self._working = False
            self._sizes[device][address] = nbytes
            self._count(device)
            for observer in self.observers:
                observer("alloc", device, address, nbytes)
        self._settle()
        return address

    def free(self, device: int, address: int, era: int | None = None) -> None:
        """Give memory back: at once, or as soon as the allocation that is going on is done. Address 0 is ignored.

        Args:
            device: index of the card.
            address: what `allocate` returned.
            era: the era it was allocated in; by default the present one.
        """
        if address:
            self._freed.append((device, address, self.era if era is None else era))
            self._settle()

    def scratch(self, device: int, sizes: Iterable[int | None], make: Callable[[], None] = lambda: None) -> None:
        """Allocate memory and give it back, as a kernel does with what it needs while it runs.

        Args:
            device: index of the card.
            sizes: bytes in the order they are asked for; a negative size gives the last block of that size back, and
                what is left is given back at the end; `None` is the moment of something else.
            make: done at that moment.
        """
        taken: list[tuple[int, int]] = []
        try:
            for size in sizes:
                if size is None:
                    make()
                    continue
                if size >= 0:
                    taken.append((size, self.allocate(device, size)))
                    continue
                at = next(at for at in reversed(range(len(taken))) if taken[at][0] == -size)
                self.free(device, taken.pop(at)[1])
        finally:
            for _, address in reversed(taken):
                self.free(device, address)

    def record_stream(self, device: int, address: int, stream: int) -> None:
        """Note that another stream uses the memory: it can be used again only when that stream is done."""
        with self.lock:
            if address in self._sizes[device]:
                self.allocators[device].record_stream(address, stream)

    def complete(self, device: int) -> None:
        """Let everything that was put on the card's streams be done."""
        with self.lock:
            self.allocators[device].complete_all()

    def current_stream(self, device: int) -> int:
        """Return the handle of the stream that this thread's allocations of the card are made on."""
        return self._streams.handles.get(device, 0)

    def set_stream(self, device: int, stream: int) -> None:
        """Make this thread's allocations of the card on this stream from now on."""
        self._streams.handles[device] = stream

    def _settle(self) -> None:
        """Do the frees that wait, unless somebody is at work: then that one does them."""
        while self._freed and not self._working and self.lock.acquire(blocking=False):
            try:
                if self._freed and not self._working:
                    self._free(*self._freed.popleft())
            finally:
                self.lock.release()

    @contextlib.contextmanager
    def trial(self) -> Iterator[list[dict[int, int]]]:
        """Let what follows happen in memory without end, in which what is allocated now is there from the start.

        Afterwards everything is as before; what is still allocated then is of no account any more. One at a time.

        Yields:
            For each card, the addresses in this memory of what was there before, by their own addresses.
        """
        with self.lock:
            self._settle()
            kept = self.allocators, self._sizes, self._calls, set(self.ready), dict(self._streams.handles)
            self.allocators = tuple(self._endless(allocator) for allocator in kept[0])
            self._sizes, self._calls = [{} for _ in self.cards], [0] * len(self.cards)
            self.era = next(self._eras)
            self._moved = [{} for _ in self.cards]
            for device, sizes in enumerate(kept[1]):
                for address, size in sorted(sizes.items()):
                    moved = self._moved[device][address] = self.allocators[device].malloc(size)
                    self._sizes[device][moved] = size
                self.allocators[device].reset_peaks()
        try:
            yield [dict(moved) for moved in self._moved]
        finally:
            with self.lock:
                self._settle()
                self.allocators, self._sizes, self._calls, self.ready, self._streams.handles = kept
                self.era, self._moved = 0, []
                while self._freed_meanwhile:
                    self._free(*self._freed_meanwhile.pop(), 0)

    @staticmethod
    def _endless(allocator: Allocator) -> Allocator:
        """Return an empty allocator with the same settings, whose driver never runs out."""
        return Allocator(
            allocator.settings,
            limit=allocator.limit,
            driver=ProcessDriver(None, _TRIAL_TOP),
            device=allocator.device,
            finish_events=allocator.finish_events,
        )

    def _free(self, device: int, address: int, era: int) -> None:
        if era != self.era:
            if era or not self.era:
                return  # of a trial that is over
            self._freed_meanwhile.append((device, address))
            address = self._moved[device].pop(address)
        self._working = True
        try:
            self.allocators[device].free(address)
        finally:
            self._working = False
        size = self._sizes[device].pop(address)
        driver = self.allocators[device].driver
        if isinstance(driver, ProcessDriver) and not driver.begun:
            driver.begin()
        self._count(device)
        for observer in self.observers:
            observer("free", device, address, size)

    def _count(self, device: int) -> None:
        """Let the driver take memory of its own now and then, once the program has begun to compute."""
        self._calls[device] += 1
        driver = self.allocators[device].driver
        if self._calls[device] % CALLS == 0 and isinstance(driver, ProcessDriver) and driver.begun:
            driver.keep()
