"""Showing something in the notebook, below what was printed before it but without waiting for that."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from IPython.display import display

if TYPE_CHECKING:
    from collections.abc import Iterator


def show(shell: Any, bundle: dict[str, Any]) -> None:
    """Show a MIME bundle in one display call.

    Args:
        shell: the IPython shell.
        bundle: the representations by MIME type.
    """
    with _in_order(shell.display_pub):
        display(bundle, raw=True)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _in_order(publisher: Any) -> Iterator[None]:
    """Have ipykernel send what was printed before a display, and then that, without a wait for its output thread.

    It waits for the thread twice, once for each stream, which is most of what a display costs. Here the thread gets it
    all at once, in one call that wakes it once: to flush both streams, which only queues what is in them, and to queue
    the display behind that.
    """
    module = sys.modules.get("ipykernel.zmqshell")
    plain = getattr(getattr(module, "ZMQDisplayPublisher", None), "_flush_streams", None)
    socket = getattr(publisher, "pub_socket", None)
    thread = getattr(socket, "io_thread", None)
    if plain is None or getattr(type(publisher), "_flush_streams", None) is not plain or thread is None:
        yield
        return
    behind = _Behind(thread)
    publisher._flush_streams, publisher.pub_socket = behind.flush_streams, behind
    try:
        yield
    finally:
        del publisher._flush_streams
        publisher.pub_socket = socket


class _Behind:
    """A socket of ipykernel's output thread whose messages wait there for what the streams hold."""

    def __init__(self, thread: Any) -> None:
        self._thread = thread
        self._streams: list[Any] = []

    def flush_streams(self) -> None:
        """Have the streams flushed right before the next message; one that is not the thread's is flushed now."""
        streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
        for stream in streams:
            if type(stream).__module__ == "ipykernel.iostream" and stream.pub_thread is self._thread:
                self._streams.append(stream)
            else:
                stream.flush()

    def send_multipart(self, *args: Any, **options: Any) -> None:
        streams, self._streams = self._streams, []

        def send() -> None:
            for stream in streams:
                stream._flush()
            self._thread.send_multipart(*args, **options)

        self._thread.schedule(send)
