"""The one panel of a process."""

from __future__ import annotations

import os

from jupyter_gpumem.arguments import check_flag
from jupyter_gpumem.devices import check_context
from jupyter_gpumem.overview import status

from .controller import Panel, numbers

_panels: list[Panel] = []


def panel(*, inline: bool = False) -> Panel:
    """Open the live panel, or return the one that is open; as a cell's last value it is displayed.

    In JupyterLab it docks in the right sidebar too, if the package `sidecar` is installed (`jupyter_gpumem[sidebar]`).

    Args:
        inline: never use the sidebar.

    Raises:
        InvalidValueError: `inline` is neither `True` nor `False`.
        UnavailableError: this ipykernel cannot send while a cell runs, a package is missing, or the CUDA context is
            lost.
    """
    check_flag("inline", inline)
    check_context()
    one = opened()
    if one is not None and one.failed:
        one.close()
        one = None
    if one is None:
        one = Panel(docked=not inline)
        _panels[:] = [one]
    else:
        one.place(docked=not inline)
    return one


def opened() -> Panel | None:
    """Return the panel that is open, if there is one."""
    return next((one for one in _panels if not one.closed), None)


def close() -> None:
    """Close the panel; harmless if there is none."""
    while _panels:
        _panels.pop().close()


def text_line() -> str:
    """Return what the devices hold in one line, for terminals."""
    found = status()
    parts = [
        numbers(one.device.label, one.counters.allocated, one.counters.reserved)
        for one in found.devices
        if one.counters is not None
    ]
    return f"{'; '.join(parts) or found.missing}. The live panel needs a notebook; %gpumem shows more."


if hasattr(os, "register_at_fork"):  # a forked worker has neither its thread nor its connection
    os.register_at_fork(after_in_child=_panels.clear)
