"""Whether a snapshot is what PyTorch writes, with what is kept beside it. Files are not to be trusted.

A trace has millions of events: each is looked at by C code only.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from operator import itemgetter
from typing import Any

from .allocator.changes import check_changes
from .allocator.trace import LARGEST
from .errors import RecordingError

KEY = "jupyter_gpumem"
"""The key of a snapshot for what this package keeps beside PyTorch's own."""

OTHERS = "other_devices"
"""The key in that, beside what is said about the device with most memory, for a list of the same about the others."""

CHECKED_AT_ONCE = 100_000
"""Longer traces are checked when their events are first asked for: reading stays about as fast as unpickling."""

_MOST_DEVICES = 1024
_LONGEST_NAME = 200


def check_snapshot(data: Any) -> None:
    """Refuse what is not of PyTorch's format; events of traces longer than `CHECKED_AT_ONCE` are not looked at.

    Raises:
        RecordingError: it is not.
    """
    if not isinstance(data, dict):
        raise RecordingError(f"it holds a {type(data).__name__}, not the dict of a memory snapshot")
    if not data.keys() & {"segments", "device_traces"}:
        keys = ", ".join(repr(key) for key in list(data)[:3])
        raise RecordingError(f"it has neither 'segments' nor 'device_traces', but {keys[:60] or 'nothing'}")
    segments, traces = data.get("segments", []), data.get("device_traces", [])
    if not isinstance(segments, list) or not isinstance(traces, list):
        raise RecordingError("its 'segments' and 'device_traces' must be lists")
    if len(traces) > _MOST_DEVICES:
        raise RecordingError(f"it has traces of {len(traces):,} devices")
    for number, segment in enumerate(segments):
        _check_segment(number, segment)
    for device, events in enumerate(traces):
        if not isinstance(events, list):
            raise RecordingError(f"its trace of device {device} is not a list of events")
        if len(events) <= CHECKED_AT_ONCE:
            check_events(device, events)
    _check_extra(data)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_address(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _check_segment(number: int, segment: Any) -> None:
    where = f"its segment {number}"
    if not isinstance(segment, dict) or not isinstance(segment.get("blocks"), list):
        raise RecordingError(f"{where} is not a dict with a list of blocks")
    pool = segment.get("segment_pool_id", (0, 0))
    if not (
        _is_address(segment.get("address"))
        and _is_size(segment.get("total_size"))
        and type(segment.get("device", 0)) is int
        and 0 <= segment.get("device", 0) < _MOST_DEVICES
        and type(segment.get("stream", 0)) is int
        and -(1 << 63) <= segment.get("stream", 0) < 1 << 64
        and isinstance(segment.get("segment_type", ""), str)
        and isinstance(pool, (list, tuple))
        and len(pool) == 2
        and all(type(part) is int for part in pool)
    ):
        raise RecordingError(f"{where} has an impossible address, size, device, stream, type or pool")
    inside = 0
    for block in segment["blocks"]:
        if not (
            isinstance(block, dict)
            and _is_size(block.get("size"))
            and isinstance(block.get("state"), str)
            and _is_size(block.get("requested_size", 0))
            and _is_address(block.get("address", 0))
        ):
            raise RecordingError(f"{where} has a block with an impossible size, state or address")
        inside += block["size"]
    if inside > segment["total_size"]:
        raise RecordingError(f"{where} has {inside:,} bytes of blocks in {segment['total_size']:,} bytes")


_WITH_NUMBERS = frozenset({"alloc", "segment_alloc", "segment_free", "segment_map", "segment_unmap"})
"""Actions of events that cannot be understood without a size and an address."""


def check_events(device: int, events: list[Any]) -> None:
    """Refuse the trace of a device if any of its events is not of PyTorch's format.

    Raises:
        RecordingError: one is not.
    """
    where = f"its trace of device {device}"
    try:
        actions, streams = (
            set(map(itemgetter("action"), events)),
            set(map(dict.get, events, repeat("stream"), repeat(0))),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise RecordingError(f"{where} has an event that is not a dict with an action") from error
    if not set(map(type, actions)) <= {str}:
        raise RecordingError(f"{where} has an event whose action is not a text")
    if not all(type(stream) is int and -(1 << 63) <= stream < 1 << 64 for stream in streams):
        raise RecordingError(f"{where} has an event with an impossible stream")
    for name in ("size", "addr"):
        _check_numbers(where, name, events)


def _check_numbers(where: str, name: str, events: list[dict[str, Any]]) -> None:
    # An array takes nothing but numbers from 0 to 2**64. Some events have no size, or no address.
    try:
        try:
            array("Q", map(itemgetter(name), events))
        except KeyError:
            array("Q", map(dict.get, events, repeat(name), repeat(0)))
            for event in events:
                if name not in event and event["action"] in _WITH_NUMBERS:
                    raise RecordingError(f"{where} has an event without {name!r}: {event['action']}") from None
    except (TypeError, OverflowError) as error:
        raise RecordingError(f"{where} has an event with an impossible {name}") from error


def _check_extra(data: dict[str, Any]) -> None:
    for key in ("allocator_settings", KEY):
        if not isinstance(data.get(key, {}), dict):
            raise RecordingError(f"its {key!r} is a {type(data[key]).__name__}, not a dict")
    extra = data.get(KEY, {})
    _check_name("torch", extra)
    check_changes(extra)
    others = extra.get(OTHERS, [])
    if not isinstance(others, list) or not all(isinstance(card, dict) and "device" in card for card in others):
        raise RecordingError(f"its {OTHERS!r} is {others!r:.60}, not a list of dicts with a device")
    for card in (extra, *others):
        _check_card(card)


def _check_name(key: str, about: dict[str, Any]) -> None:
    name = about.get(key)
    if name is not None and not (isinstance(name, str) and len(name) <= _LONGEST_NAME):
        raise RecordingError(f"its {key!r} is {name!r:.60}, not a short text")


def _check_card(card: dict[str, Any]) -> None:
    _check_name("device_name", card)
    total, fraction = card.get("total_memory", 1), card.get("memory_fraction", 1.0)
    if not _is_size(total) or not total:
        raise RecordingError(f"its total memory is {total!r:.60}, not a number of bytes")
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
        raise RecordingError(f"its memory fraction is {fraction!r:.60}, not a number from 0 to 1")
