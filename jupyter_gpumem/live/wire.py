"""What travels between kernel and browser: small JSON messages, with numbers in binary buffers beside them.

To the browser, by `kind`:

- `state`: what the panel is about: devices, the columns of a row, whether it runs, what a button did.
- `samples`: rows of float64 in the order of `state.columns`; `history` says that they are older ones, sent again.
  Without rows, while there is no device to read, it is a sign of life.
- `cells`: cells that began or ended.
- `map`: the segments and blocks of one device, in three buffers.

To the kernel: `hello` (a view has come: send everything), `look` (whether somebody looks, and at which device) and
`act` (a button). Integers are little-endian, as every browser's are.
"""

from __future__ import annotations

import struct
from dataclasses import asdict
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_gpumem.fragments import frame_of, pool_id_of, site_text

if TYPE_CHECKING:
    from jupyter_gpumem.sampler import BlockMap

FREE, ALLOCATED, AWAITING = range(3)

SMALL, EXPANDABLE = 1, 2

MOST_BLOCKS = 40_000
"""Blocks in one message: 0.4 MB. Beyond, those of the smallest segments are sent as their sums."""

_LINES = 1 << 16

_PART = 256

SAMPLES = {"kind": "samples"}
"""What stands beside the rows of a refresh: the same each time."""


class Message(NamedTuple):
    """A custom message of a widget: JSON, and the buffers beside it."""

    content: dict[str, Any]
    buffers: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of the buffers."""
        return sum(map(len, self.buffers))


def pack_map(found: BlockMap, most: int = MOST_BLOCKS) -> Message:
    """Pack a map into three buffers. About 0.2 us for each block, and 1 us for each segment.

    1. For each segment its address and size, as float64.
    2. For each segment the indices of its stream and its pool, its flags and its number of entries, as uint32.
    3. For each entry its bytes as uint64, then for each entry how many blocks it stands for as uint32, then for each
       entry the index of its line as uint16, then its state as uint8.

    Args:
        found: the map.
        most: how many entries to send; beyond, the smallest segments are sent as the sums of their states.
    """
    segments = sorted(found.segments, key=itemgetter("address"))
    streams, pools, lines = _Names(), _Names(), _Names({None: 0})
    pools[(0, 0)]
    runs = [segment["blocks"] for segment in segments]
    summed = _too_many(segments, most)
    for number in summed:
        runs[number] = _sums(runs[number])
    blocks = list(chain.from_iterable(runs))
    sizes, states, recorded = _columns(blocks)
    shapes = [value for segment in segments for value in (segment["address"], segment["total_size"])]
    tables = [
        value
        for segment, run in zip(segments, runs, strict=True)
        for value in (streams[segment["stream"]], pools[pool_id_of(segment)], _flags(segment), len(run))
    ]
    entries = (
        _packed("Q", sizes),
        _packed("I", [block.get("count", 1) for block in blocks]) if summed else _packed("I", [1]) * len(blocks),
        _packed("H", [_line(block, lines) for block in blocks]) if recorded else bytes(2 * len(blocks)),
        states,
    )
    return Message(
        {
            "kind": "map",
            "slot": found.slot,
            "time": found.time,
            "entries": len(blocks),
            "streams": list(streams),
            "pools": [list(pool) for pool in pools],
            "lines": ["" if frame is None else site_text(*frame) for frame in lines],
            "summary": asdict(found.fragmentation),
        },
        [_packed("d", shapes), _packed("I", tables), b"".join(entries)],
    )


class _Names(dict[Any, int]):
    """Numbers names in the order in which they are first asked for."""

    def __missing__(self, name: Any) -> int:
        number = self[name] = len(self)
        return number


class _States(dict[str, int]):
    """What a block's state is called here: whatever is neither free nor allocated awaits another stream."""

    def __missing__(self, name: str) -> int:
        return AWAITING


_STATES = _States({"inactive": FREE, "active_allocated": ALLOCATED})


def _flags(segment: dict[str, Any]) -> int:
    small, expandable = segment["segment_type"] == "small", segment.get("is_expandable")
    return (SMALL if small else 0) | (EXPANDABLE if expandable else 0)


def _columns(blocks: list[dict[str, Any]]) -> tuple[list[int], bytes, bool]:
    """Return the sizes of blocks, their states, and whether anybody recorded where they were allocated.

    By columns, since a column of many blocks is a few calls; in parts, since those stay in the processor's cache.
    """
    sizes: list[int] = []
    states = bytearray()
    recorded = False
    for start in range(0, len(blocks), _PART):
        part = blocks[start : start + _PART]
        sizes += map(itemgetter("size"), part)
        states += bytes(map(_STATES.__getitem__, map(itemgetter("state"), part)))
        recorded = recorded or any(map(dict.get, part, repeat("frames")))
    return sizes, bytes(states), recorded


def _line(block: dict[str, Any], lines: _Names) -> int:
    """Return the number of the line of the user's code that allocated a block; 0 where nobody recorded it."""
    return lines[frame_of(block)] if block.get("frames") and len(lines) < _LINES else 0


def _too_many(segments: list[dict[str, Any]], most: int) -> list[int]:
    """Return which segments to send as sums, the smallest first, so that no more than `most` entries are left."""
    entries = sum(len(segment["blocks"]) for segment in segments)
    summed: list[int] = []
    if entries > most:
        for number in sorted(range(len(segments)), key=lambda number: int(segments[number]["total_size"])):
            if entries <= most:
                break
            entries -= max(0, len(segments[number]["blocks"]) - AWAITING - 1)  # one for each state is left
            summed.append(number)
    return summed


def _sums(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what blocks add up to: one for each state, with how many it stands for."""
    sums: dict[int, dict[str, Any]] = {}
    for block in blocks:
        state = block["state"]
        one = sums.get(_STATES[state])
        if one is None:
            one = sums[_STATES[state]] = {"state": state, "size": 0, "count": 0}
        one["size"] += block["size"]
        one["count"] += 1
    return list(sums.values())


def _packed(kind: str, values: list[Any]) -> bytes:
    """Return numbers one after the other, little-endian."""
    return struct.pack(f"<{len(values)}{kind}", *values)
