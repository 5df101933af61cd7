"""Why one choice of allocator settings needs less memory than another, from how the model's memory lay at its peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .allocator.blocks import FREE
from .allocator.replay import Conditions, player
from .allocator.trace import SPECIAL
from .units import format_bytes

if TYPE_CHECKING:
    from .allocator.model import Allocator
    from .allocator.replay import Replay
    from .allocator.settings import AllocatorSettings
    from .allocator.trace import Trace

_LITTLE = 0.05
"""A share of unallocated memory below which there is nothing to explain."""


@dataclass(frozen=True, slots=True)
class _Peak:
    """How memory lay when reserved memory was about to reach its peak."""

    request: int
    whole: tuple[int, ...]
    gaps: int
    gap_bytes: int


def explain(
    trace: Trace,
    conditions: Conditions,
    reference: tuple[AllocatorSettings, Replay],
    best: tuple[AllocatorSettings, Replay] | None,
) -> str:
    """Return one or two sentences on what is wrong with the recorded settings and what the best choice does about it.

    Args:
        trace: the operations.
        conditions: the device they were replayed on.
        reference: the recorded settings and what they came to.
        best: the recommended settings and what they came to; `None` when nothing helps.
    """
    ratio = reference[1].unallocated_ratio or 0.0
    if best is None and ratio < _LITTLE:
        return (
            f"Nothing tried needs less: at the peak of {format_bytes(reference[1].peak_reserved)} all but "
            f"{100 * ratio:.1f} % of the reserved memory was allocated."
        )
    first = _what_is_wrong(_at_peak(trace, conditions, *reference), reference[1])
    return f"{first} {_what_helps(reference, best) if best is not None else 'Nothing tried changes that.'}"


def _at_peak(trace: Trace, conditions: Conditions, settings: AllocatorSettings, result: Replay) -> _Peak:
    """Play up to the request that raised reserved memory to its peak, and look around."""
    number = result.peak_at - len(trace.start)
    run = player(trace, settings, conditions)
    run.start()
    request = trace.start[result.peak_at][1] if 0 <= result.peak_at < len(trace.start) else 0
    if number >= 0:
        allocations = (at for at, op in enumerate(trace.ops) if 0 <= op < SPECIAL)
        position = next((at for count, at in enumerate(allocations) if count == number), len(trace.ops))
        run.run(position)
        request = trace.requests[trace.ops[position]][0] if position < len(trace.ops) else 0
    return _look(run.allocator, request)


def _look(allocator: Allocator, request: int) -> _Peak:
    free = [block for block in allocator.blocks.values() if block.state == FREE]
    gaps = [block.size for block in free if block.is_split]
    return _Peak(request, tuple(sorted(b.size for b in free if not b.is_split)), len(gaps), sum(gaps))


def _what_is_wrong(peak: _Peak, result: Replay) -> str:
    parts = []
    if peak.whole:
        low, high = format_bytes(peak.whole[0]), format_bytes(peak.whole[-1])
        span = f"of {low}" if low == high else f"of {low} to {high}"
        count = f"{len(peak.whole)} free segments {span}" if len(peak.whole) > 1 else f"a free segment {span}"
        parts.append(f"{count} ({format_bytes(sum(peak.whole))})")
    if peak.gaps:
        parts.append(f"{peak.gaps} gaps between live blocks ({format_bytes(peak.gap_bytes)})")
    ratio = result.unallocated_ratio or 0.0
    lay = " and ".join(parts) or "nothing that was free"
    return (
        f"At the reserved peak of {format_bytes(result.peak_reserved)}, {100 * ratio:.1f} % was not allocated: {lay} "
        f"could not serve a request of {format_bytes(peak.request)}."
    )


def _what_helps(reference: tuple[AllocatorSettings, Replay], best: tuple[AllocatorSettings, Replay]) -> str:
    old, new = reference[0], best[0]
    before, after = reference[1], best[1]
    said = []
    if new.expandable_segments and not old.expandable_segments:
        grown = "one segment" if after.segments == 1 else f"{after.segments} segments"
        said.append(f"expandable segments grow {grown} instead, so that freed neighbours join for larger requests")
    if old.expandable_segments and not new.expandable_segments:
        said.append(f"separate segments ({after.segments} of them) leave fewer gaps here than growing ones")
    if new.max_split_size is not None and new.max_split_size != old.max_split_size:
        said.append(f"blocks from {format_bytes(new.max_split_size)} on stay whole for requests of their own size")
    if new.roundup_power2_divisions != old.roundup_power2_divisions and any(new.roundup_power2_divisions):
        more = after.peak_allocated - before.peak_allocated
        said.append(f"rounded sizes fit each other's blocks, for {format_bytes(max(0, more))} more allocated")
    if new.garbage_collection_threshold and not old.garbage_collection_threshold:
        said.append(f"segments long unused are given back early ({after.device_frees} driver frees)")
    if new.large_segment_size != old.large_segment_size:
        said.append(f"requests below 10 MiB share segments of {format_bytes(new.large_segment_size)}")
    if old.max_split_size is not None and new.max_split_size is None:
        said.append("large blocks may be split again, and serve smaller requests")
    text = "; ".join(said) or f"with {str(new) or 'the default settings'} less is left over"
    failures = f", with {after.ooms} failed requests instead of {before.ooms}" if after.ooms < before.ooms else ""
    return f"{text[0].upper()}{text[1:]}: the peak is {format_bytes(after.peak_reserved)}{failures}."
