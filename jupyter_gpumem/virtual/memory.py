"""The memory of the virtual cards: one allocator model each, asked and told by the device's storages."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
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


_ARRIVAL = 0.05
"""Seconds in which, at the exit, other threads get to their next allocation."""

_TRIAL_TOP = 0x3F00_0000_0000
"""Below this lies the memory of trials, far from that of the session: an address tells which of both it is."""


class _CurrentStreams(threading.local):
    """The handles of the streams that a thread uses, by card; one that is not here is the default one."""

    def __init__(self) -> None:
        self.handles: dict[int, int] = {}


_SIGNALS = (signal.SIGINT, signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class _Released(NamedTuple):
    """Memory that is given back."""

    device: int
    address: int


class _Outside:
    """What was there before a trial.

    Attributes:
        moved: for each card, where in the trial's memory that is.
        released: the queue of what is given back of it meanwhile.
        done: how many of these the trial's memory has seen.
        alive: what will still be put in the queue.
    """

    def __init__(self, cards: int, released: deque[Any], alive: dict[tuple[int, int], Any]) -> None:
        self.moved: list[dict[int, int]] = [{} for _ in range(cards)]
        self.released = released
        self.alive = alive
        self.done = 0


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
        alive: `{(device, address): reference}` of what will be put in the queue; weak references to storages.
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
        self._outside: _Outside | None = None

    @property
    def allocators(self) -> tuple[Allocator, ...]:
        """One allocator per card, with everything done that waits."""
        if self.released or self._outside is not None:
            with self._uninterrupted():
                self._settle()
        return self._allocators

    def allocate(
        self, device: int, nbytes: int, stream: int | None = None, hand_over: Callable[[int], object] | None = None
    ) -> int:
        """Return the address of new memory; 0 for no bytes.

        Args:
            device: index of the card.
            nbytes: size in bytes.
            stream: handle of the stream; by default the thread's current one.
            hand_over: called with the address of new memory, before an interrupt may come: who gives it back.

        Raises:
            torch.OutOfMemoryError: the card is full; the text is PyTorch's.
        """
        __tracebackhide__ = True
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
            if hand_over is not None:
                hand_over(address)
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
        __tracebackhide__ = True
        taken: list[tuple[int, int]] = []

        def take(size: int) -> None:
            self.allocate(device, size, hand_over=lambda address: taken.append((size, address)))

        try:
            for size in sizes:
                if size is None:
                    make()
                    continue
                if size >= 0:
                    take(size)
                    continue
                at = next(at for at in reversed(range(len(taken))) if taken[at][0] == -size)
                self.free(device, taken.pop(at)[1])
        finally:
            for _, address in reversed(taken):
                self.free(device, address)

    def owns(self, device: int, address: int, storage: object) -> bool:
        """Whether a storage lies here, and not in the memory of a virtual GPU that was on before.

        The tensors of that one stay, and its addresses are given out again.
        """
        alive = self.alive.get((device, address))
        if alive is None and self._outside is not None:
            alive = self._outside.alive.get((device, address))
        return alive is not None and alive() is storage

    def shut(self) -> None:
        """Let no other thread allocate or free here any more: each waits for ever where it next would. For the exit.

        Python ends a daemon thread where it next asks for the interpreter's lock, also below frames of C++, which then
        abort. One that waits for a lock never asks again.
        """
        if self.lock.acquire(timeout=1):
            time.sleep(_ARRIVAL)

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

    @contextlib.contextmanager
    def trial(self) -> Iterator[list[dict[int, int]]]:
        """Let what follows happen in memory without end, in which what is allocated now is there from the start.

        Afterwards everything is as before: what is allocated meanwhile has a queue of its own, to which nobody listens
        any more then, and observers of its own: a recording that runs knows nothing of it. What was there before and is
        given back meanwhile, is so in both. One at a time.

        Yields:
            For each card, the addresses in this memory of what was there before, by their own addresses.
        """
        with self._uninterrupted():
            self._settle()
            kept = self._allocators, self._sizes, self._calls, self.ready, self.released, self.alive, self.observers
            handles = self._streams.handles
            self._outside = _Outside(len(self.cards), self.released, self.alive)
            self._allocators = tuple(self._endless(allocator) for allocator in self._allocators)
            self._sizes, self._calls = [{} for _ in self.cards], [0] * len(self.cards)
            self.ready, self.released, self.alive, self.observers = set(self.ready), deque(), {}, []
            self._streams.handles = dict(handles)
            moved = self._outside.moved
            for device, sizes in enumerate(kept[1]):
                for address, size in sorted(sizes.items()):
                    moved[device][address] = self._allocators[device].malloc(size)
                    self._sizes[device][moved[device][address]] = size
        try:
            yield [dict(addresses) for addresses in moved]
        finally:
            with self._uninterrupted():
                self._allocators, self._sizes, self._calls, self.ready, self.released, self.alive, self.observers = kept
                self._streams.handles, self._outside = handles, None

    @staticmethod
    def _endless(allocator: Allocator) -> Allocator:
        """Return an empty allocator with the same settings, whose driver never runs out; no cap is in force there."""
        return Allocator(
            allocator.settings,
            driver=ProcessDriver(None, _TRIAL_TOP),
            device=allocator.device,
            finish_events=allocator.finish_events,
        )

    def _settle(self) -> None:
        """Do the frees that wait."""
        while self.released:
            gone = self.released.popleft()
            self.alive.pop((gone.device, gone.address), None)
            self._free(gone.device, gone.address)
        outside = self._outside
        while outside is not None and outside.done < len(outside.released):
            gone = outside.released[outside.done]
            outside.done += 1
            self._free(gone.device, outside.moved[gone.device].pop(gone.address))

    def _free(self, device: int, address: int) -> None:
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
