"""Private pools (CUDA graphs, `MemPool`) in recordings: replayed exactly, or the result says that it is not."""

from __future__ import annotations

import random

import pytest

from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.allocator.tape import TapedAllocator
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.recording import Recording, read_recording, write_recording
from jupyter_gpumem.units import GiB, KiB, MiB

GRAPH, MEMPOOL = (1, 0), (0, 1)
EXPANDABLE = "expandable_segments:True"


def recorded(settings="", *, pool_ids=True, custom=(), ends=()):
    """Return a recording of random work in the default pool, a graph's and a `MemPool`'s, made by the model."""
    tape = TapedAllocator(AllocatorSettings.parse(settings), total_memory=16 * GiB, pool_ids=pool_ids)
    for pool in custom:
        tape.allocator.group(pool).custom = True
    chance, live = random.Random(5), {(0, 0): [], GRAPH: [], MEMPOOL: []}
    for _ in range(900):
        pool = chance.choice(list(live))
        if live[pool] and chance.random() < 0.45:
            tape.free(live[pool].pop(chance.randrange(len(live[pool]))))
        else:
            size = chance.choice([chance.randint(1, MiB), chance.randint(MiB, 40 * MiB), 700 * KiB, 12 * MiB])
            live[pool].append(tape.malloc(size, 0, pool))
    for pool in ends:
        for address in live[pool]:
            tape.free(address)
        tape.allocator.set_pool(pool, in_use=False)
    tape.empty_cache()
    for _ in range(5):
        tape.malloc(30 * MiB)
    about = {"total_memory": 16 * GiB, "memory_fraction": 1.0, "alloc_conf": settings}
    return Recording(tape.snapshot() | {"jupyter_gpumem": about})


@pytest.mark.parametrize("settings", ["", EXPANDABLE, "max_split_size_mb:32", "roundup_power2_divisions:4"])
@pytest.mark.parametrize("pool_ids", [True, False])
def test_pools_are_replayed_exactly(settings, pool_ids):
    """Blocks of private pools lie where they did, whether events name the pool (PyTorch 2.12) or the segments do."""
    result = whatif(recorded(settings, pool_ids=pool_ids), [""])
    assert result.check.exact
    assert result.check.misplaced == 0
    assert result.check.segment_events > 20
    assert result.confidence == "high"


@pytest.mark.parametrize("settings", ["", EXPANDABLE])
def test_a_pool_that_ends_gives_its_memory_back(settings):
    """After a graph is deleted its segments go back to the driver with the cache, in the replay too."""
    source = recorded(settings, ends=(GRAPH,))
    assert any(e["pool_id"] == GRAPH and e["action"] in {"segment_free", "segment_unmap"} for e in source.events(0))
    result = whatif(source, [""])
    assert result.check.exact
    assert result.confidence == "high"


def test_pools_whose_end_is_not_told_lower_the_confidence():
    """Where neither events nor segments tell whose memory it was, the check fails and the result says so."""
    result = whatif(recorded(pool_ids=False, ends=(GRAPH,)), [""])
    assert not result.check.exact
    assert result.confidence == "lowered"
    assert "Check not passed" in str(result)


@pytest.mark.parametrize("pool_ids", [True, False])
def test_pools_with_an_allocator_of_their_own_do_not_expand(pool_ids):
    """Such a pool gets segments though expandable ones are on; that is seen, kept under other settings, and said."""
    source = recorded(EXPANDABLE, custom=(MEMPOOL,), pool_ids=pool_ids)
    assert {"segment_alloc", "segment_map"} <= {event["action"] for event in source.events(0)}
    assert source.trace(0).custom == {MEMPOOL}
    result = whatif(source, ["", EXPANDABLE])
    assert result.check.exact
    assert result.results[2].peak_reserved == result.results[0].peak_reserved
    assert any("one private pool has an allocator of its own" in note for note in result.notes)


def test_pools_survive_a_file(tmp_path):
    """Pool ids are tuples in PyTorch's files, and are read as such."""
    path = write_recording(recorded().snapshot, tmp_path / "pools.pickle.gz")
    assert whatif(read_recording(path), []).check.exact
