"""Explaining an out-of-memory error: text and state in, one record out."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.arguments import shown
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.devices import lost_context
from jupyter_gpumem.errors import GpumemError, InvalidValueError, UnavailableError
from jupyter_gpumem.fragments import fragmentation
from jupyter_gpumem.holding import leaving_nothing, survey
from jupyter_gpumem.incidents import EXPLANATION, last_oom, note_oom, tell_reason
from jupyter_gpumem.notebook import Notebook
from jupyter_gpumem.recorder import RECORDER
from jupyter_gpumem.records import Holder, OomExplanation, OomIncident, OomText
from jupyter_gpumem.units import format_bytes

from . import observer, verdicts
from .advice import EXPANDABLE, RELEASED, Advisor, Place
from .building import nameless
from .numbers import numbers
from .pinning import pins
from .shapes import frame_place, guess_shape
from .texts import find_oom, parse

if TYPE_CHECKING:
    from .observer import OomState

_MOST_HOLDERS = 3
_MOST_EVENTS = 200_000
"""Longer recordings are not replayed while the user waits for an error; `%gpumem_whatif` does it."""

_INTERRUPTED = "The search for who holds the memory was interrupted; %gpumem_who says who does now"
_LATER = "Who held the memory was not looked for then; %gpumem_who says who does now"

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
        unsearched = None if search else _INTERRUPTED
        with leaving_nothing():
            known = _explain(text, _state(text), cause, released=released, unsearched=unsearched, margin=margin)
        # Not before: an explanation that was interrupted can begin again.
        if not _was_overtaken(text):
            observer.forget()
        vars(cause)[EXPLANATION] = known  # also where a class does not let attributes be set
        note_oom(known)
    tell_reason(error, known, handled)
    return known


def _state(text: OomText) -> tuple[OomState, str] | None:
    """Return the state that belongs to an error, and when it was seen."""
    kept = observer.last_state()
    if kept is not None and observer.belongs(kept, text):
        return kept, "when it happened"
    if text.family == "host" or text.platform not in {"cuda", "hip", "xpu"}:
        return None
    now = observer.capture("xpu" if text.platform == "xpu" else "cuda", text.device or 0)
    return None if now is None or text.requested is None else (now, "afterwards")


def _was_overtaken(text: OomText) -> bool:
    """Whether memory has run out again since an error with this text was raised."""
    kept = observer.last_state()
    # PyTorch tells of every error of this kind, so that the state of another one is a later one.
    told = text.family == "allocator" and text.platform in {"cuda", "hip"}
    return kept is not None and told and not observer.belongs(kept, text)


def latest_oom() -> OomIncident | None:
    """Return the latest out-of-memory error of this process, or `None`.

    In a notebook also one that ended no cell, which nobody has seen therefore: it is explained by what was kept of it.
    """
    state = observer.last_state()
    if state is None or Notebook.current().shell is None:
        return last_oom()
    known = observer.incident(state)
    if known is None:
        known = OomIncident(_explain_unseen(state), state.time, came=state.came)
        observer.note_incident(state, known)
    return known


def _explain_unseen(state: OomState) -> OomExplanation:
    """Explain a state without its error, and without a search: who holds memory now may not have held it then."""
    counters, kind = state.counters, state.device.kind
    text = OomText(
        "allocator",
        kind,
        requested=state.tried,
        device=state.device.index,
        total=state.device.total,
        free=state.free,
        limit=state.limit,
        allocated=counters.allocated,
        unallocated=None if counters.reserved is None else counters.reserved - (counters.allocated or 0),
    )
    found = _explain(text, (state, "when it happened"), None, unsearched=_LATER)
    how = f"It ended no cell: it was {state.came}"
    place = [] if state.failed_in is None else [f"It failed in {state.failed_in}"]
    return replace(found, details=(how, *place, *found.details))


def _explain(
    text: OomText,
    seen: tuple[OomState, str] | None,
    error: BaseException | None,
    *,
    released: bool = False,
    unsearched: str | None = None,
    margin: float = 0,
) -> OomExplanation:
    """Explain an error.

    Args:
        text: what it says.
        seen: the state, and when it was seen.
        error: the error itself, where it is at hand.
        released: as for `explain_error`.
        unsearched: why nobody looks for who holds the memory, in a sentence without a full stop; `None` to look.
        margin: as for `explain_error`.
    """
    search = unsearched is None
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
            details += pins(state, found)
        if books is not None and when == "when it happened":
            details += nameless(state.counters.allocated, books, error)
        staying = [h for h in holders if not (released and h.kind in RELEASED)]
        if staying:
            named = ", ".join(f"{_name(h)} {format_bytes(h.allocated)}" for h in staying[:_MOST_HOLDERS])
            details.append(f"The largest holders: {named}")
    if unsearched is not None:
        details.append(unsearched)
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
