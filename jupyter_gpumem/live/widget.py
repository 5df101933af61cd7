"""The widget that carries the panel: an anywidget with our bundle, and no synced state but its settings.

Widget state is saved into notebooks and sent whole at every change, so what is measured never becomes state.
"""

from __future__ import annotations

import functools
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import UnavailableError

from .posting import samples_post
from .wire import SAMPLES

if TYPE_CHECKING:
    from .wire import Message

STATIC = Path(__file__).parent / "static"
MIME_TYPE = "application/vnd.jupyter.widget-view+json"


def check_front_end() -> None:
    """Refuse where a live panel cannot work.

    Raises:
        UnavailableError: this ipykernel cannot send from a thread, a package is missing, or there is no bundle.
    """
    version = installed("ipykernel")
    if version is not None and version.startswith("7.0."):
        # ipython/ipykernel#1450: a thread other than the main one cannot send; 7.1 can.
        raise UnavailableError(
            f"ipykernel {version} cannot show anything while a cell runs; "
            "run `pip install -U ipykernel` and restart the kernel"
        )
    for package in ("ipywidgets", "anywidget"):
        if installed(package) is None:
            raise UnavailableError(f"the live panel needs {package}; run `pip install {package}`")
    if not (STATIC / "panel.js").is_file():
        raise UnavailableError(f"the panel's front end is not built ({STATIC / 'panel.js'}); run `make bundle`")


def installed(package: str) -> str | None:
    """Return the version of a distribution, or `None` if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def close_widget(widget: Any) -> None:
    """Close a widget and the one that holds its layout, which would stay."""
    layout = widget.layout
    widget.close()
    layout.close()


@functools.cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    class PanelWidget(anywidget.AnyWidget):  # type: ignore[misc]
        _esm = (STATIC / "panel.js").read_text(encoding="utf-8")
        _css = (STATIC / "panel.css").read_text(encoding="utf-8")
        interval = traitlets.Float().tag(sync=True)

    return PanelWidget


class Channel:
    """The widget as a pair of functions: send a message, and be told of those that come.

    Args:
        interval: seconds between two samples, for the browser to recognise gaps.
        received: called with the content of every message from the browser.
    """

    def __init__(self, interval: float, received: Any) -> None:
        self.widget = _widget_class()(interval=interval)
        self._post = samples_post(self.widget.comm)
        self._received = received
        self.widget.on_msg(self._unpack)

    @property
    def identity(self) -> str:
        """The widget's model id."""
        return str(self.widget.model_id)

    def send(self, message: Message) -> None:
        """Send a message to every view. Thread-safe as far as one caller at a time goes."""
        if self._post is not None and message.content is SAMPLES and self.widget.comm is not None:
            self._post.send(message.buffers)
        else:
            self.widget.send(message.content, message.buffers)

    def close(self) -> None:
        """Take the widget out of every page."""
        self.widget.on_msg(self._unpack, remove=True)
        close_widget(self.widget)

    def mimebundle(self) -> dict[str, Any]:
        """Return what a front end shows as a view of this widget."""
        return {MIME_TYPE: {"version_major": 2, "version_minor": 0, "model_id": self.identity}}

    def _unpack(self, widget: Any, content: Any, buffers: Any) -> None:  # noqa: ARG002 - ipywidgets' signature
        if isinstance(content, dict):
            self._received(content)
