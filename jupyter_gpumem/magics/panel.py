"""`%gpumem_panel`: the live panel, on and off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.display import display

from jupyter_gpumem import live
from jupyter_gpumem.errors import InvalidValueError

if TYPE_CHECKING:
    import argparse

    from .session import Session


def panel(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> None:  # noqa: ARG001
    """Run `%gpumem_panel`."""
    if options.state == "off":
        if options.inline:
            raise InvalidValueError("--inline goes with on: %gpumem_panel on --inline")
        live.close()
    elif not hasattr(session.shell, "kernel"):
        session.show_text(live.text_line())
    else:
        display(live.panel(inline=options.inline).mimebundle(), raw=True)  # type: ignore[no-untyped-call]
