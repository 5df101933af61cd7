"""The whole search: roots, walk, ranking and books, for a notebook and its devices."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING

from jupyter_gpumem.arguments import check_whole, shown
from jupyter_gpumem.control.reservation import RESERVATIONS
from jupyter_gpumem.devices import check_context, check_devices, device_labels, explain_nothing, ready_devices
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.finishing import collector_paused
from jupyter_gpumem.notebook import Notebook
from jupyter_gpumem.records import Holders

from . import roots
from .beyond import beyond_names
from .books import Ledger, close_books, storage_holders
from .classes import is_a
from .ranking import Ranking
from .tensors import attributes_of, view_of_torch
from .walk import BUDGET, Walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyter_gpumem.devices import Backend

    from .books import Storage


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """Let an error that ends a search keep nothing alive: its frames would hold every object that was found.

    A refused name or Ctrl-C is the session's last error, and would keep a variable that is deleted next.
    """
    try:
        yield
    except BaseException as error:
        _clear(error)
        raise


def _clear(error: BaseException) -> None:
    """Empty the frames of an error, and what nested functions of ours share: a frame keeps its function's closure."""
    step = error.__traceback__.tb_next if error.__traceback__ is not None else None  # not the frame that catches it
    while step is not None:
        if step.tb_frame.f_globals.get("__package__") == __package__:
            functions = (one for one in gc.get_referents(step.tb_frame) if is_a(one, FunctionType))
            for cell in [cell for function in functions for cell in function.__closure__ or ()]:
                cell.cell_contents = None
        step = step.tb_next
    traceback.clear_frames(error.__traceback__)


@dataclass(slots=True, eq=False)
class Survey:
    """A finished search. Keeps every object alive that it found: for use at once, never to be stored."""

    ranking: Ranking
    ledgers: dict[str, tuple[Backend, int, Ledger]]
    complete: bool

    def record(self) -> Holders:
        """Return the books of every device."""
        return Holders(
            devices=tuple(
                close_books(backend, index, ledger, self.ranking) for backend, index, ledger in self._books()
            ),
            visited=len(self.ranking.walk.objects),
            complete=self.complete,
        )

    def _books(self) -> Iterator[tuple[Backend, int, Ledger]]:
        yield from self.ledgers.values()

    def storages(self) -> Iterator[tuple[str, Storage, dict[int, tuple[int, str, int]]]]:
        """Yield every storage of an allocator with its device and its holders."""
        for label, (_, _, ledger) in self.ledgers.items():
            for storage in ledger.storages.values():
                if not storage.outside:
                    yield label, storage, storage_holders(self.ranking, storage)

    def held_only_by(self, kinds: Iterable[str]) -> int:
        """Return the bytes that only holders of these kinds keep alive."""
        wanted = frozenset(kinds)
        all_roots = self.ranking.roots
        return sum(
            storage.allocated
            for _, storage, holding in self.storages()
            if all(all_roots[root].kind in wanted for root in holding)
        )


def survey(
    notebook: Notebook | None = None, devices: Iterable[int | str] | int | str | None = None, *, budget: int = BUDGET
) -> Survey:
    """Search who holds what. Allocates nothing on a device, and starts no device.

    Raises:
        InvalidValueError: the budget is no whole number of 1 or more, or the notebook is none.
        UnavailableError: devices were named, and this process cannot have any; or the CUDA context is lost.
        DeviceNotFoundError: a named device is not visible.
    """
    budget = check_whole("budget", budget)
    if not (notebook is None or isinstance(notebook, Notebook)):
        raise InvalidValueError(f"notebook must be a Notebook or None for this session's, got {shown(notebook)}")
    check_context()
    notebook = Notebook.current() if notebook is None else notebook
    only = device_labels(devices)
    check_devices(only)
    ready = [key for key in ready_devices() if only is None or f"{key[0].kind}:{key[1]}" in only]
    with collector_paused():
        walk = Walk(_barred(notebook), {backend.kind: backend for backend, _ in ready}, budget)
        found = roots.of_names(notebook, walk) if ready else []
        torch = view_of_torch()
        if torch is not None and ready and walk.complete:
            found += beyond_names(notebook, walk, torch)
        return Survey(
            Ranking(walk, found),
            {
                f"{one.kind}:{index}": (one, index, Ledger(one, index, walk.located, RESERVATIONS.held(one, index)))
                for one, index in ready
            },
            walk.complete,
        )


def _barred(notebook: Notebook) -> list[object]:
    """Return what is not entered: namespaces, which functions of theirs lead to, the shell, and our own.

    A kernel's streams lead to its event loop, and so to all that runs: a thread, or the handler of a logger, keeps one.
    So do the kernel and the application that own the shell: IPython's own frame in every traceback keeps that one.
    """
    barred: list[object] = [notebook, notebook.names, notebook.hidden]
    barred += [sys.stdout, sys.stderr]
    shell = notebook.shell
    if shell is not None:
        barred += [shell, shell.displayhook, shell.history_manager, notebook.names.get("_oh")]
        owner = getattr(shell, "parent", None)
        while owner is not None:
            barred.append(owner)
            owner = getattr(owner, "parent", None)
    # Nor what the notebook keeps its outputs and its last error in: those are roots of their own.
    barred += notebook.keepers()
    return barred + [names for names in map(attributes_of, (*barred, *sys.modules.values())) if names is not None]


@leaving_nothing()
def holders(devices: Iterable[int | str] | int | str | None = None, *, budget: int = BUDGET) -> Holders:
    """Return who holds the memory of each device: variables, outputs, the last error, graphs, and what nobody shows.

    Every allocated byte is counted once. No tensor is touched, copied or waited for, no property or hook of an object
    is run. About 2 us for each object; allocation sites of what is not attributed need a recording that runs.

    Args:
        devices: which devices, as indices or labels; all that the process uses if `None`.
        budget: how many objects are looked at before the search ends; the result says when that was not enough.

    Raises:
        InvalidValueError: the budget is no whole number of 1 or more.
        UnavailableError: devices were named, and this process cannot have any; or the CUDA context is lost.
        DeviceNotFoundError: a named device is not visible.
    """
    found = survey(devices=devices, budget=budget)
    if found.ledgers:
        return found.record()
    only = device_labels(devices)
    return Holders((), missing=explain_nothing(only))
