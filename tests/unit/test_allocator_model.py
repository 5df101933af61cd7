"""The allocator model: PyTorch's published numbers, its rules one by one, and what must always hold."""

from __future__ import annotations

import pytest
from allocator_recount import Ledger, recount
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpumem.allocator import sizes
from jupyter_gpumem.allocator.driver import GRANULE, TopDownDriver
from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.errors import InvalidValueError, UnsafeSettingsError
from jupyter_gpumem.units import GiB, MiB

EMPTY = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}


def model(text="", **arguments):
    return Allocator(AllocatorSettings.parse(text), **arguments)


def reserved(allocator):
    return allocator.reserved / MiB


def mebibytes(allocator, *amounts):
    return [allocator.malloc(int(amount * MiB)) for amount in amounts]


def free_all(allocator, addresses):
    for address in addresses:
        allocator.free(address)


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


# Whatever is asked of it

CONFIGURATIONS = [
    ("", None),
    ("expandable_segments:True", None),
    ("max_split_size_mb:20", None),
    ("max_split_size_mb:32,expandable_segments:True", None),
    ("roundup_power2_divisions:4", 256),
    ("garbage_collection_threshold:0.3", 200),
    ("garbage_collection_threshold:0.3,expandable_segments:True", 200),
    ("max_split_size_mb:32,garbage_collection_threshold:0.4", 300),
    ("large_segment_size_mb:64", 300),
]

amounts = st.one_of(st.integers(1, 5000), st.integers(1, 3 * MiB), st.integers(1, 90 * MiB))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), amounts, st.integers(0, 1), st.sampled_from([None, None, None, (1, 0)])),
        st.tuples(st.just("free"), st.integers(0, 1000)),
        st.tuples(st.just("free"), st.integers(0, 1000)),
        st.tuples(st.just("defer"), st.integers(0, 1000)),
        st.tuples(st.just("complete"), st.integers(0, 1000)),
        st.tuples(st.just("empty")),
        st.tuples(st.just("toggle")),
    ),
    max_size=60,
)


def play(allocator, script, after=lambda: None):
    """Run a script of steps; returns every address, the live ones, and the pending ones."""
    addresses, live, pending = [], [], []
    for step, *values in script:
        if step == "malloc":
            try:
                live.append(allocator.malloc(*values))
            except ModelOutOfMemoryError:
                addresses.append(None)
            else:
                addresses.append(live[-1])
        elif step == "free" and live:
            allocator.free(live.pop(values[0] % len(live)))
        elif step == "defer" and live:
            pending.append(live.pop(values[0] % len(live)))
            allocator.defer(pending[-1])
        elif step == "complete" and pending:
            allocator.complete(pending.pop(values[0] % len(pending)))
        elif step == "empty":
            allocator.empty_cache()
            pending.clear()
        elif step == "toggle" and allocator.settings.max_split_size is None:
            allocator.set_settings(AllocatorSettings(expandable_segments=not allocator.settings.expandable_segments))
        after()
    return addresses, live, pending


@pytest.mark.parametrize(("text", "capacity"), CONFIGURATIONS)
@given(script=steps)
@settings(max_examples=40, deadline=None)
def test_counters_equal_a_recount_at_every_step(text, capacity, script):
    """Blocks tile their segments, nothing overlaps, and every counter and peak is what a recount gives."""
    limit = None if capacity is None else capacity * MiB
    allocator = model(text, total_memory=None if limit is None else limit + 40 * MiB, limit=limit)
    play(allocator, script, Ledger(allocator).check)


@pytest.mark.parametrize(("text", "capacity"), CONFIGURATIONS)
@given(script=steps, shuffle=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_freeing_in_any_order_returns_to_the_start(text, capacity, script, shuffle):
    """When everything is freed, in any order, the emptied cache holds nothing, and the driver has all of it back."""
    allocator = model(text, limit=None if capacity is None else capacity * MiB)
    _, live, _ = play(allocator, script)
    shuffle.shuffle(live)
    free_all(allocator, live)
    allocator.set_pool((1, 0), in_use=False)
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert allocator.driver.used == 0
    assert not allocator.blocks
    assert allocator.snapshot() == []


@pytest.mark.parametrize(("text", "capacity"), CONFIGURATIONS)
@given(script=steps)
@settings(max_examples=15, deadline=None)
def test_the_model_is_deterministic(text, capacity, script):
    """The same requests give the same addresses, counters and segments."""
    runs = []
    for _ in range(2):
        allocator = model(text, limit=None if capacity is None else capacity * MiB)
        runs.append((play(allocator, script)[0], allocator.stats(), allocator.snapshot()))
    assert runs[0] == runs[1]
