"""The allocator model's rules one by one: which block is taken, what is kept, what is given back, and when it fails."""

from __future__ import annotations

import pytest
from allocator_recount import recount
from allocator_requests import free_all, mebibytes, model, reserved

from jupyter_gpumem.allocator.driver import GRANULE, TopDownDriver
from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.errors import InvalidValueError, UnsafeSettingsError
from jupyter_gpumem.units import GiB, MiB

# The rules one by one


def test_best_fit_takes_the_smallest_then_the_lowest():
    """Among free blocks that fit the smallest is taken, and among equal ones the lowest address."""
    allocator = model()
    blocks = mebibytes(allocator, 64, 32, 48, 32)
    free_all(allocator, blocks)
    assert mebibytes(allocator, 31.5)[0] == min(blocks[1], blocks[3])


def test_a_large_block_keeps_a_slack_of_one_mebibyte():
    """A remainder up to 1 MiB stays with the block and counts as allocated; more is cut off."""
    allocator = model()
    free_all(allocator, mebibytes(allocator, 32))
    (block,) = mebibytes(allocator, 31)
    assert allocator.stats()["allocated_bytes"]["all"]["current"] == 32 * MiB
    allocator.free(block)
    mebibytes(allocator, 30.5)
    assert allocator.stats()["allocated_bytes"]["all"]["current"] == int(30.5 * MiB)
    assert allocator.stats()["inactive_split_bytes"]["all"]["current"] == int(1.5 * MiB)


def test_streams_do_not_share_blocks():
    """A free block of one stream is no help to another."""
    allocator = model()
    allocator.free(allocator.malloc(32 * MiB, 1))
    allocator.malloc(32 * MiB, 2)
    assert reserved(allocator) == 64


def test_a_block_that_another_stream_uses_stays_pending():
    """After `record_stream` a freed block is not reused before the other stream has finished."""
    allocator = model()
    block = allocator.malloc(32 * MiB)
    allocator.record_stream(block, 7)
    allocator.record_stream(block, 0)
    allocator.free(block)
    stats = allocator.stats()
    assert stats["allocated_bytes"]["all"]["current"] == 0
    assert stats["active_bytes"]["all"]["current"] == 32 * MiB
    assert allocator.snapshot()[0]["blocks"][0]["state"] == "active_pending_free"
    assert allocator.malloc(32 * MiB) != block
    assert allocator.complete(block)
    assert not allocator.complete(block)
    assert allocator.malloc(32 * MiB) == block
    assert allocator.stats()["active_bytes"]["all"]["peak"] == 64 * MiB


def test_recording_the_own_stream_changes_nothing():
    """`record_stream` on the stream of the allocation itself is ignored."""
    allocator = model()
    block = allocator.malloc(MiB, 3)
    allocator.record_stream(block, 3)
    allocator.free(block)
    assert allocator.stats()["active"]["all"]["current"] == 0


def test_finished_events_are_collected_at_the_next_request():
    """With `finish_events` a pending block is free again when the next request comes."""
    allocator = model(finish_events=True)
    block = allocator.malloc(32 * MiB)
    allocator.record_stream(block, 7)
    allocator.free(block)
    assert allocator.malloc(32 * MiB) == block


def test_a_flush_waits_for_pending_blocks():
    """The last retry, like `empty_cache`, waits for every stream and then gives all whole segments back."""
    allocator = model(total_memory=100 * MiB)
    block = allocator.malloc(60 * MiB)
    allocator.defer(block)
    allocator.malloc(80 * MiB)
    stats = allocator.stats()
    assert (stats["num_alloc_retries"], stats["num_sync_all_streams"], stats["num_device_free"]) == (1, 1, 1)
    assert not allocator.complete(block)


def test_a_flush_does_not_search_again():
    """As in PyTorch a request can fail although the flush freed a fitting block; asked again it succeeds."""
    allocator = model(total_memory=100 * MiB)
    pending, rest = allocator.malloc(60 * MiB), None
    allocator.defer(pending)
    allocator.complete(pending)
    pending, rest = mebibytes(allocator, 30, 30)
    allocator.defer(pending)
    with pytest.raises(ModelOutOfMemoryError):
        mebibytes(allocator, 50)
    assert mebibytes(allocator, 30) == [pending]
    assert rest is not None
    allocator = model(total_memory=100 * MiB, search_after_flush=True)
    pending = allocator.malloc(80 * MiB)
    allocator.defer(pending)
    allocator.release_pool = lambda _: None  # as if something else kept the segment
    assert allocator.malloc(70 * MiB) == pending


