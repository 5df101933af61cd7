"""The binary map: what is packed is what was there, and large maps stay small."""

from __future__ import annotations

import struct

import pytest

from jupyter_gpumem.fragments import fragmentation
from jupyter_gpumem.live.wire import ALLOCATED, AWAITING, EXPANDABLE, FREE, SMALL, pack_map
from jupyter_gpumem.sampler import BlockMap
from tests.model_backend import ModelBackend

MiB = 2**20


def packed(gpu, most=40_000):
    """Return the head, the segments and the entries of a packed map of device 0, as the browser decodes them."""
    segments = gpu.segments(0)
    head, (shapes, tables, blocks) = pack_map(BlockMap(0, 1.0, segments, fragmentation(segments)), most)
    n = head["entries"]
    shapes = list(struct.iter_unpack("<2d", shapes))
    tables = list(struct.iter_unpack("<4I", tables))
    assert len(blocks) == 15 * n
    sizes = struct.unpack_from(f"<{n}Q", blocks)
    counts = struct.unpack_from(f"<{n}I", blocks, 8 * n)
    lines = struct.unpack_from(f"<{n}H", blocks, 12 * n)
    return (
        head,
        [(*a, *b) for a, b in zip(shapes, tables, strict=True)],
        list(zip(sizes, counts, lines, blocks[14 * n :], strict=True)),
    )


@pytest.fixture
def gpu():
    """A modelled device; nobody else knows of it."""
    return ModelBackend(settings="")


def test_states_streams_and_pools(gpu):
    """Every kind of block and segment comes out as what it is."""
    gpu.free(gpu.allocate(MiB // 2))
    gpu.allocate(5 * MiB, stream=7)
    gpu.allocators[0].defer(gpu.allocate(3 * MiB, pool=(0, 1)))
    head, segments, entries = packed(gpu)
    assert head["streams"] == [0, 7] or head["streams"] == [7, 0]
    assert head["pools"] == [[0, 0], [0, 1]]
    by_size = {
        size: (head["streams"][stream], tuple(head["pools"][pool]), flags)
        for _, size, stream, pool, flags, _ in segments
    }
    assert by_size[2 * MiB] == (0, (0, 0), SMALL)
    assert (7, (0, 0), 0) in by_size.values() or by_size[20 * MiB][0] in (0, 7)
    assert {(size, state) for size, _, _, state in entries} == {
        (2 * MiB, FREE), (5 * MiB, ALLOCATED), (15 * MiB, FREE), (3 * MiB, AWAITING), (17 * MiB, FREE),
    }  # fmt: skip


def test_expandable_segments_say_so():
    """The flag of an expandable segment is there."""
    gpu = ModelBackend(settings="expandable_segments:True")
    gpu.allocate(5 * MiB)
    _, segments, _ = packed(gpu)
    assert [flags for *_, flags, _ in segments] == [EXPANDABLE]


def test_lines_are_named_once(gpu):
    """With a recording a block knows the line that allocated it; the text travels once."""
    gpu.stacks = True
    for _ in range(50):
        gpu.allocate(MiB)
    gpu.stacks = False
    gpu.allocate(MiB)
    head, _, entries = packed(gpu)
    assert len(head["lines"]) == 2
    assert head["lines"][1].endswith("test_lines_are_named_once")
    assert sorted({line for _, _, line, state in entries if state == ALLOCATED}) == [0, 1]


def test_large_maps_are_summed_where_it_costs_least(gpu):
    """Beyond the limit the smallest segments are sent as sums, which leave nothing out."""
    kept = [gpu.allocate(4096) for _ in range(4000)] + gpu.fragment(3)
    for address in kept[:4000:2]:
        gpu.free(address)
    _, _, full = packed(gpu)
    head, segments, entries = packed(gpu, most=1500)
    assert head["entries"] <= 1500 < len(full)
    for state in (FREE, ALLOCATED, AWAITING):
        for column in (0, 1):
            assert sum(e[column] for e in entries if e[3] == state) == sum(e[column] for e in full if e[3] == state)
    assert sum(amount for *_, amount in segments) == len(entries)
    assert sum(1 for _, count, _, _ in entries if count == 1) >= 9  # the large segments are there block by block


def test_blocks_add_up_to_their_segments(gpu):
    """Sizes of entries are those of their segment, in order of address."""
    gpu.fragment(5)
    gpu.allocate(700)
    _, segments, entries = packed(gpu)
    assert [s[0] for s in segments] == sorted(s[0] for s in segments)
    start = 0
    for _, size, *_, amount in segments:
        assert sum(entry[0] for entry in entries[start : start + amount]) == size
        start += amount
