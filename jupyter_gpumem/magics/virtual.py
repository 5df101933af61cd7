"""`%gpumem_virtual`: a virtual GPU for this session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jupyter_gpumem import devices
from jupyter_gpumem.allocator.environment import starting_settings
from jupyter_gpumem.errors import InvalidValueError, UnavailableError
from jupyter_gpumem.records import VirtualStatus
from jupyter_gpumem.units import format_bytes

if TYPE_CHECKING:
    import argparse

    from .session import Session

DEFAULT = "A100-80GB"


def switch(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> None:  # noqa: ARG001
    """Run `%gpumem_virtual`."""
    if options.gpu and options.state != "on":
        raise InvalidValueError("--gpu goes with on: %gpumem_virtual on --gpu A100-80GB")
    if options.state == "on":
        _switch_on(",".join(options.gpu or [DEFAULT]))
    elif options.state == "off":
        switch_off(session)
        return
    session.show(_status())


def _switch_on(cards: str) -> None:
    from jupyter_gpumem.virtual.cards import parse_cards
    from jupyter_gpumem.virtual.opening import check_installed

    wanted = parse_cards(cards)
    devices.check_context()
    check_installed()
    _refuse_beside_real_memory()
    from jupyter_gpumem.virtual import session as virtual

    present = virtual.active()
    if present is not None:
        present.check_idle()
        names = ", ".join(card.label for card in present.cards)
        raise UnavailableError(f"this session has a virtual GPU already ({names}); first write %gpumem_virtual off")
    virtual.start(wanted, starting_settings())


def _refuse_beside_real_memory() -> None:
    """Refuse where tensors of a real GPU are alive: `cuda` can mean one of both only.

    Raises:
        UnavailableError: there are such tensors.
    """
    for backend, index in devices.ready_devices():
        if backend.kind == "cuda" and not backend.device(index).virtual:
            allocated = backend.stats(index)["allocated_bytes"]["all"]["current"]
            if allocated:
                raise UnavailableError(
                    f"{format_bytes(allocated)} are allocated on the real cuda:{index}, and cuda can only mean one of "
                    "both; restart the kernel, then switch the virtual GPU on"
                )


def switch_off(session: Session) -> None:
    """Switch the virtual GPU off, if there is one, and say what is left of it."""
    virtual = sys.modules.get("jupyter_gpumem.virtual.session")
    gpu = virtual.active() if virtual is not None else None
    if virtual is None or gpu is None:
        return
    gpu.check_idle()
    gpu.kernels.clear_workspaces()
    alive = sum(allocator.total.count for allocator in gpu.memory.allocators)
    lines = virtual.stop()
    if alive:
        held = "1 allocation was" if alive == 1 else f"{alive:,} allocations were"
        lines.append(f"{held} still on the virtual GPU; tensors that use it cannot be used any more")
    if lines:
        session.show_text("\n".join(lines))


def _status() -> VirtualStatus:
    """Return what is on, without importing anything for it."""
    if "jupyter_gpumem.virtual.session" not in sys.modules:
        return VirtualStatus(())
    from jupyter_gpumem.virtual.summary import summary

    return summary()
