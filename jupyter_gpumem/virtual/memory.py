"""The memory of the virtual cards: one allocator model each, asked and told by the device's storages."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.process import CALLS, ProcessDriver
from jupyter_gpumem.allocator.settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .cards import Card

    Observer = Callable[[str, int, int, int], Any]


class _CurrentStreams(threading.local):
    """The handles of the streams that a thread uses, by card; one that is not here is the default one."""

    def __init__(self) -> None:
        self.handles: dict[int, int] = {}


_SIGNALS = (signal.SIGINT, signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class _Released(NamedTuple):
    """Memory that is given back."""

    device: int
    address: int


class VirtualMemory:
    """The allocators of all virtual cards.

    Allocations and frees come from any thread. A free may also come out of the garbage collector while the same thread
    is inside an allocation, and must not be lost when the user interrupts just then: so it is only put in a queue, by
    one call of C, and done before anything else is asked of the allocators.

    Args:
        cards: the cards, in the order of their indices.
        settings: PyTorch's settings; by default its defaults.

    Attributes:
        lock: held while an allocator works.
        ready: the cards that have a context.
        observers: told of every allocation and free: `alloc` or `free`, the device, the address, the size in bytes; and
            of every failure: `oom`, the device, 0, the bytes that were asked for.
        released: the queue: objects with the attributes `device` and `address`.
        alive: `{(device, address): object}` of what will be put in the queue.
    """

    def __init__(self, cards: Sequence[Card], settings: AllocatorSettings | None = None) -> None:
        self.cards = tuple(cards)
        self._allocators = tuple(
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
        self.released: deque[Any] = deque()
        self.alive: dict[tuple[int, int], Any] = {}
        self._calls = [0] * len(self.cards)

    @property
    def allocators(self) -> tuple[Allocator, ...]:
        """One allocator per card, with everything done that waits."""
        if self.released:
            with self._uninterrupted():
                self._settle()
        return self._allocators

    def allocate(self, device: int, nbytes: int, stream: int | None = None) -> int:
        """Return the address of new memory; 0 for no bytes.

        Args:
            device: index of the card.
            nbytes: size in bytes.
            stream: handle of the stream; by default the thread's current one.

        Raises:
            torch.OutOfMemoryError: the card is full; the text is PyTorch's.
        """
        with self._uninterrupted():
            self.ready.add(device)
            if nbytes <= 0:
                return 0
            self._settle()
            try:
                address = self._allocators[device].malloc(
                    nbytes, self.current_stream(device) if stream is None else stream
                )
            except ModelOutOfMemoryError as error:
                for observer in self.observers:
                    observer("oom", device, 0, nbytes)
                raise torch.OutOfMemoryError(str(error)) from None
            self._sizes[device][address] = nbytes
            self._count(device)
            for observer in self.observers:
                observer("alloc", device, address, nbytes)
        return address

    def free(self, device: int, address: int) -> None:
        """Give memory back; address 0 is ignored."""
        if address:
            self.released.append(_Released(device, address))

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
        with self._uninterrupted():
            if address in self._sizes[device]:
                self._allocators[device].record_stream(address, stream)

    def complete(self, device: int) -> None:
        """Let everything that was put on the card's streams be done."""
        with self._uninterrupted():
            self._settle()
            self._allocators[device].complete_all()

    def current_stream(self, device: int) -> int:
        """Return the handle of the stream that this thread's allocations of the card are made on."""
        return self._streams.handles.get(device, 0)

    def set_stream(self, device: int, stream: int) -> None:
        """Make this thread's allocations of the card on this stream from now on."""
        self._streams.handles[device] = stream

    def _settle(self) -> None:
        """Do the frees that wait."""
        while self.released:
            gone = self.released.popleft()
            device, address = gone.device, gone.address
            self.alive.pop((device, address), None)
            allocator = self._allocators[device]
            allocator.free(address)
            size = self._sizes[device].pop(address)
            driver = allocator.driver
            if isinstance(driver, ProcessDriver) and not driver.begun:
                driver.begin()
            self._count(device)
            for observer in self.observers:
                observer("free", device, address, size)

    @contextlib.contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Hold the lock, and let no signal's handler raise in the middle of what an allocator does."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            with self.lock:
                yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _count(self, device: int) -> None:
        """Let the driver take memory of its own now and then, once the program has begun to compute."""
        self._calls[device] += 1
        driver = self._allocators[device].driver
        if self._calls[device] % CALLS == 0 and isinstance(driver, ProcessDriver) and driver.begun:
            driver.keep()
