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
    all at once: to flush each stream, which only queues what is in it, and to queue the display behind that.
    """
    module = sys.modules.get("ipykernel.zmqshell")
    plain = getattr(getattr(module, "ZMQDisplayPublisher", None), "_flush_streams", None)
    socket = getattr(publisher, "pub_socket", None)
    thread = getattr(socket, "io_thread", None)
    if plain is None or getattr(type(publisher), "_flush_streams", None) is not plain or thread is None:
        yield
        return

    def flush() -> None:
        streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
        for stream in streams:
            if type(stream).__module__ == "ipykernel.iostream" and stream.pub_thread is thread:
                thread.schedule(stream._flush)
            else:
                stream.flush()

    publisher._flush_streams, publisher.pub_socket = flush, _Behind(thread)
    try:
        yield
    finally:
        del publisher._flush_streams
        publisher.pub_socket = socket


class _Behind:
    """A socket whose messages join the queue of ipykernel's output thread only when the thread has come to them."""

    def __init__(self, thread: Any) -> None:
        self._thread = thread

    def send_multipart(self, *args: Any, **options: Any) -> None:
        self._thread.schedule(lambda: self._thread.send_multipart(*args, **options))
