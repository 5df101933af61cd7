"""Showing something in the notebook, below what was printed before it but without waiting for that."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from IPython.display import display

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def show(shell: Any, bundle: dict[str, Any], *, last: bool = False) -> None:
    """Show a MIME bundle in one display call.

    Args:
        shell: the IPython shell.
        bundle: the representations by MIME type.
        last: whether a cell has just ended, so that the kernel goes on by itself.
    """
    with _in_order(shell.display_pub, last=last):
        display(bundle, raw=True)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _in_order(publisher: Any, *, last: bool) -> Iterator[None]:
    """Have ipykernel send what was printed before a display, and then that, without a wait for its output thread.

    It waits for the thread twice, once for each stream, which is most of what a display costs. Here the thread gets it
    all at once, in one call that wakes it once: to flush both streams, which only queues what is in them, and to queue
    the display behind that. Waking it costs most of the rest, as it then wants the interpreter that we have: after a
    cell the kernel does that anyway, to send what is left in the streams.
    """
    module = sys.modules.get("ipykernel.zmqshell")
    plain = getattr(getattr(module, "ZMQDisplayPublisher", None), "_flush_streams", None)
    socket = getattr(publisher, "pub_socket", None)
    thread = getattr(socket, "io_thread", None)
    if plain is None or getattr(type(publisher), "_flush_streams", None) is not plain or thread is None:
        yield
        return
    queue = _Queue(thread, _loop_of(thread) if last else None)

    def send(message: Any) -> None:
        queue.put(lambda: publisher.session.send(socket, message, ident=publisher.topic))

    publisher._flush_streams = queue.note_streams
    publisher.register_hook(send)  # the last of them: it gets what the others leave
    try:
        yield
    finally:
        publisher.unregister_hook(send)
        del publisher._flush_streams


def _loop_of(thread: Any) -> asyncio.AbstractEventLoop | None:
    """Return the event loop that goes on after the cell, if the output thread lives and can wait for that."""
    if not (hasattr(thread, "_events") and thread.thread is not None and thread.thread.is_alive()):
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Queue:
    """What ipykernel's output thread does next: send what the streams hold, and a message after that.

    The thread makes the message ready too, as it does with what the streams hold.

    Args:
        thread: the output thread.
        loop: the event loop that wakes the thread, if nothing has done so before; without one it is woken at once.
    """

    def __init__(self, thread: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self._thread = thread
        self._loop = loop
        self._streams: list[Any] = []

    def note_streams(self) -> None:
        """Have the streams flushed right before the next message; one that is not the thread's is flushed now."""
        streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
        for stream in streams:
            if type(stream).__module__ == "ipykernel.iostream" and stream.pub_thread is self._thread:
                self._streams.append(stream)
            else:
                stream.flush()

    def put(self, send: Callable[[], object]) -> None:
        """Have a message sent."""
        streams, self._streams = self._streams, []

        def run() -> None:
            for stream in streams:
                stream._flush()
            send()

        if self._loop is None:
            self._thread.schedule(run)
        else:
            self._thread._events.append(run)
            self._loop.call_soon(self._thread.schedule, _nothing)


def _nothing() -> None:
    """Do nothing: whatever else waits is done with it."""
