"""Why one choice of allocator settings needs less memory than another, from how the model's memory lay at its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .allocator.trace import DEFER
from .units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .allocator.layout import Layout, Step
    from .allocator.replay import Replay
    from .allocator.settings import AllocatorSettings
    from .allocator.trace import Trace

_LITTLE = 0.05
"""A share of unallocated memory below which there is nothing to explain."""


def explain(
    reference: tuple[AllocatorSettings, Replay],
    best: tuple[AllocatorSettings, Replay] | None,
) -> str:
    """Return a few sentences on what is wrong with the recorded settings and what the best choice does about it.

    Args:
        reference: the recorded settings and what they came to, with the layout at the peak.
        best: the recommended settings and what they came to; `None` when nothing helps.
    """
    result = reference[1]
    ratio = result.unallocated_ratio or 0.0
    if best is None and ratio < _LITTLE:
        nothing = "Settings do not help" if result.ooms else "Nothing tried needs less"
        return (
            f"{nothing}: at the peak of {format_bytes(result.peak_reserved)} all but "
            f"{100 * ratio:.1f} % of the reserved memory was allocated."
        )
    said = [_what_is_wrong(result)] if result.layout is not None else []
    if result.layout is not None and result.step is not None:
        said.append(_what_led_there(result.step, result.layout))
    said.append(_what_helps(reference, best) if best is not None else "Nothing tried changes that.")
    return " ".join(said)


def notes_on_delays(trace: Trace, recorded: Replay | None) -> list[str]:
    """Say which delays of other streams were left out, and what the recorded run, if it is known, came to with them."""
    left_out = len(trace.prompt)
    if not left_out:
        return []
    waited = sum(kind == DEFER for _, kind, _ in trace.special)
    share = "all" if left_out == waited else f"{left_out:,}"
    note = (
        f"other streams delayed {waited:,} frees: {share} of these delays are exceptions among the frees of their "
        f"size, taken as chance and left out in every row, the recorded settings' included"
    )
    return [note if recorded is None else f"{note} (with them the peak was {format_bytes(recorded.peak_reserved)})"]


def note_on_the_start(trace: Trace, recorded: Replay | None) -> str:
    """Say what the recorded run began with and no row does, and what that run, if it is known, came to with it."""
    alive = sum(block[1] for block in trace.start)
    held, begins = (
        ("nothing was alive in them", "") if not alive else (f"{format_bytes(alive)} were alive", "these and ")
    )
    note = (
        f"{format_bytes(trace.reserved)} were reserved before the first recorded event, and {held}: every row, the "
        f"recorded settings' included, begins with {begins}an empty cache"
    )
    return note if recorded is None else f"{note} (the recorded run's peak was {format_bytes(recorded.peak_reserved)})"


def notes_on_numbers(
    trace: Trace, rows: list[tuple[AllocatorSettings, Replay]], limit: int | None, *, whole_card: bool
) -> list[str]:
    """Say what in the numbers looks wrong and is right, and what they leave out.

    Args:
        trace: the operations.
        rows: what was tried.
        limit: the cap in bytes, or `None`.
        whole_card: whether all of a card that was not the recorded one was taken as free.
    """
    notes = []
    if whole_card:
        notes.append(
            "all of the card is taken as PyTorch's; the CUDA context and libraries take some hundred MiB of a real one"
        )
    if limit is not None and any(result.peak_reserved > limit for _, result in rows):
        notes.append(
            "PyTorch holds a request's own segment size against the cap, but maps expandable segments in larger pages: "
            "it goes above the cap by up to a page, and so does the model"
        )
    if any(any(choice.roundup_power2_divisions) for choice, _ in rows[1:]):
        notes.append(
            "under roundup_power2_divisions the allocated peak may be some 0.1 % off: how much is left over in blocks "
            "that are not split depends on the driver's addresses, which a recording tells for its own settings only"
        )
    if trace.custom:
        count = len(trace.custom)
        whose = (
            "one private pool has an allocator of its own, which is"
            if count == 1
            else (f"{count} private pools have allocators of their own, which are")
        )
        notes.append(f"{whose} not expandable under any settings")
    return notes


def notes_on_chance(trace: Trace, peaks: Iterable[tuple[int, int]]) -> list[str]:
    """Say what the second of two reserved peaks of a choice is, if any differ."""
    if all(peak == otherwise for peak, otherwise in peaks):
        return []
    late = ", and where other streams are as late as they were when recorded" if trace.prompt else ""
    note = (
        f"a peak in brackets is what comes out where the driver hands out addresses in another order{late}: no "
        f"recording tells how that will be, and a real run may come to either or to something near them"
    )
    return [note]


def _when(event: int) -> str:
    return "before the first event" if event < 0 else f"at event {event:,}"


def _what_is_wrong(result: Replay) -> str:
    """Say what the memory that was not allocated consisted of: shares of one moment that add up."""
    layout = result.layout
    assert layout is not None  # noqa: S101 - the caller has looked
    # The share that is stated is the table's; what each part adds to it is rounded so that the sum is that.
    stated = round(1000 * (1 - layout.allocated / layout.reserved)) if layout.reserved else 0
    shares, total = [], 0
    parts = layout.parts
    for size in parts:
        before = _tenths(total, sum(parts), stated)
        total += size
        shares.append(_tenths(total, sum(parts), stated) - before)
    named = [
        f"{share / 10:.1f} % in {name} ({format_bytes(size)})"
        for share, name, size in zip(shares, _names(layout), parts, strict=True)
        if share
    ]
    when = _when(layout.step.event if layout.step else -1)
    return (
        f"{when[0].upper()}{when[1:]}, where reserved memory peaks at {format_bytes(layout.reserved)}, "
        f"{stated / 10:.1f} % of it is not allocated{': ' if named else ''}{_listed(named)}."
    )


def _tenths(size: int, whole: int, stated: int) -> int:
    return round(stated * size / whole) if whole else 0


def _names(layout: Layout) -> tuple[str, ...]:
    """Return what each of the layout's parts is."""
    segments = layout.segments
    low, high = (format_bytes(segments[0]), format_bytes(segments[-1])) if segments else ("", "")
    span = low if low == high else f"{low} to {high}"
    return (
        f"{len(segments):,} free segments of {span}" if len(segments) != 1 else f"a free segment of {span}",
        _counted(layout.gaps, "gap", "beside live blocks"),
        _counted(layout.pieces, "free piece", "of growing segments"),
        "what the last request left over",
        "freed blocks that another stream still uses",
    )


def _counted(count: int, what: str, where: str) -> str:
    return f"{count:,} {what}s {where}" if count != 1 else f"one {what} {where}"


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)


def _what_led_there(step: Step, layout: Layout) -> str:
    """Say for which request the last notable step was, and why what was free was no use for it."""
    request = f"of {format_bytes(step.request)}"
    first = (
        f"The request there, {request},"
        if layout.step is not None and step.event == layout.step.event
        else f"The last larger step up to it, {_when(step.event)}, was for a request {request}: it"
    )
    if not step.largest:
        return f"{first} found no free block of its pool and stream."
    if step.withheld:
        return f"{first} was not given any of the larger free blocks, which the settings keep for other requests."
    return f"{first} found no free block of its pool and stream above {format_bytes(step.largest)}."


def _what_helps(reference: tuple[AllocatorSettings, Replay], best: tuple[AllocatorSettings, Replay]) -> str:
    old, new = reference[0], best[0]
    before, after = reference[1], best[1]
    said = []
    if new.expandable_segments and not old.expandable_segments:
        grown = "one segment that grows" if after.segments == 1 else f"{after.segments} segments that grow"
        said.append(f"expandable segments make do with {grown}, in which freed neighbours join for larger requests")
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
