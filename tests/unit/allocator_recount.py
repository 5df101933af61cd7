"""A second, slow count of everything the allocator model counts, from its blocks alone."""

from __future__ import annotations

from itertools import pairwise

from jupyter_gpumem.allocator.blocks import ADDRESS_MASK, ALLOCATED, FREE, PENDING, UNMAPPED

NAMES = ("allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "segment",
         "inactive_split", "inactive_split_bytes")  # fmt: skip


def chains(allocator):
    """Yield the blocks of each segment in order."""
    for head in [*allocator.segments, *(segment.address for segment in allocator.expandable)]:
        chain, block = [], allocator.blocks[head]
        while block is not None:
            chain.append(block)
            block = block.next
        yield chain


def recount(allocator):  # noqa: C901 - one walk, many questions
    """Check that blocks tile their segments and nothing overlaps; returns the counters by name and kind of pool."""
    counts = {(name, kind): 0 for name in NAMES for kind in ("small_pool", "large_pool")}
    spans, seen, free, unmapped = [], 0, {}, {}
    sizes = allocator.segments | {segment.address: segment.size for segment in allocator.expandable}
    for chain in chains(allocator):
        head, last = chain[0], chain[-1]
        assert head.prev is None
        assert sizes[head.address] == last.address + last.size - head.address
        spans.append((head.address, last.address + last.size))
        kind = "small_pool" if head.shelf.pool.small else "large_pool"
        if head.segment is None:
            counts["segment", kind] += 1
        for block in chain:
            seen += 1
            assert allocator.blocks[block.address] is block
            assert block.shelf is head.shelf
            assert block.size > 0
            after = block.next
            if after is not None:
                assert after.prev is block
                assert after.address == block.address + block.size
                assert not (block.state == after.state and block.state in {FREE, UNMAPPED}), "not joined"
            if block.state == FREE:
                free.setdefault(id(block.shelf), []).append(block.key)
            if block.state == UNMAPPED:
                unmapped.setdefault(id(block.shelf), []).append(block.address)
                continue
            counts["reserved_bytes", kind] += block.size
            if block.state == ALLOCATED:
                counts["allocation", kind] += 1
                counts["allocated_bytes", kind] += block.size
            if block.state in {ALLOCATED, PENDING}:
                counts["active", kind] += 1
                counts["active_bytes", kind] += block.size
                counts["requested_bytes", kind] += block.requested
            elif block.segment is None and block.is_split:
                counts["inactive_split", kind] += 1
                counts["inactive_split_bytes", kind] += block.size
    assert seen == len(allocator.blocks)
    spans.sort()
    assert all(here[1] <= there[0] for here, there in pairwise(spans)), "segments overlap"
    for group in allocator.groups.values():
        for pool in (group.small, group.large):
            for shelf in pool.shelves.values():
                assert shelf.keys == sorted(free.pop(id(shelf), []))
                assert shelf.unmapped == sorted(unmapped.pop(id(shelf), []))
                assert all(allocator.blocks[key & ADDRESS_MASK].key == key for key in shelf.keys)
    assert not free
    assert not unmapped
    assert allocator.reserved == sum(counts["reserved_bytes", kind] for kind in ("small_pool", "large_pool"))
    assert sum(group.reserved.current for group in allocator.groups.values()) == allocator.reserved
    return counts


class Ledger:
    """Compares the model's counters with a recount after every step, peaks and totals included."""

    def __init__(self, allocator):
        self.allocator = allocator
        self.peaks = dict.fromkeys(((n, k) for n in NAMES for k in ("all", "small_pool", "large_pool")), 0)

    def check(self):
        counts = recount(self.allocator)
        stats = self.allocator.stats()
        for name in NAMES:
            now = {kind: counts[name, kind] for kind in ("small_pool", "large_pool")}
            now["all"] = sum(now.values())
            for kind, current in now.items():
                stat = stats[name][kind]
                assert stat["current"] == current, (name, kind)
                assert stat["allocated"] - stat["freed"] == current, (name, kind)
                assert stat["allocated"] >= 0, (name, kind)
                assert stat["freed"] >= 0, (name, kind)
                self.peaks[name, kind] = max(self.peaks[name, kind], current)
                if name in {"allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes", "segment"}:
                    assert stat["peak"] == self.peaks[name, kind], (name, kind)
                else:  # rises and falls within a step too
                    assert stat["peak"] >= self.peaks[name, kind], (name, kind)
