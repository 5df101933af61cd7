"""What always holds of the allocator model, whatever is asked of it."""

from __future__ import annotations

import pytest
from allocator_recount import Ledger
from allocator_requests import free_all, model, play
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpumem.units import MiB

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
