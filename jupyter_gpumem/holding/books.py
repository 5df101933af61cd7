"""The books of a device: every allocated byte is counted once, with a holder or with the reason why there is none."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.devices.workspaces import candidates
from jupyter_gpumem.fragments import site_of
from jupyter_gpumem.records import DeviceHolders, Holder, Site
from jupyter_gpumem.units import format_bytes

from .naming import describe
from .tensors import view_of_torch

if TYPE_CHECKING:
    from jupyter_gpumem.devices import Backend
    from jupyter_gpumem.records import Reservation

    from .ranking import Ranking
    from .tensors import Location

_MOST_ALSO = 4
_A_SMALL_PART = 0.1
_DEFAULT_POOL = (0, 0)
_ORDER = {"variable": 0, "hook": 1, "graph": 2}


@dataclass(slots=True)
class Block:
    """An allocation of the snapshot."""

    address: int
    size: int
    private: bool
    frames: list[dict[str, Any]]


@dataclass(slots=True)
class Storage:
    """A storage that was found: where, its bytes as allocated, and the numbers of the objects that show it."""

    address: int
    allocated: int
    outside: bool
    items: list[int] = field(default_factory=list)


class Ledger:
    """The allocations of one device, with the storages that were found in them.

    Args:
        backend: the device's back end.
        index: which of its devices.
        located: what the walk found, by object number.
        held: what `%gpumem_reserve --hold` holds there, by address.
    """

    def __init__(
        self, backend: Backend, index: int, located: dict[int, Location], held: dict[int, Reservation] | None = None
    ) -> None:
        segments = backend.segments(index)
        self.known = segments is not None
        self.blocks = sorted(_blocks(segments or []), key=lambda block: block.address)
        self.reservations = {b.address: held[b.address].name for b in self.blocks if held and b.address in held}
        self.workspaces = {a: n for a, n in candidates(segments or []).items() if a not in self.reservations}
        current = backend.stats(index)["allocated_bytes"]["all"]["current"]
        # The snapshot comes a moment after the counter; another thread may have allocated in between.
        self.allocated = sum(block.size for block in self.blocks) if self.known else current
        self.storages: dict[int, Storage] = {}
        self._addresses = [block.address for block in self.blocks]
        for number, place in located.items():
            if place.kind == backend.kind and place.ordinal == index:
                self._enter(number, place)

    def _enter(self, number: int, place: Location) -> None:
        block = self.block_at(place.address)
        key = block.address if block is not None else place.address
        storage = self.storages.get(key)
        if storage is None:
            size = block.size if block is not None else -(-place.nbytes // 512) * 512
            storage = self.storages[key] = Storage(key, size, outside=self.known and block is None)
        storage.items.append(number)

    def block_at(self, address: int) -> Block | None:
        """Return the allocation that an address lies in."""
        position = bisect_right(self._addresses, address) - 1
        if position >= 0 and address < self.blocks[position].address + self.blocks[position].size:
            return self.blocks[position]
        return None

    def unnamed(self) -> list[Block]:
        """Return the allocations in which nothing was found, and that are neither workspaces nor reservations."""
        known = (self.storages, self.workspaces, self.reservations)
        return [block for block in self.blocks if not any(block.address in one for one in known)]


def _blocks(segments: list[dict[str, Any]]) -> list[Block]:
    found = []
    for segment in segments:
        address = segment["address"]
        private = tuple(segment.get("segment_pool_id", _DEFAULT_POOL)) != _DEFAULT_POOL
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found.append(Block(block.get("address", address), block["size"], private, block.get("frames", [])))
            address += block["size"]
    return found


@dataclass(slots=True)
class _Line:
    """A holder in the making."""

    storages: list[tuple[int, Storage]] = field(default_factory=list)
    alone: int = 0
    also: dict[int, int] = field(default_factory=dict)


def close_books(backend: Backend, index: int, ledger: Ledger, ranking: Ranking) -> DeviceHolders:
    """Return the books of a device: holders, workspaces, private pools and the rest add up to what is allocated."""
    lines: dict[tuple[int, str], _Line] = defaultdict(_Line)
    for storage in ledger.storages.values():
        if storage.outside:
            continue
        holding = storage_holders(ranking, storage)
        (root, (_, route, number)), *others = holding.items()
        line = lines[root, route]
        line.storages.append((number, storage))
        strangers = [other for other, _ in others if not ranking.roots[other].goes_with(ranking.roots[root])]
        if not strangers:
            line.alone += storage.allocated
        for other in strangers:
            line.also[other] = line.also.get(other, 0) + storage.allocated
    unnamed = ledger.unnamed()
    private = sum(block.size for block in unnamed if block.private)
    workspaces = sum(
        block.size
        for block in ledger.blocks
        if block.address in ledger.workspaces and block.address not in ledger.storages
    )
    holders = [_holder(ranking, root, route, line) for (root, route), line in lines.items()]
    holders += [_reservation(ledger, block) for block in ledger.blocks if block.address in ledger.reservations]
    named = sum(holder.allocated for holder in holders)
    return DeviceHolders(
        device=backend.device(index),
        allocated=ledger.allocated,
        holders=tuple(sorted(holders, key=lambda holder: (-holder.allocated, holder.name))),
        workspaces=workspaces,
        private=private,
        unattributed=ledger.allocated - named - workspaces - private,
        sites=_sites(unnamed),
        outside=sum(storage.allocated for storage in ledger.storages.values() if storage.outside),
    )


def storage_holders(ranking: Ranking, storage: Storage) -> dict[int, tuple[int, str, int]]:
    """Return who holds a storage, the nearest first: by root the cost, the route and the object that shows it."""
    best: dict[int, tuple[int, str, int]] = {}
    for number in storage.items:
        for root, reach in ranking.holders(number).items():
            if root not in best or reach.cost < best[root][0]:
                best[root] = (reach.cost, reach.route, number)
    return dict(sorted(best.items(), key=lambda entry: (entry[1][0], entry[0])))


def _holder(ranking: Ranking, root_index: int, route: str, line: _Line) -> Holder:
    root, objects = ranking.roots[root_index], ranking.walk.objects
    number, largest = max(line.storages, key=lambda entry: entry[1].allocated)
    text = ranking.text(number, root_index)
    others = sorted(line.also, key=lambda other: -line.also[other])
    return Holder(
        kind=route or root.kind,
        name=root.name,
        detail=text if text != root.name else None,
        what=describe(objects[ranking.path(number, root_index)[0]]),
        tensors=len(line.storages),
        allocated=sum(storage.allocated for _, storage in line.storages),
        alone=line.alone,
        also=tuple(dict.fromkeys(ranking.roots[other].name for other in others))[:_MOST_ALSO],
        note=_note_on_views(ranking, largest),
    )


def reservation_name(name: str) -> str:
    """Return what a person would call memory that is held under a name."""
    return f"reservation {name}"


def _reservation(ledger: Ledger, block: Block) -> Holder:
    """Return memory that `%gpumem_reserve --hold` holds: no Python object shows it, and its name is known."""
    name = ledger.reservations[block.address]
    return Holder(
        kind="reservation",
        name=reservation_name(name),
        detail=None,
        what="memory put aside",
        tensors=0,
        allocated=block.size,
        alone=block.size,
        note=f"%gpumem_reserve --release {shlex.quote(name)} gives it to the cache",
    )


def _note_on_views(ranking: Ranking, storage: Storage) -> str | None:
    """Say when what is left of a storage is a small view of it; the tensor that it is a view of does not count."""
    torch = view_of_torch()
    objects = ranking.walk.objects
    tensors = [objects[number] for number in storage.items if not _is_mere_base(ranking, number)]
    if torch is None or not all(torch.is_tensor(type(tensor)) for tensor in tensors):
        return None
    with torch.undisturbed():
        if not all(map(torch.is_strided, tensors)):
            return None
        used = max(torch.used_bytes(tensor) for tensor in tensors)
    share = used / storage.allocated
    if share >= _A_SMALL_PART or storage.allocated <= 512:
        return None
    return (
        f"uses {100 * share:.2g} % of its storage of {format_bytes(storage.allocated)}: a clone would let the rest go"
    )


def _is_mere_base(ranking: Ranking, number: int) -> bool:
    """Whether a tensor is only there because views of it are."""
    objects, torch = ranking.walk.objects, view_of_torch()
    before = [reach.before for reach in ranking.holders(number).values()]
    if torch is None or not before:
        return False
    owners = [objects[step] if step is not None else None for step in before]
    return all(torch.is_tensor(type(owner)) and torch.base_of(owner) is objects[number] for owner in owners)


def _sites(blocks: list[Block]) -> tuple[Site, ...]:
    """Return where allocations were made that nothing explains; known while a recording with stacks runs."""
    found: dict[str, list[int]] = defaultdict(list)
    for block in blocks:
        place = None if block.private else site_of({"frames": block.frames})
        if place is not None:
            found[place].append(block.size)
    sites = [Site(place, sum(sizes), len(sizes)) for place, sizes in found.items()]
    return tuple(sorted(sites, key=lambda site: -site.allocated))
