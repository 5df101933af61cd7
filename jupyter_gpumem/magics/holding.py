"""`%gpumem_who` and `%gpumem_free`: who holds GPU memory, and letting go of what the notebook holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.holding import chain, holders
from jupyter_gpumem.letting_go import free
from jupyter_gpumem.notebook import Notebook

from .gpumem import deliver

if TYPE_CHECKING:
    import argparse

    from jupyter_gpumem.records import Record

    from .session import Session


def who(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Record | None:  # noqa: ARG001
    """Run `%gpumem_who`."""
    if options.name is not None:
        if options.device is not None:
            raise InvalidValueError("a name is looked for on all devices; leave out -d")
        record: Record = chain(options.name, Notebook(session.shell))
    else:
        record = holders(options.device, budget=options.budget)
    return deliver(session, options, record)


def let_go(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Record | None:  # noqa: ARG001
    """Run `%gpumem_free`."""
    everything = not (options.errors or options.outputs or options.cycles)
    record = free(
        errors=options.errors or everything,
        outputs=options.outputs or everything,
        cycles=options.cycles or everything,
        cache=everything,
        dry_run=options.dry_run,
        notebook=Notebook(session.shell),
    )
    return deliver(session, options, record)
