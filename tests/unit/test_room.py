"""How large a request finds room, against the allocator model: what is said to fit does, without a flush."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.control.room import has_room, largest_request
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
    free = allocator.driver.free
    if allocator.limit is not None:
        free = min(free, max(0, allocator.limit - allocator.stats()["reserved_bytes"]["all"]["current"]))
    return free


SETTINGS = ("", "expandable_segments:True", "roundup_power2_divisions:4", "large_segment_size_mb:64")
SIZES = st.lists(st.integers(1, 200 * MiB), max_size=12)


@given(st.sampled_from(SETTINGS), SIZES, st.lists(st.booleans(), min_size=12, max_size=12), st.integers(1, CARD))
@hypothesis_settings(max_examples=200)
def test_what_fits_fits(text, sizes, freed, size):
    """A request that is said to have room is served without a flush."""
    allocator = used(text, sizes, freed)
    segments, room = allocator.snapshot(), room_of(allocator)
    if has_room(size, segments, 0, allocator.settings, room):
        before = allocator.retries
        assert allocator.malloc(size)
        assert allocator.retries == before


@given(st.sampled_from(SETTINGS), SIZES, st.lists(st.booleans(), min_size=12, max_size=12))
@hypothesis_settings(max_examples=200)
def test_the_largest_fits(text, sizes, freed):
    """The size that is said to be the largest has room."""
    allocator = used(text, sizes, freed)
    segments, room = allocator.snapshot(), room_of(allocator)
    largest = largest_request(segments, 0, allocator.settings, room)
    assert not largest or has_room(largest, segments, 0, allocator.settings, room)


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
    assert largest_request([], 0, settings, room) == largest
    if largest > MiB:
        assert not has_room(largest + 2 * MiB, [], 0, settings, room)


def test_what_lies_elsewhere_is_not_found():
    """Neither another stream's memory, nor a private pool's, nor an expandable segment's once they are off."""
    segment = {
        "address": 0, "total_size": 64 * MiB, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "blocks": [{"size": 64 * MiB, "state": "inactive"}],
    }  # fmt: skip
    settings = AllocatorSettings()
    assert largest_request([segment], 0, settings, 0) == 64 * MiB
    assert largest_request([segment], 7, settings, 0) == 0
    assert largest_request([segment | {"segment_pool_id": (0, 1)}], 0, settings, 0) == 0
    assert largest_request([segment | {"is_expandable": True}], 0, settings, 0) == 0
