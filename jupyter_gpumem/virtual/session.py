"""Switching the virtual GPU on and off."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.arguments import shown
from jupyter_gpumem.devices import check_context
from jupyter_gpumem.errors import InvalidValueError, UnavailableError
from jupyter_gpumem.finishing import uninterrupted

from . import requirements  # noqa: F401 - before what cannot be imported where it is not met

# isort: split
from . import attention, autocast, backend, claim, facade, recurrent, scripted, softmax, sparse
from .cards import Card, parse_cards
from .dispatch import Dispatcher
from .kernels import Kernels
from .memory import VirtualMemory
from .notes import Notes
from .patches import Patches
from .shapes import Shapes
from .translation import Translation
from .values import Values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class VirtualGpu:
    """A virtual GPU, or several, of this process.

    Args:
        cards: what it is to be.
        settings: PyTorch's allocator settings; by default its defaults.

    Attributes:
        cards, memory: the cards, and their memory.
        notes: what was assumed because values do not exist, once for each place.
        kernels: what kernels and libraries take.
        patches: every attribute that is replaced while it is on.
    """

    def __init__(self, cards: Sequence[Card], settings: AllocatorSettings | None = None) -> None:
        self.cards = tuple(cards)
        self.memory = VirtualMemory(self.cards, settings)
        self.notes = Notes()
        self.patches = Patches()
        self.kernels = Kernels(self.memory)
        self._dispatcher = Dispatcher(self.memory, self.kernels)
        self._autocast = autocast.Autocast(self.patches)
        self._translation = Translation(self.memory, self.patches)
        self._facade: facade.Facade
        self._trials = 0

    def install(self) -> None:
        """Put everything in its place."""
        real = torch.cuda.is_available()
        backend.guard_storages()
        self._translation.install()
        scripted.install(self.patches)
        _run_backward_here(self.patches)
        self._facade = facade.install(self)
        registry = self._dispatcher.registry
        self._autocast.install(registry)
        own = Values(self.memory, self.notes).kernels() | Shapes(self.memory).kernels()
        own["_to_copy"] = self._translation.copied
        self._dispatcher.register(own, factories=not real)
        attention.install(self.cards, registry)
        recurrent.install(self.kernels, registry)
        sparse.install(self._dispatcher)
        softmax.install(registry)

    @contextlib.contextmanager
    def trial(self) -> Iterator[list[dict[int, int]]]:
        """Let what follows happen in memory without end, and have the cards as they were afterwards.

        Yields:
            For each card, the addresses of what was there before, by the addresses that its tensors know.
        """
        with self.notes.apart(), self.memory.trial() as moved, self._facade.trial(moved):
            kept = self.kernels.workspaces
            self.kernels.workspaces = {key: moved[key[1]][address] for key, address in kept.items()}
            generators = [generator.clone_state() for generator in torch.cuda.default_generators]
            self._trials += 1
            try:
                yield moved
            finally:
                self._trials -= 1
                self._autocast.clear()
                self.kernels.workspaces = kept
                for generator, state in zip(torch.cuda.default_generators, generators, strict=True):
                    generator.graphsafe_set_state(state)

    def check_idle(self) -> None:
        """Refuse to be switched on or off under a prediction, which has still to put everything back.

        Raises:
            UnavailableError: one is running.
        """
        if self._trials:
            raise UnavailableError(
                "a prediction is running on the virtual GPU; leave that out of the cell, or do it when it has ended"
            )

    def remove(self) -> list[str]:
        """Take everything away again; returns a sentence for each attribute that somebody else replaced meanwhile."""
        self._autocast.clear()
        self.kernels.clear_workspaces()
        self._dispatcher.close()
        self._translation.close()
        atexit.unregister(self.memory.shut)
        return [*self.patches.undo(), *backend.unguard_storages(self.memory.alive.values())]


_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_active: list[VirtualGpu] = []
_switching = threading.RLock()
"""Held while one is switched on or off: what is replaced for it is replaced by one thread at a time."""


def active() -> VirtualGpu | None:
    """Return the virtual GPU that is on, or `None`."""
    return _active[-1] if _active else None


def start(cards: Sequence[Card] | str, settings: AllocatorSettings | str | None = None) -> VirtualGpu:
    """Switch a virtual GPU on for this process.

    Args:
        cards: the cards, or their names such as `2xA100-40GB`.
        settings: PyTorch's allocator settings, also as it writes them; by default its defaults.

    Raises:
        InvalidValueError: a name or the settings are not understood.
        UnavailableError: one is on already, PyTorch cannot have one, the CUDA context of a real one is lost, or another
            allocator than the one that is modelled is asked for.
    """
    check_context()
    if isinstance(settings, str):
        settings = AllocatorSettings.parse(settings)
    elif not (settings is None or isinstance(settings, AllocatorSettings)):
        raise InvalidValueError(f"settings must be a text such as 'expandable_segments:True', got {shown(settings)}")
    _check_modelled(settings)
    chosen = parse_cards(cards) if isinstance(cards, str) else cards
    with _switching, uninterrupted(), contextlib.ExitStack() as undo:
        if _active:
            raise UnavailableError("a virtual GPU is on already; switch it off first")
        backend.register(lambda: len(_active[-1].cards) if _active else 0)
        claim.make()
        undo.callback(claim.give_up)
        gpu = VirtualGpu(chosen, settings)
        undo.callback(gpu.remove)
        gpu.install()
        atexit.register(gpu.memory.shut)
        _active.append(gpu)
        undo.pop_all()
    return gpu


def _check_modelled(settings: AllocatorSettings | None) -> None:
    """Refuse another allocator than the one that is modelled.

    Raises:
        UnavailableError: the settings, or the environment, ask for one.
    """
    other = dict(settings.others).get("backend", "native") if settings is not None else "native"
    asked = f"backend:{other}" if other != "native" else _UNCACHED if os.environ.get(_UNCACHED) else None
    if asked is not None:
        raise UnavailableError(
            f"a virtual GPU has PyTorch's own caching allocator, and {asked} asks for another; "
            "take it out of the environment or the settings"
        )


def stop() -> list[str]:
    """Switch it off; returns a sentence for each attribute that is left because somebody else replaced it.

    Tensors that are still on it stay what they are, but nothing can be done with them any more.

    Raises:
        UnavailableError: a prediction is running on it.
    """
    with _switching, uninterrupted():
        if not _active:
            return []
        _active[-1].check_idle()
        try:
            return _active.pop().remove()
        finally:
            claim.give_up()


def _run_backward_here(patches: Patches) -> None:
    """Let backward passes run in the thread that asks for them: the device has no autograd thread of its own."""
    plain = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        before = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
        try:
            return plain(*args, **kwargs)
        finally:
            torch._C._set_multithreading_enabled(before)

    patches.set(torch.autograd.graph, "_engine_run_backward", run_backward)
    patches.set(torch.autograd, "_engine_run_backward", run_backward)
