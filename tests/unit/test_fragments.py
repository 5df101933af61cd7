"""How unallocated memory lies, from snapshots written out by hand."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpumem.control import reservation
from jupyter_gpumem.fragments import LARGE_PAGE, fragmentation, site_of
from jupyter_gpumem.records import Fragmentation
from jupyter_gpumem.units import GiB, MiB

LIVE, FREE, PENDING = "active_allocated", "inactive", "active_pending_free"


def segment(*blocks, kind="large", stream=0, pool=(0, 0), expandable=False, address=0x7F0000000000, placed=True):
    """Return a segment in PyTorch's format; blocks are `(state, MiB)` from its beginning on."""
    found, at = [], address
    for state, size in blocks:
        block = {"size": int(size * MiB), "requested_size": int(size * MiB), "state": state}
        found.append(block | {"address": at} if placed else block)
        at += int(size * MiB)
    return {
        "device": 0, "address": address, "total_size": at - address, "stream": stream, "segment_type": kind,
        "segment_pool_id": pool, "is_expandable": expandable, "blocks": found,
    }  # fmt: skip


def test_nothing_reserved_is_nothing():
    """An empty snapshot has no free bytes and no fragmentation to speak of."""
    assert fragmentation([]) == Fragmentation(0, 0, 0, 0, None, 0, 0)


def test_an_unused_segment_is_returnable():
    """Only a segment without a live block goes back when the cache is emptied."""
    found = fragmentation([segment((FREE, 20)), segment((LIVE, 4), (FREE, 16))])
    assert found == Fragmentation(
        returnable=20 * MiB, stranded=16 * MiB, private=0, largest_free=20 * MiB, external=1 - 20 / 36,
        segments=2, blocks=3,
    )  # fmt: skip


def test_an_unused_segment_in_pieces_is_returnable_too():
    """Free blocks that are not merged yet still leave their segment without a live one."""
    assert fragmentation([segment((FREE, 4), (FREE, 16))]).returnable == 20 * MiB


def test_blocks_that_wait_for_a_stream_are_not_free():
    """Freed memory that another stream may still use is neither free nor returnable."""
    found = fragmentation([segment((PENDING, 20)), segment((PENDING, 4), (FREE, 16))])
    assert (found.returnable, found.stranded, found.largest_free) == (0, 16 * MiB, 16 * MiB)


def test_old_and_new_names_of_the_waiting_state_mean_the_same():
    """Every state other than `inactive` holds its segment."""
    assert fragmentation([segment(("active_awaiting_free", 2))]).returnable == 0


def test_external_fragmentation_never_crosses_streams_or_pools():
    """Each stream and each of the small and large pools can serve only itself, so each has a largest block."""
    apart = fragmentation([segment((FREE, 20)), segment((FREE, 20), stream=7)])
    assert apart.external == 0
    together = fragmentation([segment((FREE, 20)), segment((FREE, 20))])
    assert together.external == 0.5
    assert fragmentation([segment((FREE, 2), kind="small"), segment((FREE, 20))]).external == 0


def test_the_largest_request_is_one_of_its_size_class():
    """Requests up to 1 MiB find the small segments' free blocks only, and larger requests never find those."""
    assert fragmentation([segment((FREE, 2), kind="small")]).largest_free == MiB
    assert fragmentation([segment((LIVE, 1.5), (FREE, 0.5), kind="small")]).largest_free == MiB // 2
    assert fragmentation([segment((LIVE, 19.5), (FREE, 0.5), expandable=True)]).largest_free == 0
    assert fragmentation([segment((FREE, 2), kind="small"), segment((FREE, 20))]).largest_free == 20 * MiB


def test_private_pools_are_counted_apart():
    """Memory of a graph's pool is not returnable, not stranded and serves no ordinary request."""
    found = fragmentation([segment((LIVE, 4), (FREE, 60), pool=(1, 0)), segment((FREE, 30), pool=(0, 3))])
    assert found == Fragmentation(0, 0, 90 * MiB, 0, None, 2, 3)
    assert fragmentation([segment((FREE, 30), pool=[0, 3])]).private == 30 * MiB


def test_whole_pages_of_expandable_segments_are_returnable():
    """A free block gives back the pages that lie completely inside it, and keeps those it shares."""
    found = fragmentation([segment((LIVE, 5), (FREE, 50), (LIVE, 5), expandable=True)])
    assert (found.returnable, found.stranded) == (20 * MiB, 30 * MiB)  # of 5..55 only the page 20..40 is whole


def test_pages_of_the_small_pool_are_small():
    """Small expandable segments are mapped 2 MiB at a time."""
    found = fragmentation([segment((LIVE, 0.5), (FREE, 5), (LIVE, 0.5), kind="small", expandable=True)])
    assert (found.returnable, found.stranded) == (2 * MiB, 3 * MiB)


