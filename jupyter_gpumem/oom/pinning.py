"""What pins free memory: the live blocks beside it in the same segment, and whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.holding.books import reservation_name, storage_holders
from jupyter_gpumem.units import format_bytes

if TYPE_CHECKING:
    from jupyter_gpumem.holding import Survey
    from jupyter_gpumem.holding.books import Ledger

    from .observer import OomState

_MOST_PINS = 4


def pins(state: OomState, found: Survey) -> list[str]:
    """Say which large free blocks there are, and what lives beside them in the same segment."""
    ledger = found.ledgers[state.device.label][2] if state.device.label in found.ledgers else None
    split = []
    for segment in state.segments or ():
        free = max((b["size"] for b in segment["blocks"] if b["state"] == "inactive"), default=0)
        live = [b for b in _placed(segment) if b[1]["state"] != "inactive"]
        if free and live:
            split.append((free, segment["total_size"], live))
    split.sort(key=lambda entry: -entry[0])
    said = []
    for free, total, live in split[:1]:
        size = sum(block["size"] for _, block in live)
        names = _who(ledger, found, [address for address, _ in live]) if ledger is not None else []
        by = f": {', '.join(names)}" if names else ""
        said.append(
            f"The largest free block, {format_bytes(free)}, lies in a segment of {format_bytes(total)} that is pinned "
            f"by {len(live)} live blocks ({format_bytes(size)}){by}"
        )
    if len(split) > 1:
        loose = sum(free for free, _, _ in split)
        said.append(f"{len(split)} segments are split like that, with {format_bytes(loose)} in their largest gaps")
    return said


def _placed(segment: dict) -> list[tuple[int, dict]]:  # type: ignore[type-arg]
    address, found = segment["address"], []
    for block in segment["blocks"]:
        address = block.get("address", address)
        found.append((address, block))
        address += block["size"]
    return found


def _who(ledger: Ledger, found: Survey, addresses: list[int]) -> list[str]:
    names: dict[str, None] = {}
    for address in addresses:
        storage = ledger.storages.get(address)
        if storage is not None:
            root = next(iter(storage_holders(found.ranking, storage)))
            names[found.ranking.roots[root].name] = None
        elif address in ledger.reservations:
            names[reservation_name(ledger.reservations[address])] = None
    return [*list(names)[:_MOST_PINS], *(["..."] if len(names) > _MOST_PINS else [])]
