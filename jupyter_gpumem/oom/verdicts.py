"""Why memory ran out: one verdict from the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.units import format_bytes

from .numbers import CONTEXT, NOTABLE

if TYPE_CHECKING:
    from .numbers import Numbers

_NEARLY_ALL = 0.9
"""A single request for this share of the card is absurd."""

_NOTABLE_SHARE = 0.05
"""Less than this share of the reserved memory is always loose: a card that is full is full, not fragmented."""

_MOSTLY = 0.5
_MUCH = 0.2


def verdict(n: Numbers) -> str:
    """Return the reason: see `OomExplanation.verdict`."""
    request, total = n.request, n.total
    if request is None:  # PyTorch says `more than 1EB` then
        return "absurd request"
    if total is not None and request > _NEARLY_ALL * total and not _the_cap_alone(n):
        return "absurd request"
    if _the_cap_alone(n):
        return "cap"
    if n.oversubscribed:
        return "too much"
    if _unclear(n):
        return "unclear"
    capacity = n.limit or total
    if n.private and capacity is not None and n.private > _MOSTLY * capacity:
        return "private pools"
    fragmented = _fragmented(n)
    others = n.others if n.others is not None else max(0, (n.elsewhere or 0) - CONTEXT)
    outside = max(0, (n.outside or 0) - CONTEXT)
    largest = max(others, outside, n.unallocated if fragmented else 0)
    enough = max(n.short or 0, NOTABLE)
    if fragmented and largest == n.unallocated:
        return "fragmentation"
    if others >= enough and others == largest and (total is None or others > _MUCH * total):
        return "others"
    if outside >= enough and outside == largest and (total is None or outside > _MUCH * total):
        return "outside"
    return "fragmentation" if fragmented else "too much"


def _unclear(n: Numbers) -> bool:
    """Whether the driver refused although it had enough, or nothing was told of what was there."""
    if n.request is not None and n.free is not None and n.limit is None and n.request <= n.free:
        return True
    return n.room is None and not n.allocated_known


def _the_cap_alone(n: Numbers) -> bool:
    """Whether the driver had enough, and only the cap was in the way; as told, where it does not say what it had."""
    if n.limit is None or n.request is None or (n.total is not None and n.limit >= n.total):
        return False
    exceeded = n.reserved + n.request > n.limit or not n.allocated_known
    return (n.free is None or n.request <= n.free) and exceeded and not _fragmented(n)


def _fragmented(n: Numbers) -> bool:
    """Whether enough was reserved and free, but in no block that was large enough."""
    loose = n.unallocated - n.private_free
    if n.request is None or n.room is None or loose < _NOTABLE_SHARE * n.reserved:
        return False
    return n.room < n.request <= loose + n.room


def sentence(kind: str, n: Numbers, largest: int | None) -> str:
    """Return a verdict in one sentence.

    Args:
        kind: the verdict.
        n: the numbers.
        largest: bytes of the largest free block, when known.
    """
    request, short = format_bytes(n.request), format_bytes(n.short)
    if kind == "others":
        whose = f"process {n.pid}" if n.pid is not None else "other processes"
        size = n.others if n.others is not None else n.elsewhere
        return f"{format_bytes(size)} of the card belong to {whose}, not to this process; {short} were missing"
    if kind == "cap":
        has = f" and has {format_bytes(n.reserved)}" if n.allocated_known else ""
        meanwhile = f" while {format_bytes(n.free)} of the card were free" if n.free is not None else ""
        may = f"this process may reserve {format_bytes(n.limit)}{has}"
        return f"A cap is in force: {may}, so that {request} more were refused{meanwhile}"
    if kind == "fragmentation":
        block = f", and the largest free block was {format_bytes(largest)}" if largest is not None else ""
        return (
            f"Fragmentation: {format_bytes(n.unallocated)} were reserved but not allocated, more than the {short} that "
            f"were missing for {request}{block}"
        )
    if kind == "private pools":
        return (
            f"{format_bytes(n.private)} lie in private pools (CUDA graphs, torch.compile, MemPool), which serve nobody "
            f"else; {short} were missing for {request}"
        )
    if kind == "outside":
        return (
            f"{format_bytes(n.outside)} of this process lie outside PyTorch's allocator (context, libraries such as "
            f"NCCL or cuDNN, other frameworks); {short} were missing for {request}"
        )
    if kind == "absurd request":
        asked = request if n.request is not None else "more than 1 EiB"
        where = f" on a card of {format_bytes(n.total)}" if n.total is not None else ""
        return f"One request of {asked}{where}: no setting helps, the tensor itself is the mistake"
    if kind == "unclear" and n.free is None:
        return f"The allocator had no room for {request}, and the text does not say what was there"
    if kind == "unclear":
        return (
            f"The driver refused {request} although {format_bytes(n.free)} of the card were free: a cap that the text "
            "does not name, a container's or host memory's limit, or pages that the system moved away"
        )
    if n.oversubscribed:
        return (
            f"Too much: {format_bytes(n.allocated)} are allocated on a card of {format_bytes(n.total)}; "
            f"{format_bytes(n.oversubscribed)} of it are in main memory, where the driver moved them"
        )
    missing = f"{short} were missing" if n.short is not None else "nobody can tell how much was missing"
    return f"Too much for the card: {format_bytes(n.allocated)} are allocated, and {missing} for {request}"


def evidence(n: Numbers) -> tuple[tuple[str, int], ...]:
    """Return the numbers that a verdict rests on, in a fixed order, without those that say nothing."""
    entries = (
        ("requested", n.request),
        ("free on the card", n.free),
        ("card", n.total),
        ("cap", n.limit),
        ("allocated by tensors", n.allocated if n.allocated_known else None),
        ("reserved, unallocated", n.unallocated if n.unallocated_known else None),
        ("private pools", n.private or None),
        ("this process outside PyTorch", n.outside),
        ("other processes", n.others),
        ("outside PyTorch and others", n.elsewhere),
    )
    return tuple((name, size) for name, size in entries if size is not None)
