"""The magics that act on the allocator: its settings, its cache, memory put aside, the cap, the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_gpumem.control.auditing import audit
from jupyter_gpumem.control.capping import limit
from jupyter_gpumem.control.changing import allocator_config
from jupyter_gpumem.control.reservation import RESERVATIONS, reserve
from jupyter_gpumem.control.returning import empty_cache
from jupyter_gpumem.errors import InvalidValueError

if TYPE_CHECKING:
    import argparse

    from .session import Session


def config(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Any:  # noqa: ARG001
    """Run `%gpumem_config`."""
    changes = " ".join(options.settings) if options.settings else None
    record = allocator_config(changes, undo=options.undo, reset=options.reset, force=options.force)
    return session.deliver(options, record)


def empty(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Any:  # noqa: ARG001
    """Run `%gpumem_empty`."""
    return session.deliver(options, empty_cache(workspaces=options.workspaces))


def reserve_memory(
    session: Session,
    options: argparse.Namespace,
    local_ns: dict[str, Any] | None,  # noqa: ARG001
) -> Any:
    """Run `%gpumem_reserve`."""
    if options.size is not None:
        if options.release is not None:
            raise InvalidValueError(
                "a size puts memory aside and --release gives it back; ask for one, and quote a name with blanks"
            )
        reserved = reserve(options.size, hold=options.hold, name=options.name, device=options.device)
        return session.deliver(options, reserved.record)
    if options.hold or options.name is not None or options.device is not None:
        raise InvalidValueError("--hold, --name and -d go with a size: %gpumem_reserve 2GiB --hold --name spare")
    named = None if options.release is True else options.release
    listed = RESERVATIONS.list() if options.release is None else RESERVATIONS.release_and_list(named)
    return session.deliver(options, listed)


def cap(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Any:  # noqa: ARG001
    """Run `%gpumem_limit`."""
    return session.deliver(options, limit(options.size, options.device))


def audit_memory(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Any:  # noqa: ARG001
    """Run `%gpumem_audit`."""
    return session.deliver(options, audit(options.threshold, compact=options.compact, devices=options.device))
