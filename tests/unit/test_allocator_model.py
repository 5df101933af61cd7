"""The allocator model against what is known: PyTorch's published numbers, and cases from the field."""

from __future__ import annotations

import pytest
from allocator_recount import recount
from allocator_requests import free_all, mebibytes, model, reserved

from jupyter_gpumem.allocator import sizes
from jupyter_gpumem.allocator.model import ModelOutOfMemoryError
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.units import GiB, MiB

EMPTY = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}


# Published numbers


def test_small_segments_do_not_serve_large_requests():
    """8 x 16 MiB, freed, then 4 x 32 MiB: the default needs twice the memory."""
    allocator = model()
    blocks = mebibytes(allocator, *[16] * 8)
    assert reserved(allocator) == 128
    free_all(allocator, blocks)
    assert reserved(allocator) == 128
    mebibytes(allocator, *[32] * 4)
    assert reserved(allocator) == 256


def test_large_segments_serve_small_requests():
    """4 x 32 MiB, freed, then 8 x 16 MiB: nothing more is needed."""
    allocator = model()
    free_all(allocator, mebibytes(allocator, *[32] * 4))
    mebibytes(allocator, *[16] * 8)
    assert reserved(allocator) == 128


def test_expandable_segments_grow_by_pages():
    """8 x 16 MiB one by one map pages of 20 MiB, and 4 x 32 MiB then reuse them."""
    allocator, levels, blocks = model("expandable_segments:True"), [], []
    for _ in range(8):
        blocks += mebibytes(allocator, 16)
        levels.append(reserved(allocator))
    assert levels == [20, 40, 60, 80, 80, 100, 120, 140]
    free_all(allocator, blocks)
    assert reserved(allocator) == 140
    mebibytes(allocator, *[32] * 4)
    assert reserved(allocator) == 140


@pytest.mark.parametrize(("second", "expected"), [(0.5, 22), (2, 20)])
def test_small_and_large_do_not_share_an_expandable_segment(second, expected):
    """After 2 MiB was freed, 0.5 MiB takes a page of its own, another 2 MiB does not."""
    allocator = model("expandable_segments:True")
    free_all(allocator, mebibytes(allocator, 2))
    mebibytes(allocator, second)
    assert reserved(allocator) == expected


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("max_split_size_mb:128,expandable_segments:True", [220, 2980, 5760, 8520, 11300, 14060]),
        ("max_split_size_mb:128", [222, 262, 302, 342, 382, 422]),
        ("expandable_segments:True", [220, 260, 300, 340, 380, 420]),
    ],
)
def test_max_split_size_with_expandable_segments_grows_without_bound(text, levels):
    """Case O15: a surviving block behind large temporaries; only both options together never reuse them."""
    allocator, found, allocated = model(text, total_memory=16 * GiB), [], []
    mebibytes(allocator, 64)
    for cycle in range(101):
        large, half, _ = mebibytes(allocator, 91, 45.5, 2)
        free_all(allocator, [large, half])
        if cycle % 20 == 0:
            found.append(reserved(allocator))
            allocated.append(allocator.stats()["allocated_bytes"]["all"]["current"] / MiB)
    assert found == levels
    assert allocated == [66, 106, 146, 186, 226, 266]


@pytest.mark.parametrize(
    ("size", "text", "expected"),
    [
        (1, "", 512),
        (512, "", 512),
        (513, "", 1024),
        (5 * MiB + 1, "", 5 * MiB + 512),
        (1200, "roundup_power2_divisions:4", 1536),
        (3000, "roundup_power2_divisions:4", 3072),
        (5 * MiB + 1, "roundup_power2_divisions:4", 6 * MiB),
        (4 * MiB, "roundup_power2_divisions:4", 4 * MiB),
        (4 * MiB + 1, "roundup_power2_divisions:4", 5 * MiB),
        (5 * MiB, "roundup_power2_divisions:4", 5 * MiB),
        (2000, "roundup_power2_divisions:4", 2048),
        (2048, "roundup_power2_divisions:4", 2048),
        (300 * MiB + 1, "roundup_power2_divisions:[256:1,512:2,>:4]", 300 * MiB + 512),
        (600 * MiB, "roundup_power2_divisions:[256:1,512:2,>:4]", 768 * MiB),
        (1100 * MiB, "roundup_power2_divisions:[256:1,512:2,>:4]", 1280 * MiB),
        (1000, "roundup_power2_divisions:2", 1024),
        (4097, "roundup_power2_divisions:8", 4608),
        (4096, "roundup_power2_divisions:8", 4096),
    ],
)
def test_rounding(size, text, expected):
    """Sizes are rounded to 512 bytes, or to steps of a power of two, each interval by its own number of steps."""
    assert sizes.round_size(size, AllocatorSettings.parse(text).roundup_power2_divisions) == expected


