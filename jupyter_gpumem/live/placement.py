"""Where the panel is shown: always inline, and in JupyterLab's right sidebar too, through the package `sidecar`.

Both are views of one widget. They find out where they are, and the inline one folds while a docked one is alive.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import psutil

from .widget import close_widget, installed

TITLE = "GPU memory"
_LONGEST = 30


def title() -> str:
    """Return what the tab is called: with the notebook's name, where the server told it when it started the kernel."""
    name = os.path.basename(os.environ.get("JPY_SESSION_NAME", "")).removesuffix(".ipynb")
    shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    return f"{TITLE} · {shown}" if shown else TITLE


def in_colab() -> bool:
    """Whether this is Colab, which shows what a thread sends only after the cell (googlecolab/colabtools#3373)."""
    return "google.colab" in sys.modules


def can_dock() -> bool:
    """Whether a sidebar may exist: not in VS Code (microsoft/vscode-jupyter#7881) or Colab."""
    return installed("sidecar") is not None and "VSCODE_PID" not in os.environ and not in_colab()


def surely_lab() -> bool:
    """Whether the server that started this kernel serves JupyterLab, as far as its command tells.

    Under `jupyter notebook` a sidebar is only made once a view says that it is in a JupyterLab after all: Notebook 7
    reports an error for each `Sidecar`.
    """
    try:
        command = psutil.Process(int(os.environ.get("JPY_PARENT_PID", ""))).cmdline()
    except (ValueError, psutil.Error):
        return False
    return any("lab" in os.path.basename(word) for word in command[:3])


class Dock:
    """The panel's place in the right sidebar. Making one is enough: the front end opens it by itself.

    Args:
        bundle: a view of the panel's widget, as a front end displays it.
    """

    def __init__(self, bundle: dict[str, Any]) -> None:
        from sidecar import Sidecar

        # Its content is set, not displayed into it: capturing output concerns the whole kernel.
        self._sidecar = Sidecar(title=title())
        self._sidecar.outputs = ({"output_type": "display_data", "data": bundle, "metadata": {}},)

    @property
    def identity(self) -> str:
        """The model id of its widget."""
        return str(self._sidecar.model_id)

    def close(self) -> None:
        """Take it out of the sidebar."""
        close_widget(self._sidecar)