def test_a_free_block_within_a_page_returns_nothing():
    """Neither does a block that touches two pages and fills none."""
    assert fragmentation([segment((LIVE, 1), (FREE, 18), (LIVE, 1), expandable=True)]).returnable == 0
    assert fragmentation([segment((LIVE, 15), (FREE, 10), (LIVE, 15), expandable=True)]).returnable == 0


def test_the_page_size_can_be_told():
    """`large_segment_size_mb` changes how much is mapped at a time."""
    one = [segment((LIVE, 5), (FREE, 50), (LIVE, 5), expandable=True)]
    assert fragmentation(one, large_page=10 * MiB).returnable == 40 * MiB


def test_pages_are_counted_from_the_segment():
    """Addresses of expandable segments need not be multiples of the page size."""
    one = segment((FREE, 20), (LIVE, 20), expandable=True, address=0x7F0000000000 + 6 * MiB)
    assert fragmentation([one]).returnable == LARGE_PAGE


def test_an_expandable_segment_counts_as_what_it_can_grow_to():
    """Free memory of the driver extends its largest block, and only where there is one that can grow."""
    grows = [segment((FREE, 40), expandable=True), segment((FREE, 40), stream=1, expandable=True)]
    assert fragmentation(grows).external == 0
    broken = [segment((FREE, 40), (LIVE, 1), (FREE, 60), expandable=True)]
    assert fragmentation(broken).external == pytest.approx(0.4)
    assert fragmentation(broken, device_free=100 * MiB).external == pytest.approx(40 / 200)
    fixed = [segment((FREE, 40), (LIVE, 1), (FREE, 60))]
    assert fragmentation(fixed, device_free=100 * MiB).external == pytest.approx(0.4)


def test_old_snapshots_without_block_addresses():
    """Blocks without an address follow each other from the segment's beginning."""
    blocks = ((LIVE, 5), (FREE, 50), (LIVE, 5))
    old = segment(*blocks, expandable=True, placed=False)
    for key in ("segment_pool_id", "is_expandable"):
        assert fragmentation([{k: v for k, v in segment(*blocks).items() if k != key}]) == fragmentation(
            [segment(*blocks)]
        )
    assert fragmentation([old]) == fragmentation([segment(*blocks, expandable=True)])


blocks = st.lists(
    st.tuples(st.sampled_from([LIVE, FREE, PENDING]), st.sampled_from([0.5, 1, 2, 7, 20, 45])), min_size=1
)
segments = st.lists(
    st.builds(
        lambda blocks, kind, stream, pool, expandable: segment(
            *blocks, kind=kind, stream=stream, pool=pool, expandable=expandable
        ),
        blocks,
        st.sampled_from(["small", "large"]),
        st.integers(0, 2),
        st.sampled_from([(0, 0), (0, 0), (1, 0), (0, 2)]),
        st.booleans(),
    ),
    max_size=8,
)


@given(segments, st.sampled_from([None, 0, GiB]))
def test_every_free_byte_is_in_exactly_one_place(found, device_free):
    """Returnable, stranded and private add up to all free bytes, and ratios are fractions."""
    free = sum(b["size"] for s in found for b in s["blocks"] if b["state"] == FREE)
    result = fragmentation(found, device_free=device_free)
    assert result.returnable + result.stranded + result.private == free
    assert min(result.returnable, result.stranded, result.private, result.largest_free) >= 0
    assert result.external is None or 0 <= result.external <= 1
    assert (result.segments, result.blocks) == (len(found), sum(len(s["blocks"]) for s in found))


def frames(*found):
    """Return a block with frames `(file, line, function)`, innermost first, as PyTorch records them."""
    return {"frames": [{"filename": file, "line": line, "name": name} for file, line, name in found]}


def test_where_a_block_was_allocated():
    """The innermost line of Python outside of torch says it; native code has no lines."""
    native, inner = (
        ("/usr/bin/python3.12", 0, "PyObject_Call"),
        ("/lib/site-packages/torch/nn/modules/linear.py", 1, "f"),
    )
    assert site_of(frames(native, inner, ("train.py", 12, "step"), ("main.py", 3, "<module>"))) == "train.py:12 in step"
    assert site_of(frames(native, inner)) is None
    ours = (reservation.__file__, 101, "reserve")
    assert site_of(frames(inner, (contextlib.__file__, 81, "inner"), ours, ("a.py", 2, "f"))) == "a.py:2 in f"
    assert site_of(frames()) is None
    assert site_of({}) is None


def test_where_in_a_notebook_a_block_was_allocated(monkeypatch):
    """A cell is called by its number, as in tracebacks; other files keep their names."""
    cells = {"ipykernel_7/1234.py": ("Cell", "In[5]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert site_of(frames(("ipykernel_7/1234.py", 23, "train"))) == "In[5], line 23 in train"
    assert site_of(frames(("ipykernel_7/1234.py", 2, "<module>"))) == "In[5], line 2"
    assert site_of(frames(("ipykernel_7/99.py", 2, "<module>"))) == "ipykernel_7/99.py:2 in <module>"
