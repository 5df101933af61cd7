"""How large a request finds room, against the allocator model: what is said to fit, and only that, needs no flush."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.allocator.sizes import round_down, round_size
from jupyter_gpumem.control.room import Room, has_room, largest_request
from jupyter_gpumem.units import GiB, MiB

CARD = GiB


def used(text, sizes, freed):
    """Return an allocator of a card of 1 GiB in which some of the requests live and the others were freed."""
    allocator = Allocator(AllocatorSettings.parse(text), total_memory=CARD)
    addresses = []
    with contextlib.suppress(ModelOutOfMemoryError):
        for size in sizes:
            addresses.append(allocator.malloc(size))  # noqa: PERF401 - those before an error count
    for address, free in zip(addresses, freed, strict=False):
        if free:
            allocator.free(address)
    return allocator


def room_of(allocator):
    """Return what can still be reserved."""
    limit, reserved = allocator.limit, allocator.stats()["reserved_bytes"]["all"]["current"]
    return Room(allocator.driver.free, CARD, None if limit is None else max(0, limit - reserved))


def served(allocator, size):
    """Whether a request is served without anything being given back."""
    before = allocator.retries, allocator.device_frees
    try:
        allocator.malloc(size)
    except ModelOutOfMemoryError:
        return False
    return (allocator.retries, allocator.device_frees) == before


SETTINGS = (
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:64",
    "max_split_size_mb:64",
    "max_split_size_mb:64,max_non_split_rounding_mb:32,roundup_power2_divisions:2",
    "expandable_segments:True,roundup_power2_divisions:4",
    "expandable_segments:True,large_segment_size_mb:64",
)
SIZES = st.lists(st.integers(1, 200 * MiB), max_size=12)
FREED = st.lists(st.booleans(), min_size=12, max_size=12)
SIZE = st.integers(1, CARD) | st.integers(1, CARD // MiB).map(lambda size: size * MiB)


def assume_told(allocator):
    """Leave out what a snapshot does not tell: that an expandable segment begins before its first mapped page."""
    mapped = {segment["address"] for segment in allocator.snapshot()}
    assume(all(segment.address in mapped for segment in allocator.expandable))


@given(st.sampled_from(SETTINGS), SIZES, FREED, SIZE, st.none() | st.integers(0, CARD), st.booleans())
@hypothesis_settings(max_examples=300)
def test_what_fits(text, sizes, freed, size, limit, flushed):
    """A request is said to have room if, and only if, it is served without anything being given back for it."""
    allocator = used(text, sizes, freed)
    if flushed:
        allocator.empty_cache()
    allocator.set_limit(limit)
    assume_told(allocator)
    said = has_room(size, allocator.snapshot(), 0, allocator.settings, room_of(allocator))
    assert said == served(allocator, size)


@given(st.sampled_from(SETTINGS), SIZES, FREED, SIZE, st.none() | st.integers(0, CARD), st.booleans())
@hypothesis_settings(max_examples=300)
def test_the_largest(text, sizes, freed, size, limit, flushed):
    """The size that is said to be the largest has room, and nothing above it has."""
    allocator = used(text, sizes, freed)
    if flushed:
        allocator.empty_cache()
    allocator.set_limit(limit)
    assume_told(allocator)
    segments, room = allocator.snapshot(), room_of(allocator)
    largest = largest_request(segments, 0, allocator.settings, room)
    above = [size, largest + 1, largest + 512, largest + MiB, largest + 2 * MiB, largest + 20 * MiB]
    assert not any(has_room(one, segments, 0, allocator.settings, room) for one in above if one > largest)
    assert not largest or served(allocator, largest)


@pytest.mark.parametrize(
    ("text", "sizes", "freed", "largest"),
    [
        # The end of what is mapped grows: the driver has 24 MiB, and a page takes 20.
        ("expandable_segments:True", [500, 490], [False, True], 520),
        # Blocks above the limit serve requests as large only.
        ("max_split_size_mb:64", [500, 510], [True, False], 500),
        # A block serves what is rounded up to its size at most.
        ("roundup_power2_divisions:2", [1, 768, 254], [False, False, True], 192),
        ("", [1, 1020], [True, False], 1),
    ],
)
def test_the_largest_of_a_full_card(text, sizes, freed, largest):
    """What the cache has counts as what requests can get of it."""
    allocator = used(text, [size * MiB for size in sizes], freed)
    segments, room = allocator.snapshot(), room_of(allocator)
    assert largest_request(segments, 0, allocator.settings, room) == largest * MiB
    assert served(allocator, largest * MiB)


@given(st.integers(1, 2**40), st.lists(st.sampled_from([0, 1, 2, 4, 8, 2**20]), min_size=16, max_size=16))
def test_rounding_down(size, divisions):
    """It is the largest request that is rounded up to the size at most."""
    request = round_down(size, tuple(divisions))
    assert not request or round_size(request, tuple(divisions)) <= size
    assert round_size(request + 1, tuple(divisions)) > size


@pytest.mark.parametrize(
    ("text", "room", "largest"),
    [
        ("", 100 * MiB + 5, 100 * MiB),
        ("", 101 * MiB, 100 * MiB),
        ("", 9 * MiB, MiB),
        ("", 2 * MiB, MiB),
        ("", MiB, 0),
        ("expandable_segments:True", 101 * MiB, 100 * MiB),
        ("expandable_segments:True", 119 * MiB, 100 * MiB),
        ("roundup_power2_divisions:2", 240 * MiB, 192 * MiB),
    ],
)
def test_the_largest_of_an_empty_cache(text, room, largest):
    """Segments come in 2 MiB, pages in 20 MiB; below 10 MiB a request needs a segment that is larger than itself."""
    settings = AllocatorSettings.parse(text)
    assert largest_request([], 0, settings, Room(room, CARD)) == largest
    if largest > MiB:
        assert not has_room(largest + 2 * MiB, [], 0, settings, Room(room, CARD))


def test_what_lies_elsewhere_is_not_found():
    """Neither another stream's memory, nor a private pool's, nor an expandable segment's once they are off."""
    segment = {
        "address": 0, "total_size": 64 * MiB, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "blocks": [{"size": 64 * MiB, "state": "inactive"}],
    }  # fmt: skip
    settings = AllocatorSettings()
    assert largest_request([segment], 0, settings, Room(0, CARD)) == 64 * MiB
    assert largest_request([segment], 7, settings, Room(0, CARD)) == 0
    assert largest_request([segment | {"segment_pool_id": (0, 1)}], 0, settings, Room(0, CARD)) == 0
    assert largest_request([segment | {"is_expandable": True}], 0, settings, Room(0, CARD)) == 0