def test_oversize_blocks_are_kept_for_oversize_requests():
    """A block from `max_split_size_mb` on serves no smaller request, and no oversize one that would waste too much."""
    allocator = model("max_split_size_mb:128")
    free_all(allocator, mebibytes(allocator, 200))
    mebibytes(allocator, 64)
    assert reserved(allocator) == 264
    mebibytes(allocator, 150)
    assert reserved(allocator) == 414
    mebibytes(allocator, 190)
    assert reserved(allocator) == 414
    stats = allocator.stats()
    assert stats["oversize_allocations"]["current"] == 2
    assert stats["oversize_segments"]["current"] == 2
    assert stats["max_split_size"] == 128 * MiB


def test_one_large_enough_oversize_block_is_given_back_first():
    """Before the whole cache is flushed, the smallest sufficient oversize block goes."""
    allocator = model("max_split_size_mb:128", total_memory=700 * MiB)
    free_all(allocator, mebibytes(allocator, 300, 200, 64))
    mebibytes(allocator, 250)
    stats = allocator.stats()
    assert (stats["num_device_free"], stats["num_alloc_retries"]) == (1, 0)
    assert reserved(allocator) == 200 + 64 + 250


def test_several_oversize_blocks_are_given_back_from_the_largest_down():
    """When none is large enough alone, the largest go until they are enough together."""
    allocator = model("max_split_size_mb:128", total_memory=700 * MiB)
    free_all(allocator, mebibytes(allocator, 200, 180, 160))
    mebibytes(allocator, 350)
    stats = allocator.stats()
    assert (stats["num_device_free"], stats["num_alloc_retries"]) == (2, 0)
    assert reserved(allocator) == 160 + 350


def test_garbage_collection_needs_a_cap_and_takes_the_old():
    """Above the threshold, free segments of at least average age go before new ones come; never without cap."""
    uncapped = model("garbage_collection_threshold:0.5")
    capped = model("garbage_collection_threshold:0.5", limit=1000 * MiB)
    for allocator in (uncapped, capped):
        first, *rest = mebibytes(allocator, *[100] * 6)
        allocator.free(first)
        for _ in range(10):
            free_all(allocator, mebibytes(allocator, 100))  # the same block: ever young
        free_all(allocator, rest[:2])
        free_all(allocator, mebibytes(allocator, 150))
    assert uncapped.stats()["num_device_free"] == 0
    assert capped.stats()["num_device_free"] > 0
    assert capped.stats()["num_alloc_retries"] == 0
    recount(capped)


def test_the_cap_counts_reserved_memory():
    """At the cap the cache is flushed first, then the request fails, whatever the device has left."""
    allocator = model(total_memory=10 * GiB, limit=100 * MiB)
    free_all(allocator, mebibytes(allocator, 60))
    mebibytes(allocator, 80)
    with pytest.raises(ModelOutOfMemoryError, match=r"100\.00 MiB allowed"):
        mebibytes(allocator, 30)
    assert allocator.stats()["num_ooms"] == 1
    allocator.set_limit(None)
    mebibytes(allocator, 30)


def test_the_fraction_of_the_settings_is_a_cap():
    """`per_process_memory_fraction` is taken at the start, of the device's total."""
    assert model("per_process_memory_fraction:0.25", total_memory=1000 * MiB).limit == 250 * MiB


def test_rejection_at_the_cap():
    """With `throw_on_cudamalloc_oom` a request above the cap fails without a flush."""
    allocator = model("throw_on_cudamalloc_oom:True", limit=100 * MiB)
    free_all(allocator, mebibytes(allocator, 60))
    with pytest.raises(ModelOutOfMemoryError):
        mebibytes(allocator, 80)
    stats = allocator.stats()
    assert (stats["num_oom_rejections"], stats["num_ooms"], stats["num_device_free"]) == (1, 0, 0)


