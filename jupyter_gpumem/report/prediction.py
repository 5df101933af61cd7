"""A prediction as sheets: what the peak consists of, then where it fits, then what to know about both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpumem.units import format_bytes, format_delta, format_seconds

from .sheet import Sheet

if TYPE_CHECKING:
    from jupyter_gpumem.records import BatchSearch, Fit, PredictedUse, Prediction

_MOST_PLACEHOLDERS = 5
_IF = "if decisions fall as assumed"
_HOW_SURE = (
    "Nothing was computed, and what the code did is undone. Modelled: PyTorch's allocator, the temporaries of kernels "
    "and the workspaces of libraries. Assumed: a process of its own on an otherwise empty card. Not known: memory that "
    "other libraries (NCCL, cuDNN's own) take outside PyTorch's allocator."
)


def prediction_sheets(prediction: Prediction) -> list[Sheet]:
    """Return one sheet for each device, and one for the cards."""
    sheets = [_use_sheet(use, prediction) for use in prediction.devices]
    return [*sheets, _fits_sheet(prediction)]


def _use_sheet(use: PredictedUse, prediction: Prediction) -> Sheet:
    open_ = (_IF,) if prediction.decisions else ()
    heading = (
        use.device.label,
        f"prediction as on a {use.device.name}",
        *open_,
        format_seconds(prediction.seconds),
    )
    peak, way = use.peak_allocated, _way(prediction.decisions)
    if not peak:
        return Sheet(heading, notes=(*way, "It allocates nothing on the GPU."))
    rows = [(name, format_bytes(size), f"{100 * size / peak:.1f} %") for name, size in use.parts]
    rows += [("peak allocated", format_bytes(peak), ""), ("peak reserved", format_bytes(use.peak_reserved), "")]
    bar = tuple(size / peak for _, size in use.parts)
    notes = [*way, _place(use)]
    if use.start_allocated:
        notes.append(f"{format_bytes(use.start_allocated)} of it was there before, and counts to the end.")
    return Sheet(heading, (), tuple(rows), tuple(notes), bar)


def _way(decisions: tuple[str, ...]) -> list[str]:
    """Return what to know first where the way that the code went is not sure."""
    if not decisions:
        return []
    more = len(decisions) - 1
    others = f" (and {more} more place{'s' * (more > 1)})" if more else ""
    return [f"The peak is that of the way the code went, and another may need much more; {decisions[0]}{others}."]


def _place(use: PredictedUse) -> str:
    if use.phase == "before the cell":
        return "The peak is what was there before."
    during = f", in the {use.phase}" if use.phase else ""
    if use.line is None:
        return f"The peak is in code of others{during}."
    return f"The peak is at line {use.line}{during}" + (f": {use.text}" if use.text else ".")


def _fits_sheet(prediction: Prediction) -> Sheet:
    batch = prediction.batch
    columns = ["PyTorch sees", "usable", "peak reserved", "left", "fits"]
    if batch is not None:
        columns.append(f"largest {batch.name}")
    rows = tuple(
        (
            fit.gpu,
            format_bytes(fit.total),
            format_bytes(fit.usable),
            format_bytes(fit.peak_reserved),
            format_delta(fit.left) if fit.left < 0 else format_bytes(fit.left),
            _verdict(fit),
            *((_largest(fit),) if batch is not None else ()),
        )
        for fit in prediction.fits
    )
    fitting = sum(fit.fits for fit in prediction.fits)
    count = len(prediction.fits)
    heading = (
        "Fits" if fitting == count == 1 else "Does not fit" if not fitting else f"Fits on {fitting} of {count} cards"
    )
    if count > 1 and not fitting:
        heading = f"Fits on none of {count} cards"
    if prediction.decisions:
        heading += f", {_IF}"
    return Sheet((heading,), tuple(columns), rows, tuple(_notes(prediction)))


def _verdict(fit: Fit) -> str:
    if fit.fits:
        return "yes" if not fit.retries else f"yes, {fit.retries} cache flush{'es' if fit.retries > 1 else ''}"
    return "no" if fit.line is None else f"no, line {fit.line}"


def _largest(fit: Fit) -> str:
    if fit.largest_batch is None:
        return "-"
    if fit.largest_is_exact:
        return f"{fit.largest_batch:,}" if fit.largest_batch else "not even 1"
    if fit.largest_estimate is not None:
        return f"about {fit.largest_estimate:,}"
    return f"{fit.largest_batch:,} or more" if fit.largest_batch else "not found"


def _notes(prediction: Prediction) -> list[str]:
    notes = ["Usable is what PyTorch sees less the CUDA context; left is that less the peak reserved."]
    if prediction.smallest is not None:
        notes.append(f"The smallest card known that it fits on is the {prediction.smallest}.")
    replayed = [fit for fit in prediction.fits if not fit.ran]
    if replayed:
        name = (prediction.devices[0].device.name or "").removeprefix("virtual ") if prediction.devices else ""
        rows = "The rows" if len(replayed) == len(prediction.fits) else "The other rows"
        notes.append(
            f"{rows} replay what was allocated as on the {name}, with their own memory and workspaces; "
            "name a card with --gpu to run the code as on it."
        )
    if prediction.batch is not None:
        notes += _about_batch(prediction.batch)
        if any(_largest(fit).startswith("about") for fit in prediction.fits):
            notes.append("About: not tried, but reckoned from what was; --runs N allows for more runs.")
    shown = prediction.placeholders[:_MOST_PLACEHOLDERS]
    notes += [f"Placeholder: {text}." for text in shown]
    if len(prediction.placeholders) > len(shown):
        notes.append(f"{len(prediction.placeholders) - len(shown)} more places where a value was assumed.")
    notes += [f"Not undone: {text}." for text in prediction.not_undone]
    if prediction.unwatched:
        notes.append(
            f"Too large to be watched to the end: {', '.join(prediction.unwatched)}; the code names none of it."
        )
    if prediction.unsaved:
        notes.append(f"Not written: {', '.join(prediction.unsaved)}.")
    notes.append(_HOW_SURE)
    return notes


def _about_batch(batch: BatchSearch) -> list[str]:
    times = f"{batch.runs} of at most {batch.limit} runs" if batch.runs > 1 else "1 run"
    notes = [
        (
            f"{batch.name} is {batch.value:,} here; the largest was found by trying, in {times}, taking for granted "
            "that a larger one needs no less."
        )
    ]
    if batch.stopped is not None:
        notes.append(f"No larger {batch.name} was tried: {batch.stopped}.")
    return notes
