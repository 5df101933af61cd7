"""The samples of a refresh on their way to the browser: four messages a second of which 80 bytes are new.

ipywidgets, comm and ipykernel build each message anew, which takes longer than to read the devices. Here it is built
once: a message gets an id, a date, a signature and its buffers. What arrives is the same.
"""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import Any

from .wire import SAMPLES

_BLANK = "\0"
"""What stands in the packed header where each message has its own; JSON writes it as `_HOLE`."""

_HOLE = rb"\u0000"


def samples_post(comm: Any) -> SamplesPost | None:
    """Return what sends samples over a widget's comm, or `None` if that comm is not ipykernel's own, packing JSON."""
    ipykernel = getattr(sys.modules.get("ipykernel.comm.comm"), "BaseComm", None)
    if ipykernel is None or type(comm).publish_msg is not ipykernel.publish_msg or comm.kernel is None:
        return None
    session = comm.kernel.session
    header = session.pack(session.msg_header("comm_msg") | {"msg_id": _BLANK, "date": _BLANK}).split(_HOLE)
    return SamplesPost(comm, *header) if len(header) == 3 else None


class SamplesPost:
    """Sends samples as ipykernel's own comm would. One thread at a time.

    Args:
        comm: the comm.
        before, between, after: the packed header around its message id and its date.
    """

    def __init__(self, comm: Any, before: bytes, between: bytes, after: bytes) -> None:
        self._kernel = comm.kernel
        self._session = self._kernel.session
        self._topic = comm.topic
        self._header = before, between, after
        self._metadata = self._session.pack(self._session.metadata)
        content = {"data": {"method": "custom", "content": SAMPLES}, "comm_id": comm.comm_id}
        self._content = self._session.pack(content)
        self._parent: Any = None
        self._parent_header = b""

    def send(self, buffers: list[bytes]) -> None:
        """Send rows, one buffer for each chunk of them."""
        session = self._session
        parent = self._kernel.get_parent()
        if parent is not self._parent:  # another cell
            self._parent, self._parent_header = parent, session.pack(parent.get("header", {}))
        before, between, after = self._header
        date = datetime.now(timezone.utc).isoformat()
        header = before + session.msg_id.encode() + between + date.encode() + after
        parts = [header, self._parent_header, self._metadata, self._content, *buffers]
        session.send_raw(self._kernel.iopub_socket, parts, ident=self._topic)