def test_the_message_is_pytorchs():
    """The numbers and words are those of PyTorch's error."""
    allocator = Allocator(total_memory=10 * GiB, limit=4 * GiB, driver=TopDownDriver(9 * GiB))
    mebibytes(allocator, 3 * 1024)
    with pytest.raises(ModelOutOfMemoryError) as error:
        mebibytes(allocator, 1535)
    assert str(error.value) == (
        "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 10.00 GiB of which 6.00 GiB is "
        "free. Including non-PyTorch memory, this process has 4.00 GiB memory in use. 4.00 GiB allowed; Of the "
        "allocated memory 3.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        "avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def test_switching_expandable_segments_at_run_time():
    """On: old blocks are still used. Off: free expandable blocks are passed over, and go with the cache."""
    allocator = model()
    old = mebibytes(allocator, 32)
    free_all(allocator, old)
    allocator.set_settings("expandable_segments:True")
    assert mebibytes(allocator, 31.75) == old
    (grown,) = mebibytes(allocator, 64)
    assert len(allocator.expandable) == 1
    allocator.free(grown)
    allocator.set_settings("expandable_segments:False")
    assert mebibytes(allocator, 64) != [grown]
    recount(allocator)
    allocator.empty_cache()
    assert not allocator.expandable
    recount(allocator)


def test_pages_shared_with_live_blocks_stay_mapped():
    """Only pages that lie completely inside free blocks are unmapped."""
    allocator = model("expandable_segments:True")
    blocks = mebibytes(allocator, 50, 2, 50)
    free_all(allocator, [blocks[0], blocks[2]])
    assert reserved(allocator) == 120
    allocator.empty_cache()
    assert reserved(allocator) == 20  # only the page of the live block
    recount(allocator)
    assert [s["total_size"] for s in allocator.snapshot()] == [20 * MiB]
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert reserved(allocator) == 0


def test_an_expandable_segment_that_cannot_grow_keeps_what_it_mapped():
    """When the driver refuses midway, the pages already there stay as free memory."""
    allocator = model("expandable_segments:True", total_memory=100 * MiB)
    blocks = mebibytes(allocator, 40, 20, 20)
    allocator.free(blocks[1])
    with pytest.raises(ModelOutOfMemoryError):
        mebibytes(allocator, 70)
    recount(allocator)
    mebibytes(allocator, 20)


def test_lowering_max_split_size_over_live_blocks_is_refused():
    """Where PyTorch would free memory under live tensors, the model stops."""
    allocator = model(total_memory=1100 * MiB)
    free_all(allocator, mebibytes(allocator, 1000))
    head, _ = mebibytes(allocator, 600, 100)
    allocator.free(head)
    allocator.set_settings("max_split_size_mb:128")
    with pytest.raises(UnsafeSettingsError, match="live tensors"):
        mebibytes(allocator, 500)


def test_wrong_calls_are_refused():
    """Freeing twice or elsewhere, and negative sizes, are errors; nothing is allocated for nothing."""
    allocator = model()
    assert allocator.malloc(0) == 0
    allocator.free(0)
    block = allocator.malloc(100)
    allocator.free(block)
    for call in (allocator.free, allocator.defer, lambda address: allocator.record_stream(address, 1)):
        with pytest.raises(InvalidValueError, match="nothing is allocated"):
            call(block)
    with pytest.raises(InvalidValueError, match="-5 bytes"):
        allocator.malloc(-5)


def test_resets():
    """Peaks fall to what is there; totals start anew and still add up."""
    allocator = model()
    blocks = mebibytes(allocator, 32, 64)
    allocator.defer(blocks[1])
    free_all(allocator, blocks[:1])
    allocator.reset_peaks()
    allocator.reset_totals()
    stats = allocator.stats()
    assert stats["allocated_bytes"]["all"] == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    assert stats["active_bytes"]["all"] == {"current": 64 * MiB, "peak": 64 * MiB, "allocated": 0, "freed": 0}
    assert stats["reserved_bytes"]["large_pool"] == {"current": 96 * MiB, "peak": 96 * MiB, "allocated": 0, "freed": 0}
    allocator.complete(blocks[1])
    allocator.empty_cache()
    stats = allocator.stats()
    assert stats["active_bytes"]["all"]["freed"] == 64 * MiB
    assert stats["reserved_bytes"]["all"] == {"current": 0, "peak": 96 * MiB, "allocated": 0, "freed": 96 * MiB}


def test_the_driver_hands_out_addresses_from_the_top():
    """Granules go downwards, their slack serves the next small segments, and whole holes are reused from above."""
    driver = TopDownDriver()
    first, second = driver.allocate(20 * MiB), driver.allocate(58 * MiB)
    assert first - second == 2 * GRANULE
    assert driver.allocate(2 * MiB) == second + 58 * MiB
    assert driver.allocate(12 * MiB) == first + 20 * MiB
    third = driver.allocate(100 * MiB)
    driver.release(second, 58 * MiB)
    assert driver.allocate(40 * MiB) == second, "kept by the small one behind it"
    driver.release(third, 100 * MiB)
    assert driver.allocate(64 * MiB) == third + 2 * GRANULE
