"""What is refused about a change of settings, and what is said about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.control.hazards import notes_on_change, refusals
from jupyter_gpumem.errors import UnsafeSettingsError
from jupyter_gpumem.units import GiB, MiB


def segment(*blocks, expandable=False, pool=(0, 0)):
    """Return a segment; a block is `+` and MiB of a live one, `-` and MiB of a free one."""
    parts = [{"size": abs(size) * MiB, "state": "active_allocated" if size > 0 else "inactive"} for size in blocks]
    return {
        "address": 0, "total_size": sum(part["size"] for part in parts), "blocks": parts, "stream": 0,
        "segment_type": "large", "is_expandable": expandable, "segment_pool_id": pool,
    }  # fmt: skip


SPLIT = segment(-600, 100, -300)


@pytest.mark.parametrize(
    ("before", "after", "segments", "said"),
    [
        ("", "max_split_size_mb:128", [SPLIT], "with 100.00 MiB alive"),
        ("max_split_size_mb:2000", "max_split_size_mb:1000", [SPLIT], "max_split_size_mb:1000 is unsafe now"),
        ("", "max_split_size_mb:128", [SPLIT, segment(200, -100)], "2 such segments are split already"),
        ("", "max_split_size_mb:1001", [SPLIT], None),
        ("", "max_split_size_mb:128", [segment(-1000)], None),
        ("", "max_split_size_mb:128", [segment(1000)], None),
        ("", "max_split_size_mb:128", [segment(-600, 100, -300, expandable=True)], None),
        ("", "max_split_size_mb:128", [segment(-600, 100, -300, pool=(0, 1))], "unsafe now"),
        ("max_split_size_mb:128", "max_split_size_mb:256", [SPLIT], None),
        ("max_split_size_mb:128", "", [SPLIT], None),
        ("", "expandable_segments:True", [SPLIT], None),
        ("", "expandable_segments:True,max_split_size_mb:128", [], "grow without bound"),
        ("expandable_segments:True", "expandable_segments:True,max_split_size_mb:128", [], "grow without bound"),
        ("expandable_segments:True,max_split_size_mb:128", "expandable_segments:True,max_split_size_mb:256", [], None),
        ("", "backend:cudaMallocAsync", [], "PyTorch chose native when it was loaded"),
        ("", "backend:native", [], None),
        ("", "per_process_memory_fraction:0.5", [], "%gpumem_limit 50%"),
    ],
)
def test_refusals(before, after, segments, said):
    """Unsafe changes and those without effect are refused with the reason; the others are not."""
    found = refusals(AllocatorSettings.parse(before), AllocatorSettings.parse(after), segments, ready=True)
    assert [said in reason for reason in found] == ([True] if said else [])


def test_a_fraction_counts_until_a_device_is_in_use():
    """PyTorch reads it when a device is first used."""
    settings = AllocatorSettings.parse("per_process_memory_fraction:0.5")
    assert refusals(AllocatorSettings(), settings, [], ready=False) == []


@pytest.mark.parametrize(
    ("before", "after", "segments", "shared", "said"),
    [
        ("", "expandable_segments:True", [SPLIT], False, ["1000.00 MiB of segments with live tensors stay"]),
        ("", "expandable_segments:True", [segment(-1000)], False, []),
        ("", "expandable_segments:True", [], True, ["CUDA IPC"]),
        ("expandable_segments:True", "", [segment(-20, 20, expandable=True)], True, ["40.00 MiB of exp"]),
        ("", "roundup_power2_divisions:4", [SPLIT], True, []),
        ("", "roundup_power2_divisions:4", [segment(64, pool=(0, 1))], False, ["1 private pool (CUDA"]),
        ("", "roundup_power2_divisions:4",
         [segment(64, pool=(0, 1)), segment(-64, pool=(2, 0))], False, ["of 128.00 MiB keep"]),
    ],
)  # fmt: skip
def test_notes(before, after, segments, shared, said):
    """What a change does not reach is said, where there is something that it does not reach."""
    notes = notes_on_change(AllocatorSettings.parse(before), AllocatorSettings.parse(after), segments, shared=shared)
    assert [text in note for text, note in zip(said, notes, strict=True)] == [True] * len(said)


requests = st.lists(st.tuples(st.integers(1, 120 * MiB), st.booleans()), min_size=1, max_size=10)


def use(allocator, wanted):
    """Make requests, and free some of them."""
    for size, freed in wanted:
        try:
            address = allocator.malloc(size)
        except ModelOutOfMemoryError:
            return
        if freed:
            allocator.free(address)


@given(requests, st.integers(20, 130), requests)
@hypothesis_settings(max_examples=300)
def test_what_is_not_refused_is_safe(before, limit, after):
    """In the model, a limit that was not refused never lets memory be given back under what lives in it."""
    allocator = Allocator(AllocatorSettings(), total_memory=GiB, limit=300 * MiB)
    use(allocator, before)
    wanted = AllocatorSettings(max_split_size=limit * MiB)
    if not refusals(allocator.settings, wanted, allocator.snapshot(), ready=True):
        allocator.set_settings(wanted)
        use(allocator, after)


def test_what_is_refused_is_not():
    """In the model, the limit that is refused does just that."""
    allocator = Allocator(AllocatorSettings(), total_memory=GiB, limit=300 * MiB)
    allocator.free(allocator.malloc(250 * MiB))
    head, _live = allocator.malloc(150 * MiB), allocator.malloc(20 * MiB)
    allocator.free(head)
    wanted = AllocatorSettings(max_split_size=100 * MiB)
    assert refusals(allocator.settings, wanted, allocator.snapshot(), ready=True)
    allocator.set_settings(wanted)
    with pytest.raises(UnsafeSettingsError):
        allocator.malloc(120 * MiB)


def test_the_effect_of_a_key_is_true_for_its_default_too():
    """What is said of a change must not speak of a size that there is none of."""
    from jupyter_gpumem.allocator.keys import KEYS

    assert "of this size" not in KEYS["max_split_size_mb"].effect
