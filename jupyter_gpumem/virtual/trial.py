"""Running code on a virtual GPU without a trace, and replaying what it allocated on other cards."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from jupyter_gpumem.finishing import run_all, undivided, uninterrupted

from . import session
from .files import BoundNames, Files
from .imports import keep_imports
from .memory import VirtualMemory
from .notes import VirtualValueWarning
from .parts import Parts
from .patches import Patches
from .process_groups import ProcessGroups
from .settings import SignalHandlers
from .undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import CodeType

    from jupyter_gpumem.allocator.settings import AllocatorSettings

    from .cards import Card
    from .tapes import Tape

_ENDLESS = 1 << 50


class Run(NamedTuple):
    """What one run did.

    Attributes:
        cards: what it ran on.
        settings: the allocator's.
        tapes: what happened in the memory of each.
        start: bytes that were allocated on each before it began.
        reserved: the most that was reserved on each.
        placeholders: where values were assumed.
        decisions: where the code decides on one of them.
        not_undone: what could not be put back.
        unsaved: files that `torch.save` was to write, and did not.
        unwatched: variables that not all of could be remembered, and that the code does not name.
    """

    cards: tuple[Card, ...]
    settings: AllocatorSettings
    tapes: list[Tape]
    start: list[int]
    reserved: list[int]
    placeholders: tuple[str, ...]
    decisions: tuple[str, ...]
    not_undone: tuple[str, ...]
    unsaved: tuple[str, ...]
    unwatched: tuple[str, ...] = ()


class Trials:
    """A virtual GPU for trials: the session's own if there is one, else one that is there meanwhile.

    Args:
        cards: what it is to be; of no account where the session has one.
        reaches: the dicts whose names the code may bind, and other objects that it can reach.
        code: the file name of the code, or the code of the function.
        settings: PyTorch's allocator settings; of no account where the session has a virtual GPU.
        beside: returns a context that puts back what the code changes elsewhere in this package.
        names: the names that the code uses itself.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        reaches: Iterable[Any],
        code: str | CodeType,
        settings: AllocatorSettings,
        beside: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
        names: Iterable[str] = (),
    ) -> None:
        self._cards, self._reaches, self._code, self._settings = cards, list(reaches), code, settings
        self._beside, self._used = beside, names
        self._names = BoundNames()
        self._gpu: session.VirtualGpu
        self._undo: Undo

    @contextlib.contextmanager
    def open(self) -> Iterator[Trials]:
        """Have it inside a `with` block.

        Raises:
            UnavailableError: PyTorch cannot have a virtual GPU.
        """
        with contextlib.ExitStack() as leaving:
            with uninterrupted():
                own = session.active() is None
                self._gpu = session.start(self._cards, self._settings) if own else _active()
                patches = Patches()
                leaving.callback(_close, patches, own=own)
            with _without_modes():
                self._undo = Undo(self._reaches, len(self._gpu.cards), patches, self._used)
            yield self

    def run(self, code: Callable[[], object]) -> Run:
        """Run code, and put everything back; its errors pass."""
        __tracebackhide__ = True
        gpu, patches = self._gpu, Patches()
        not_undone: list[str] = []
        handlers, groups = SignalHandlers(), ProcessGroups()
        with undivided(self._beside()), undivided(gpu.trial()) as moved:
            try:
                parts = Parts(gpu, moved, self._undo.tensors, self._undo.optimizers, self._code, patches)
                with _without_modes():
                    self._undo.stand_in(gpu.memory)
                files = Files(patches, self._names)
                self._undo.exchange(files.instead)
                keep_imports(patches, self._undo)
                with uninterrupted():
                    self._undo.open_files.set_aside(files.open)
                start = [allocator.total.size for allocator in gpu.memory.allocators]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", VirtualValueWarning)
                    contextvars.copy_context().run(code)
            finally:
                with contextlib.ExitStack() as restoring:
                    restoring.callback(self._put_back, patches, groups, not_undone)
                    handlers.restore()
            return Run(
                gpu.cards,
                gpu.memory.allocators[0].settings,
                parts.tapes,
                start,
                parts.reserved,
                tuple(map(str, gpu.notes)),
                tuple(gpu.notes.decisions),
                (*self._undo.notes, *not_undone, *files.notes),
                files.unsaved,
                self._undo.unwatched,
            )

    def _put_back(self, patches: Patches, groups: ProcessGroups, not_undone: list[str]) -> None:
        files, undo = self._undo.open_files, self._undo
        with uninterrupted(), _without_modes():  # a second Ctrl-C comes when all is as it was
            run_all(
                (
                    lambda: not_undone.extend(groups.restore()),
                    lambda: not_undone.extend(files.restore()),
                    patches.undo,
                    lambda: not_undone.extend(undo.restore()),
                )
            )


def _close(patches: Patches, *, own: bool) -> None:
    with uninterrupted():
        patches.undo()
        if own:
            session.stop()


def _without_modes() -> contextlib.AbstractContextManager[object]:
    """Return a context in which a default device, or another mode of the user's, changes nothing."""
    context: contextlib.AbstractContextManager[object] = torch._C.DisableTorchFunction()
    return context


def _active() -> session.VirtualGpu:
    gpu = session.active()
    assert gpu is not None  # noqa: S101 - asked before
    return gpu


class Replayed(NamedTuple):
    """What a tape comes to on a card: bytes reserved at most, flushes of the cache, the allocation that failed."""

    reserved: int
    retries: int
    failed: int | None


def replay(tape: Tape, card: Card, settings: AllocatorSettings) -> Replayed:
    """Do what is on a tape in the memory of a card; its libraries take what they take there."""
    memory = VirtualMemory([card], settings)
    addresses: dict[int, int] = {}
    failed = None
    for event in tape.events:
        if event > 0:
            library = tape.libraries.get(event)
            size = tape.sizes[event] if library is None else getattr(card, library.lower())
            try:
                addresses[event] = memory.allocate(0, size, tape.streams[event])
            except torch.OutOfMemoryError:
                failed = event
                break
        elif event:
            memory.free(0, addresses.pop(-event))
        else:
            memory.allocators[0].empty_cache()
    allocator = memory.allocators[0]
    return Replayed(int(allocator.stats()["reserved_bytes"]["all"]["peak"]), allocator.retries, failed)


def replay_without_end(tape: Tape, card: Card, settings: AllocatorSettings) -> Replayed:
    """Do the same as if the card's memory had no end."""
    return replay(tape, dataclasses.replace(card, total=_ENDLESS), settings)
