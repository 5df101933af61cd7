"""Explaining an out-of-memory error: text and state in, one record out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.arguments import shown
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.devices import lost_context
from jupyter_gpumem.errors import GpumemError, InvalidValueError, UnavailableError
from jupyter_gpumem.fragments import fragmentation
from jupyter_gpumem.holding import Survey, leaving_nothing, survey
from jupyter_gpumem.incidents import EXPLANATION, note_oom, tell_reason
from jupyter_gpumem.notebook import Notebook
from jupyter_gpumem.recorder import RECORDER
from jupyter_gpumem.records import Holder, OomExplanation, OomText
from jupyter_gpumem.units import format_bytes

from . import observer, verdicts
from .advice import EXPANDABLE, RELEASED, Advisor, Place
from .numbers import numbers
from .shapes import frame_place, guess_shape
from .texts import find_oom, parse

if TYPE_CHECKING:
    from jupyter_gpumem.holding.books import Ledger

    from .observer import OomState

_MOST_PINS = 4
_MOST_HOLDERS = 3
_SAME = 0.01
_MOST_EVENTS = 200_000
"""Longer recordings are not replayed while the user waits for an error; `%gpumem_whatif` does it."""

_FAMILIES = {
    "driver": "The driver ran out of memory outside PyTorch's allocator, which has no numbers to it",
    "library": "A library (cuBLAS, cuDNN, NCCL, ...) found no memory for itself outside PyTorch's allocator",
    "assert": "PyTorch's allocator ran out of memory and then failed to say so: it asks the driver about processes, "
    "which this device (a MIG slice, often) refuses",
    "bare": "The error says no more than that memory ran out: it was raised by hand, or its text was shortened",
    "host": "The main memory is full, not the GPU's",
}


def explained(error: BaseException) -> OomExplanation | None:
    """Return the explanation that an error already carries."""
    found = find_oom(error)
    return None if found is None else getattr(found[0], EXPLANATION, None)


def explain_oom(error: BaseException | str | None = None) -> OomExplanation | None:
    """Return why memory ran out and what would help here; `None` if an error is not about memory.

    The state is what PyTorch's allocator had when it failed, where that was kept: in a notebook with the extension, and
    inside `gm.retry_on_oom`. Otherwise it is what there is now, or what the text says. The error keeps the result, and
    `gm.status()` names the last one.

    Args:
        error: the error, one that was raised from it, or its text; the last error of the session if `None`.

    Raises:
        UnavailableError: no error is given, and there was none.
        InvalidValueError: it is neither an error nor a text.
    """
    if isinstance(error, str):
        text = parse(error)
        return None if text is None else _explain(text, None, None)
    if error is None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is None:
            raise UnavailableError("there was no error in this session; hand one over: gm.explain_oom(error)")
    if not isinstance(error, BaseException):
        raise InvalidValueError(f"expected an error or its text, got {shown(error)}; write gm.explain_oom(error)")
    return explain_error(error)


def explain_error(
    error: BaseException,
    *,
    released: bool = False,
    handled: BaseException | None = None,
    search: bool = True,
    margin: float = 0,
) -> OomExplanation | None:
    """Return why memory ran out, and keep it with the error and as the last one; `None` for other errors.

    Args:
        error: the error, or one that was raised from it.
        released: whether the caller lets go of the error's frames and of garbage right afterwards.
        handled: what was being handled already when the code began that raised it.
        search: whether to look for who holds the memory, and to replay a recording: what may take seconds.
        margin: the share of each card that the caller keeps free by a cap; 0 if the cap in force is not the caller's.
    """
    found = find_oom(error, handled)
    if found is None:
        return None
    cause, text = found
    del found  # or the search would take it for one who holds the error, whose frames it looks for
    known: OomExplanation | None = getattr(cause, EXPLANATION, None)
    if known is None:
        with leaving_nothing():
            known = _explain(text, _state(text), cause, released=released, search=search, margin=margin)
        observer.forget()  # not before: an explanation that was interrupted can begin again
        vars(cause)[EXPLANATION] = known  # also where a class does not let attributes be set
        note_oom(known)
    tell_reason(error, known, handled)
    return known


def _state(text: OomText) -> tuple[OomState, str] | None:
    """Return the state that belongs to an error, and when it was seen."""
    kept = observer.last_state()
    if kept is not None and _belongs(kept, text):
        return kept, "when it happened"
    if text.family == "host" or text.platform not in {"cuda", "hip", "xpu"}:
        return None
    now = observer.capture("xpu" if text.platform == "xpu" else "cuda", text.device or 0)
    return None if now is None or text.requested is None else (now, "afterwards")


def _belongs(state: OomState, text: OomText) -> bool:
    if text.requested is None or state.tried is None:
        return text.family == "allocator"
    near = abs(text.requested - state.tried) <= max(_SAME * state.tried, 1)
    return near and text.device in {None, state.device.index}


def _explain(
    text: OomText,
    seen: tuple[OomState, str] | None,
    error: BaseException | None,
    *,
    released: bool = False,
    search: bool = True,
    margin: float = 0,
) -> OomExplanation:
    state, when = seen if seen is not None else (None, "in the text only")
    n = numbers(text, state)
    if text.family in _FAMILIES:
        kind = {"host": "host", "driver": "outside", "library": "outside"}.get(text.family, "unclear")
        said = _FAMILIES[text.family]
    else:
        kind = verdicts.verdict(n)
        largest = None
        if state is not None and state.segments is not None:
            largest = fragmentation(state.segments).largest_free
        said = verdicts.sentence(kind, n, largest)
    notebook = Notebook.current(error)
    found = survey(notebook) if search and state is not None and lost_context() is None else None
    holders: tuple[Holder, ...] = ()
    details: list[str] = []
    if found is not None and state is not None:
        books = next((d for d in found.record().devices if d.device.label == state.device.label), None)
        holders = books.holders if books is not None else ()
        if kind == "fragmentation":
            details += _pins(state, found)
        staying = [h for h in holders if not (released and h.kind in RELEASED)]
        if staying:
            named = ", ".join(f"{_name(h)} {format_bytes(h.allocated)}" for h in staying[:_MOST_HOLDERS])
            details.append(f"The largest holders: {named}")
    if not search:
        details.append("The search for who holds the memory was interrupted; %gpumem_who says who does now")
    details[:0] = _failed_at(error, n.request if kind == "absurd request" else None)
    trouble = observer.problem()
    if trouble is not None:
        details.append(f"The state could not be kept when it happened: {trouble}")
    advisor = Advisor(
        kind,
        n,
        state,
        found,
        _replayed(state) if search and state is not None and kind == "fragmentation" else None,
        Place(notebook.shell is not None, released, margin),
    )
    if released and (size := advisor.released()):
        details.append(f"What only the failed cell and garbage held is given back now: {format_bytes(size)}")
    return OomExplanation(
        verdict=kind,
        sentence=said,
        text=text,
        device=state.device.label if state is not None else None,
        evidence=verdicts.evidence(n) if text.family == "allocator" else (),
        details=tuple(details),
        actions=advisor.actions(holders) if text.family == "allocator" else (),
        seen=when,
    )


def _failed_at(error: BaseException | None, request: int | None) -> list[str]:
    """Say in which line an error was raised, and of which tensor the bytes are that were asked for."""
    if error is None:
        return []
    place = frame_place(error)
    shape = guess_shape(error, request) if request is not None else None
    return [*([f"It failed in {place}"] if place is not None else []), *([shape] if shape is not None else [])]


def _name(holder: Holder) -> str:
    return f"the autograd graph of {holder.name}" if holder.kind == "graph" else holder.name


def _pins(state: OomState, found: Survey) -> list[str]:
    """Say which large free blocks there are, and what lives beside them in the same segment."""
    ledger = found.ledgers[state.device.label][2] if state.device.label in found.ledgers else None
    split = []
    for segment in state.segments or ():
        free = max((b["size"] for b in segment["blocks"] if b["state"] == "inactive"), default=0)
        live = [b for b in _placed(segment) if b[1]["state"] != "inactive"]
        if free and live:
            split.append((free, segment["total_size"], live))
    split.sort(key=lambda entry: -entry[0])
    said = []
    for free, total, live in split[:1]:
        size = sum(block["size"] for _, block in live)
        names = _who(ledger, found, [address for address, _ in live]) if ledger is not None else []
        by = f": {', '.join(names)}" if names else ""
        said.append(
            f"The largest free block, {format_bytes(free)}, lies in a segment of {format_bytes(total)} that is pinned "
            f"by {len(live)} live blocks ({format_bytes(size)}){by}"
        )
    if len(split) > 1:
        loose = sum(free for free, _, _ in split)
        said.append(f"{len(split)} segments are split like that, with {format_bytes(loose)} in their largest gaps")
    return said


def _placed(segment: dict) -> list[tuple[int, dict]]:  # type: ignore[type-arg]
    address, found = segment["address"], []
    for block in segment["blocks"]:
        address = block.get("address", address)
        found.append((address, block))
        address += block["size"]
    return found


def _who(ledger: Ledger, found: Survey, addresses: list[int]) -> list[str]:
    from jupyter_gpumem.holding.books import reservation_name, storage_holders

    names: dict[str, None] = {}
    for address in addresses:
        storage = ledger.storages.get(address)
        if storage is not None:
            root = next(iter(storage_holders(found.ranking, storage)))
            names[found.ranking.roots[root].name] = None
        elif address in ledger.reservations:
            names[reservation_name(ledger.reservations[address])] = None
    return [*list(names)[:_MOST_PINS], *(["..."] if len(names) > _MOST_PINS else [])]


def _replayed(state: OomState) -> str | None:
    """Return the settings with which a replay of the running recording gets through; `None` if there are none."""
    try:
        recording = RECORDER.recording()
        events = len(recording.events(state.device.index))
        if not 0 < events <= _MOST_EVENTS:
            return None
        result = whatif(recording, _candidates(recording.settings), device=state.device.index)
    except GpumemError:
        return None  # nothing was recorded, or it cannot be replayed: then the state alone has to do
    if not result.check.exact or result.results[0].ooms == 0:
        return None
    good = [row for row in result.results[1:] if row.ooms == 0 and not row.warnings]
    return min(good, key=lambda row: row.peak_reserved).settings if good else None


def _candidates(settings: AllocatorSettings) -> list[str]:
    tried = (EXPANDABLE, "max_split_size_mb:512", "max_split_size_mb:128", "roundup_power2_divisions:8")
    return [text for text in tried if AllocatorSettings.parse(text) != settings]