def test_segment_sizes():
    """2 MiB for small requests, 20 MiB (or what is set) below 10 MiB, and whole pages above."""
    large = 20 * MiB
    assert sizes.segment_size(512, large) == 2 * MiB
    assert sizes.segment_size(MiB, large) == 2 * MiB
    assert sizes.segment_size(MiB + 512, large) == 20 * MiB
    assert sizes.segment_size(10 * MiB - 512, 64 * MiB) == 64 * MiB
    assert sizes.segment_size(10 * MiB, large) == 10 * MiB
    assert sizes.segment_size(11 * MiB + 512, large) == 12 * MiB


# Cases from the field


@pytest.mark.parametrize(
    ("order", "survivor", "peak", "final", "retries"),
    [
        (range(100, 1001, 100), 0, 2800, 2700, 1),
        (range(1000, 99, -100), 0, 1000, 1000, 0),
        (range(100, 1001, 100), 30, 3000, 3000, 1),
        (range(1000, 99, -100), 30, 1000, 1000, 0),
    ],
)
def test_growing_lengths(order, survivor, peak, final, retries):
    """Case O10: short to long grows the cache until a retry flushes it; long to short reuses one segment."""
    allocator = model(total_memory=3000 * MiB)
    for size in order:
        free_all(allocator, mebibytes(allocator, size))
        if survivor:
            mebibytes(allocator, survivor)
    stats = allocator.stats()
    assert stats["reserved_bytes"]["all"]["peak"] == peak * MiB
    assert stats["reserved_bytes"]["all"]["current"] == final * MiB
    assert stats["num_alloc_retries"] == retries
    assert stats["num_ooms"] == 0


def test_a_huge_temporary_fits_once():
    """Case O11: four small survivors in the giant's segment make the second giant fail, with 62 MiB allocated."""
    allocator = model(total_memory=16000 * MiB)
    free_all(allocator, mebibytes(allocator, 11104))
    mebibytes(allocator, 16, 16, 12, 18)
    with pytest.raises(ModelOutOfMemoryError) as error:
        mebibytes(allocator, 11104)
    assert error.value.allocated == 62 * MiB
    assert error.value.reserved == 11104 * MiB
    assert error.value.tried == 11104 * MiB
    largest = max(block["size"] for segment in allocator.snapshot() for block in segment["blocks"])
    assert largest == 11042 * MiB
    for text, empty in (("", True), ("expandable_segments:True", False)):
        helped = model(text, total_memory=16000 * MiB)
        free_all(helped, mebibytes(helped, 11104))
        if empty:
            helped.empty_cache()
        mebibytes(helped, 16, 16, 12, 18, 11104)


def test_private_pools_keep_their_memory():
    """Case O18: a live private pool is not emptied, is told apart in the snapshot, and goes once it is dead."""
    allocator = model()
    graph = (1, 0)
    block = allocator.malloc(50 * MiB, pool=graph)
    allocator.free(block)
    allocator.free(allocator.malloc(30 * MiB))
    allocator.empty_cache()
    assert [segment["segment_pool_id"] for segment in allocator.snapshot()] == [graph]
    assert allocator.malloc(50 * MiB) != block
    stats = allocator.stats()["reserved_bytes_by_private_pools"]
    assert stats == {graph: dict.fromkeys(("all", "large_pool"), stats[graph]["all"]) | {"small_pool": EMPTY}}
    assert stats[graph]["all"]["current"] == 50 * MiB
    allocator.set_pool(graph, in_use=False)
    allocator.empty_cache()
    assert [segment["segment_pool_id"] for segment in allocator.snapshot()] == [(0, 0)]


def test_out_of_memory_in_a_private_pool_says_so():
    """Case O18: the message tells what private pools hold."""
    allocator = model(total_memory=100 * MiB)
    allocator.malloc(60 * MiB, pool=(0, 3))
    with pytest.raises(ModelOutOfMemoryError, match=r"with 60\.00 MiB allocated in private pools") as error:
        allocator.malloc(60 * MiB)
    assert error.value.private == 60 * MiB


def test_a_pool_offered_as_last_resort_is_borrowed():
    """A default request may use free blocks of a `use_on_oom` pool before anything is flushed."""
    allocator = model(total_memory=100 * MiB)
    allocator.set_pool((0, 1), use_on_oom=True)
    block = allocator.malloc(60 * MiB, pool=(0, 1))
    allocator.free(block)
    assert allocator.malloc(60 * MiB) == block
    assert allocator.stats()["num_alloc_retries"] == 0
    recount(allocator)


def test_a_pool_may_forbid_splitting():
    """Blocks of a `no_split` pool are handed out whole."""
    allocator = model()
    allocator.set_pool((0, 1), no_split=True)
    allocator.malloc(3 * MiB, pool=(0, 1))
    assert [len(segment["blocks"]) for segment in allocator.snapshot()] == [1]
    assert allocator.stats()["allocated_bytes"]["all"]["current"] == 20 * MiB
