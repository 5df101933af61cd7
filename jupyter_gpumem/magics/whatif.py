"""`%gpumem_record` and `%gpumem_whatif`: record what the allocator does, and replay it under other settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.display import display

from jupyter_gpumem import report
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.recorder import RECORDER
from jupyter_gpumem.report.progress import Progress

if TYPE_CHECKING:
    import argparse

    from .session import Session


def record(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> None:  # noqa: ARG001
    """Run `%gpumem_record`."""
    if options.action == "save":
        if options.file is None:
            raise InvalidValueError("save needs the name of a file: %gpumem_record save run.pickle.gz")
        session.show_text(f"saved {RECORDER.save(options.file)}")
        return
    if options.file is not None:
        raise InvalidValueError(f"{options.action} takes no file, got {options.file!r}; save does")
    if options.action == "start":
        RECORDER.start(options.max_entries, stacks=not options.no_stacks)
    elif options.action == "stop":
        RECORDER.stop()
    session.show(RECORDER.status())


def compare(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Any:  # noqa: ARG001
    """Run `%gpumem_whatif`."""
    recording = options.file if options.file is not None else RECORDER.recording()
    handle: Any = None

    def write(line: str) -> None:
        nonlocal handle
        if handle is None:
            handle = display({"text/plain": line}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            handle.update({"text/plain": line}, raw=True)

    def clear() -> None:
        handle.update({"text/plain": ""}, raw=True)  # nothing stays of it when there is an error, or no report

    updates = hasattr(session.shell, "kernel")  # a terminal would print every update below the one before
    with Progress(write, clear) if updates else Progress.on_terminal(sys.stderr) as progress:
        result = whatif(
            recording,
            options.settings,
            memory=options.memory,
            limit=options.limit,
            jobs=options.jobs,
            device=options.device,
            progress=progress,
        )
    if options.output:
        return result
    if handle is None:
        session.show(result)
    else:
        handle.update(report.mimebundle(result), raw=True)  # in the place of the progress
    return None
