"""What travels between kernel and browser: small JSON messages, with numbers in binary buffers beside them.

To the browser, by `kind`:

- `state`: what the panel is about: devices, the columns of a row, whether it runs, what a button did.
- `samples`: rows of float64 in the order of `state.columns`; `history` says that they are older ones, sent again.
- `cells`: cells that began or ended.
- `map`: the segments and blocks of one device, in three buffers.

To the kernel: `hello` (a view has come: send everything), `look` (whether somebody looks, and at which device) and
`act` (a button). Integers are little-endian, as every browser's are.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_gpumem.fragments import site_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyter_gpumem.sampler import BlockMap

FREE, ALLOCATED, AWAITING = range(3)
_STATES = {"inactive": FREE, "active_allocated": ALLOCATED}

SMALL, EXPANDABLE = 1, 2

MOST_BLOCKS = 40_000
"""Blocks in one message: 0.4 MB. Beyond, those of the smallest segments are sent as their sums."""

_LINES = 1 << 16


class Message(NamedTuple):
    """A custom message of a widget: JSON, and the buffers beside it."""

    content: dict[str, Any]
    buffers: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of the buffers."""
        return sum(map(len, self.buffers))


def pack_map(found: BlockMap, most: int = MOST_BLOCKS) -> Message:
    """Pack a map into three buffers.

    1. For each segment its address and size, as float64.
    2. For each segment the indices of its stream and its pool, its flags and its number of entries, as uint32.
    3. For each entry its bytes as float64, then for each entry how many blocks it stands for as uint32, then for each
       entry the index of its line as uint16, then its state as uint8.

    Args:
        found: the map.
        most: how many entries to send; beyond, the smallest segments are sent as the sums of their states.
    """
    segments = sorted(found.segments, key=lambda segment: segment["address"])
    streams, pools, lines = _Names(), _Names(), _Names({"": 0})
    pools[(0, 0)]
    shapes, tables = array("d"), array("I")
    sizes, counts, sites, states = array("d"), array("I"), array("H"), bytearray()
    summed = _too_many(segments, most)
    for number, segment in enumerate(segments):
        blocks = segment["blocks"]
        shapes.extend((segment["address"], segment["total_size"]))
        flags = SMALL * (segment["segment_type"] == "small") + EXPANDABLE * bool(segment.get("is_expandable"))
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        if number in summed:
            totals, amounts = Counter[int](), Counter[int]()
            for block in blocks:
                state = _STATES.get(block["state"], AWAITING)
                totals[state] += block["size"]
                amounts[state] += 1
            sizes.extend(totals.values())
            counts.extend(amounts[state] for state in totals)
            sites.extend([0] * len(totals))
            states.extend(totals)
            entries = len(totals)
        else:
            sizes.extend([block["size"] for block in blocks])
            counts.extend([1] * len(blocks))
            sites.extend([_line(block, lines) for block in blocks])
            states.extend([_STATES.get(block["state"], AWAITING) for block in blocks])
            entries = len(blocks)
        tables.extend((streams[segment["stream"]], pools[pool], flags, entries))
    return Message(
        {
            "kind": "map",
            "slot": found.slot,
            "time": found.time,
            "entries": len(states),
            "streams": list(streams),
            "pools": [list(pool) for pool in pools],
            "lines": list(lines),
            "summary": asdict(found.fragmentation),
        },
        [_little(shapes), _little(tables), _little(sizes) + _little(counts) + _little(sites) + bytes(states)],
    )


class _Names(dict[Any, int]):
    """Numbers names in the order in which they are first asked for."""

    def __missing__(self, name: Any) -> int:
        number = self[name] = len(self)
        return number


def _line(block: dict[str, Any], lines: _Names) -> int:
    """Return the number of the line of the user's code that allocated a block; 0 where that was not recorded."""
    if not block.get("frames") or len(lines) >= _LINES:
        return 0
    return lines[site_of(block) or ""]


def _too_many(segments: list[dict[str, Any]], most: int) -> frozenset[int]:
    """Return which segments to send as sums, the smallest first, so that no more than `most` entries are left."""
    entries = sum(len(segment["blocks"]) for segment in segments)
    if entries <= most:
        return frozenset()
    summed = set()
    for number in _by_size(segments):
        entries -= max(0, len(segments[number]["blocks"]) - len(_STATES) - 1)
        summed.add(number)
        if entries <= most:
            break
    return frozenset(summed)


def _by_size(segments: list[dict[str, Any]]) -> Iterable[int]:
    return sorted(range(len(segments)), key=lambda number: int(segments[number]["total_size"]))


def _little(values: array[Any]) -> bytes:
    """Return the bytes in little-endian order."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()
