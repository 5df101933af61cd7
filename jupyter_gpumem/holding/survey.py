"""The whole search: roots, walk, ranking and books, for a notebook and its devices."""

from __future__ import annotations

import functools
import gc
import shlex
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jupyter_gpumem.arguments import check_whole, shown
from jupyter_gpumem.control.reservation import RESERVATIONS
from jupyter_gpumem.devices import check_context, check_devices, device_labels, explain_nothing, ready_devices
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.notebook import Notebook
from jupyter_gpumem.records import Chain, Holders

from . import garbage, roots
from .books import Ledger, close_books, storage_holders
from .naming import describe, path_text
from .ranking import Ranking, Root
from .tensors import attributes_of, view_of_torch
from .upwards import leading_to
from .walk import BUDGET, Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jupyter_gpumem.devices import Backend

    from .books import Storage
    from .tensors import Torch

_CYCLE, _CYCLE_OWNER, _CYCLE_PART, _OTHER = 5, 6, 7, 8
"""Ranks of what no name reaches, after those of `roots`."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def leaving_nothing(search: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let an error that ends a search keep nothing alive: its frames would hold every object that was found.

    A refused name or Ctrl-C is the session's last error, and would keep a variable that is deleted next.
    """

    @functools.wraps(search)
    def searching(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return search(*args, **kwargs)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            raise

    return searching


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
    check_whole("budget", budget)
    if not (notebook is None or isinstance(notebook, Notebook)):
        raise InvalidValueError(f"notebook must be a Notebook or None for this session's, got {shown(notebook)}")
    check_context()
    notebook = Notebook.current() if notebook is None else notebook
    only = device_labels(devices)
    check_devices(only)
    ready = [key for key in ready_devices() if only is None or f"{key[0].kind}:{key[1]}" in only]
    with garbage.collector_paused():
        walk = Walk(_barred(notebook), {backend.kind: backend for backend, _ in ready}, budget)
        found = roots.of_names(notebook, walk) if ready else []
        torch = view_of_torch()
        if torch is not None and ready and walk.complete:
            found += _beyond_names(notebook, walk, torch)
        return Survey(
            Ranking(walk, found),
            {
                f"{one.kind}:{index}": (one, index, Ledger(one, index, walk.located, RESERVATIONS.held(one, index)))
                for one, index in ready
            },
            walk.complete,
        )


def _beyond_names(notebook: Notebook, walk: Walk, torch: Torch) -> list[Root]:
    """Return the roots of tensors that have a Python object and no name: of modules, of garbage, of others."""
    nameless, leading = _nameless(walk, torch)
    if not nameless:
        return []
    walk.narrow(leading)
    found = roots.of_modules(notebook, walk)
    left = [key for key in nameless if walk.number(leading[key]) is None]
    if not walk.complete or not left:
        return found
    lost = garbage.unreachable(walk, leading)
    gone = {id(item) for item in lost}
    parts = {id(part) for item in lost if _is_module(item) for part in vars(item).get("_modules", {}).values()}
    for item in filter(_may_own, lost):
        module, part = _is_module(item), id(item) in parts
        rank = _CYCLE_PART if part else _CYCLE if module else _CYCLE_OWNER
        found.append(Root("cycle", f"garbage: {type(item).__name__}", rank, walk.enter([item])))
    found += [
        Root("cycle", "garbage", _CYCLE_PART, walk.enter([item]))
        for item in garbage.unreached(walk, map(leading.__getitem__, left))
        if id(item) in gone
    ]
    walk.expand()  # garbage also holds what only PyTorch sees, such as the tensor that a view is of
    found += [
        Root("other", f"a {describe(item)} that other code holds", _OTHER, walk.enter([item]))
        for item in garbage.unreached(walk, map(leading.__getitem__, left))
    ]
    walk.expand()
    return found


def _nameless(walk: Walk, torch: Torch) -> tuple[list[int], dict[int, Any]]:
    """Return the ids of the device tensors that the walk did not reach, and by its id what leads to any of them.

    Looked for by type: lazy proxies are not touched.
    """
    everything = gc.get_objects()
    kinds = set(map(type, everything))
    tensors, nodes = ({kind for kind in kinds if test(kind)} for test in (torch.is_tensor, torch.is_node))
    found = [item for item in everything if type(item) in tensors and walk.number(item) is None]
    nameless = [item for item in found if walk.lies_on_a_device(item)]
    if not nameless:
        return [], {}
    # The same memory may also be held by way of PyTorch alone: by the graph of a tensor on the host, say.
    ends = nameless + [item for item in found if torch.leads_on(item)]
    ends += [item for item in everything if type(item) in nodes and walk.number(item) is None]
    keys = [id(item) for item in nameless]
    ours = {id(everything), id(found), id(nameless), id(ends)}
    return keys, leading_to(ends, walk.ignored | ours, lambda item: walk.number(item) is not None)


def _is_module(item: Any) -> bool:
    torch = view_of_torch()
    return torch is not None and issubclass(type(item), torch.module)


def _may_own(item: Any) -> bool:
    """Whether a person would call garbage by this object's type: by an instance of a class, not by a dict in it."""
    kind = type(item)
    torch = view_of_torch()
    if torch is not None and (torch.is_tensor(kind) or torch.is_node(kind)):
        return False
    return kind.__module__ not in {"builtins", "collections"} and not issubclass(kind, type)


def _barred(notebook: Notebook) -> list[object]:
    """Return what is not entered: namespaces, which functions of theirs lead to, the shell, and our own.

    A kernel's streams lead to its event loop, and so to all that runs: a thread, or the handler of a logger, keeps one.
    So do the kernel and the application that own the shell: IPython's own frame in every traceback keeps that one.
    """
    barred: list[object] = [notebook, notebook.names, notebook.hidden]
    barred += filter(None, map(attributes_of, list(sys.modules.values())))
    barred += [sys.stdout, sys.stderr]
    shell = notebook.shell
    if shell is not None:
        barred += [shell, shell.displayhook, shell.history_manager, notebook.names.get("_oh")]
        owner = getattr(shell, "parent", None)
        while owner is not None:
            barred.append(owner)
            owner = getattr(owner, "parent", None)
    return barred


@leaving_nothing
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


@leaving_nothing
def chain(name: str, notebook: Notebook | None = None, *, budget: int = BUDGET) -> Chain:
    """Return what keeps the memory of a name alive: of a variable, or of a local name of the last error's frames.

    Raises:
        InvalidValueError: no such name holds device memory.
    """
    notebook = Notebook.current() if notebook is None else notebook
    found = survey(notebook, budget=budget)
    ranking = found.ranking
    wanted = [n for n, root in enumerate(ranking.roots) if root.name == name or root.name.endswith(f": {name}")]
    held = [entry for entry in found.storages() if any(root in entry[2] for root in wanted)]
    if not held:
        known = "" if wanted or name in notebook.names else "; there is no such variable"
        if known and not name.isidentifier():
            known = "; write a name alone: what is nested in it counts with it"
        if any(name in ledger.reservations.values() for _, _, ledger in found.ledgers.values()):
            release = f"%gpumem_reserve --release {shlex.quote(name)}"
            raise InvalidValueError(f"{name!r} is memory put aside; {release} gives it to the cache")
        raise InvalidValueError(f"{name!r} holds no device memory{known}; %gpumem_who without a name lists what does")
    groups = {ranking.roots[root].group for root in wanted}
    allocated: dict[str, int] = {}
    others: dict[int, tuple[int, int]] = {}
    alone = 0
    for label, storage, holding in held:
        allocated[label] = allocated.get(label, 0) + storage.allocated
        rest = [root for root in holding if root not in wanted and ranking.roots[root].group not in groups]
        alone += storage.allocated if not rest else 0
        for root in rest:
            size, number = others.get(root, (0, holding[root][2]))
            others[root] = (size + storage.allocated, number)
    first = next(root for root in wanted if any(root in entry[2] for entry in held))
    objects = ranking.walk.objects
    return Chain(
        name=ranking.roots[first].name,
        kind=ranking.roots[first].kind,
        what=describe(objects[ranking.roots[first].items[0]]),
        allocated=allocated,
        alone=alone,
        chains=tuple(_sentence(ranking, root, *others[root]) for root in sorted(others, key=lambda r: -others[r][0])),
        complete=found.complete,
    )


def _sentence(ranking: Ranking, root: int, size: int, number: int) -> str:
    from jupyter_gpumem.units import format_bytes

    path = [ranking.walk.objects[step] for step in ranking.path(number, root)]
    text = path_text(ranking.roots[root].name, path)
    return f"{format_bytes(size)} of it are also held by {text}"
