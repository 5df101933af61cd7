"""Letting go of what the notebook itself holds, step by step; the user's own variables are never touched."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from .arguments import check_flag
from .devices import check_context, give_back_everywhere, ready_devices
from .fragments import fragmentation
from .holding import leaving_nothing, survey
from .notebook import Notebook
from .records import Released, ReleaseStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from .holding import Survey
    from .records import Holder

_MOST_KEPT = 5


@leaving_nothing()
def free(
    *,
    errors: bool = True,
    outputs: bool = True,
    cycles: bool = True,
    cache: bool = True,
    dry_run: bool = False,
    notebook: Notebook | None = None,
) -> Released:
    """Release what the notebook holds besides your variables, and return what each step gave back, in bytes.

    In this order: the last error's frames, displayed outputs that hold device memory, reference cycles, and then the
    allocator's unused cache.

    Args:
        errors: whether to let go of the last error; `%debug` and `%tb` have nothing to show afterwards.
        outputs: whether to forget displayed values that hold device memory, in every place; others stay.
        cycles: whether to run the cycle collector.
        cache: whether to give unused cached memory back to the driver.
        dry_run: do nothing, and say what would come back.
        notebook: whose; the session of this process if `None`.

    Raises:
        InvalidValueError: a flag is neither `True` nor `False`, or the notebook is none.
        UnavailableError: the CUDA context is lost: freeing a tensor could end the process.
    """
    flags = {"errors": errors, "outputs": outputs, "cycles": cycles, "cache": cache, "dry_run": dry_run}
    for name, flag in flags.items():
        check_flag(name, flag)
    check_context()
    notebook = Notebook.current() if notebook is None else notebook  # `survey` refuses what is none
    wanted = (errors, outputs, cycles, cache)
    if dry_run:
        return _rehearsal(notebook, wanted)
    names, kept_errors, complete = _found(notebook, outputs=outputs)
    steps: list[ReleaseStep] = []

    def take(step: str, what: str, act: Callable[[], object], already: tuple[int, int] = (0, 0)) -> None:
        returned = _returned(act)
        steps.append(ReleaseStep(step, what, returned[0] + already[0], returned[1] + already[1]))

    def let_go_of_error() -> None:
        notebook.drop_error(kept_errors)
        kept_errors.clear()
        gc.collect()  # IPython's traceback leaves the frames it has shown in cycles (`FrameInfo` and its `Line`s)

    # What was garbage before is not the error's: it is swept first, and counted where it belongs.
    swept = _returned(gc.collect) if cycles else (0, 0)
    if errors and (what := _error_text(notebook)):
        take("last error", what, let_go_of_error)
    kept_errors.clear()
    if outputs and names:
        take("outputs", ", ".join(names), lambda: notebook.drop_outputs(names))
    if cycles:
        take("cycles", "garbage in reference cycles", gc.collect, swept)
    if cache:
        take("unused cache", "segments without live tensors", give_back_everywhere)
    allocated, reserved = _levels()
    return Released(
        tuple(steps),
        rehearsal=False,
        allocated=allocated,
        reserved=reserved,
        kept=_kept(survey(notebook)),
        notes=(*_notes(notebook, errors=errors), *(() if complete else (_INCOMPLETE,))),
    )


def _found(notebook: Notebook, *, outputs: bool) -> tuple[list[str], list[BaseException], bool]:
    """Return the outputs that hold device memory, the exceptions that others hold too, and whether that is all.

    Others are the user's variables, modules, and whoever else but the session itself; and the outputs that stay.
    A search that ended at its budget may not have come to who holds an exception: then it counts as held.
    """
    found = survey(notebook)
    walk, roots = found.ranking.walk, found.ranking.roots
    names = _outputs(found)
    if not found.complete:
        return names, notebook.exceptions(), False
    going = {*names} if outputs else set()
    others = (root for root in roots if root.kind not in {"error", "cycle"} and root.name not in going)
    held = walk.reachable(number for root in others for number in root.items)
    return names, [error for error in notebook.exceptions() if walk.number(error) in held], True


def _outputs(found: Survey) -> list[str]:
    """Return the names of the outputs that hold device memory."""
    ranking = found.ranking
    return [
        root.name
        for index, root in enumerate(ranking.roots)
        if root.kind == "output" and any(index in ranking.holders(number) for number in root.items)
    ]


def _error_text(notebook: Notebook) -> str | None:
    errors = notebook.exceptions()
    if not errors and not notebook.tracebacks():
        return None
    text = type(errors[0]).__name__ if errors else "an error"
    return f"{text} and {len(errors) - 1} chained to it" if len(errors) > 1 else text


def _returned(act: Callable[[], object]) -> tuple[int, int]:
    """Return the allocated and reserved bytes that came back while something was done."""
    allocated, reserved = _levels()
    act()
    now = _levels()
    return allocated - now[0], reserved - now[1]


def _levels() -> tuple[int, int]:
    """Return allocated and reserved bytes of all devices in use."""
    allocated = reserved = 0
    for backend, index in ready_devices():
        stats = backend.stats(index)
        allocated += stats["allocated_bytes"]["all"]["current"]
        reserved += stats["reserved_bytes"]["all"]["current"]
    return allocated, reserved


def _rehearsal(notebook: Notebook, wanted: tuple[bool, bool, bool, bool]) -> Released:
    """Return what would come back. Each step's bytes are those that nothing but it and the steps before it hold."""
    errors, outputs, cycles, cache = wanted
    found = survey(notebook)
    names = _outputs(found)
    # Garbage is swept before anything else, here as there: it often holds the frames of an error that was shown.
    taken = {"cycle"} if cycles else set()
    garbage = before = found.held_only_by(taken)
    steps: list[ReleaseStep] = []

    def take(step: str, what: str, *kinds: str) -> None:
        nonlocal before
        taken.update(kinds)
        total = found.held_only_by(taken)
        steps.append(ReleaseStep(step, what, total - before, 0))
        before = total

    if errors and (what := _error_text(notebook)):
        take("last error", what, "error", "cycle")
    if outputs and names:
        take("outputs", ", ".join(names), "output")
    if cycles:
        steps.append(ReleaseStep("cycles", "garbage in reference cycles", garbage, 0))
    if cache:
        steps.append(ReleaseStep("unused cache", "segments without live tensors now", 0, _returnable()))
    allocated, reserved = _levels()
    return Released(
        tuple(steps),
        rehearsal=True,
        allocated=allocated,
        reserved=reserved,
        kept=_kept(found),
        notes=() if found.complete else (_INCOMPLETE,),
    )


def _returnable() -> int:
    found = (backend.segments(index) for backend, index in ready_devices())
    return sum(fragmentation(segments).returnable for segments in found if segments is not None)


def _kept(found: Survey) -> tuple[Holder, ...]:
    """Return the largest of what the user's own variables hold."""
    lines = [h for device in found.record().devices for h in device.holders if h.kind in {"variable", "graph", "hook"}]
    return tuple(sorted(lines, key=lambda holder: -holder.allocated)[:_MOST_KEPT])


def _notes(notebook: Notebook, *, errors: bool) -> tuple[str, ...]:
    """Say what was asked for and could not be let go of."""
    still = [type(error).__name__ for error in notebook.exceptions()] if errors else []
    return (f"{still[0]} is still kept by the notebook.",) if still else ()


_INCOMPLETE = "The search ended at its budget: an error keeps its traceback, since a variable of yours may hold it."
