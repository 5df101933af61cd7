"""A real kernel for the tests: runs cells through the Jupyter protocol and returns all that a front end would get."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import KernelManager

import jupyter_gpumem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

PATIENCE = 60
"""Seconds to wait for a message: only a kernel that hangs ever reaches it."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Reply:
    """What came back for one cell.

    `displays`, `updates` of them and `results` are MIME bundles; `errors` are the `error` messages as
    `(name, value, traceback)`; `comms` are the data of messages between widgets and their kernel side; `order` are the
    kinds of what a notebook shows, as they came (`stdout`, `stderr`, `display_data`, ...);
    `began` and `ended` are when the kernel said that it was busy and idle again.
    """

    content: dict[str, Any] = field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    displays: list[dict[str, Any]] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    errors: list[tuple[str, str, str]] = field(default_factory=list)
    comms: list[dict[str, Any]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    began: datetime | None = None
    ended: datetime | None = None

    @property
    def seconds(self) -> float:
        """How long the kernel was busy with it, by its own clock."""
        assert self.began is not None
        assert self.ended is not None
        return (self.ended - self.began).total_seconds()

    @property
    def status(self) -> str:
        """The status of the reply: `ok`, `error` or `aborted`."""
        return self.content["status"]

    @property
    def error(self) -> str | None:
        """The name of the error that the front end was sent, if there is exactly one."""
        return self.errors[0][0] if len(self.errors) == 1 else None

    @property
    def message(self) -> str:
        """The error's text."""
        return self.errors[0][1]

    @property
    def traceback(self) -> str:
        """All that a front end shows of errors, without colours."""
        return "\n".join(error[2] for error in self.errors)

    @property
    def shown(self) -> str:
        """Everything that reads as text, in the order of kinds: for asserting that something is nowhere."""
        texts = [bundle.get("text/plain", "") for bundle in (*self.displays, *self.updates, *self.results)]
        return "\n".join([self.stdout, self.stderr, *texts, self.traceback])

    @property
    def result(self) -> str | None:
        """The text of the one `execute_result`, if there is one."""
        assert len(self.results) <= 1
        return self.results[0]["text/plain"] if self.results else None

    @property
    def reports(self) -> list[str]:
        """The texts of the displayed reports."""
        return [bundle["text/plain"] for bundle in self.displays]


class Kernel:
    """One running kernel; a context manager.

    Args:
        python: the Python of another environment to run it in, with what is installed there; by default the kernel runs
            in this one and sees the same package as the tests do.
    """

    def __init__(self, python: Path | None = None) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gm-")
        home = Path(self._directory.name)
        package = str(Path(jupyter_gpumem.__file__).parent.parent)
        visible = () if python else (package, os.environ.get("PYTHONPATH"))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, visible)),
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(home),
        }
        # Sockets in a directory of our own: kernels that start side by side cannot take each other's ports.
        self.manager = KernelManager(
            transport="ipc", ip=str(home / "socket"), connection_file=str(home / "kernel.json")
        )
        if python:
            self.manager.kernel_spec.argv[0] = str(python)
        self.manager.start_kernel(env=environment, extra_arguments=["--HistoryManager.hist_file=:memory:"])
        self._replies: dict[str, Reply] = {}
        self._idle: set[str] = set()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self._directory.cleanup()

    def run(self, code: str, *, answers: Iterable[str] = (), **options: Any) -> Reply:
        """Run a cell as the front end does and return what came back; `answers` are typed where the code asks."""
        request = self.send(code, allow_stdin=bool(answers), **options)
        for answer in answers:
            self.client.get_stdin_msg(timeout=PATIENCE)
            self.client.input(answer)
        return self.wait(request)

    def value(self, expression: str) -> str:
        """Return the `repr` of an expression, evaluated in a cell outside the history."""
        request = self.send("", user_expressions={"value": expression}, store_history=False, silent=True)
        content = self.wait(request).content["user_expressions"]["value"]
        assert content["status"] == "ok", content
        return content["data"]["text/plain"]

    def send(self, code: str, **options: Any) -> str:
        """Ask for a cell to be run and return the request's id."""
        return self.client.execute(code, **({"allow_stdin": False} | options))

    def wait(self, request: str) -> Reply:
        """Return what came back for a request, once all of it is there."""
        while request not in self._idle:
            self._take()
        reply = self._replies[request]
        while not reply.content:
            message = self.client.get_shell_msg(timeout=PATIENCE)
            self._replies.setdefault(message["parent_header"]["msg_id"], Reply()).content = message["content"]
        return reply

    def wait_for_output(self, request: str, text: str) -> None:
        """Return when a running cell has printed a text."""
        while text not in self._replies.setdefault(request, Reply()).stdout:
            self._take()

    def wait_for_report(self, request: str) -> str:
        """Return the text of the first report for a request as soon as it is there; the cell may go on."""
        while not (reply := self._replies.setdefault(request, Reply())).displays:
            self._take()
        return reply.reports[0]

    @property
    def comms(self) -> list[dict[str, Any]]:
        """The data of all messages between widgets and their kernel side so far."""
        return [data for reply in self._replies.values() for data in reply.comms]

    def interrupt(self) -> None:
        """Send the signal that the interrupt button sends."""
        self.manager.signal_kernel(signal.SIGINT)

    def complete(self, code: str) -> list[str]:
        """Return what Tab offers at the end of the code."""
        message = self._ask(self.client.complete(code, len(code)))
        return message["matches"]

    def is_complete(self, code: str) -> str:
        """Return whether a terminal would run the code, or wait for more lines."""
        return self._ask(self.client.is_complete(code))["status"]

    def inspect(self, code: str) -> str:
        """Return what Shift-Tab shows at the end of the code."""
        return self._ask(self.client.inspect(code, len(code)))["data"]["text/plain"]

    def _ask(self, request: str) -> dict[str, Any]:
        return self.wait(request).content

    def _take(self) -> None:
        """Take one message from the output channel and file it under its request."""
        message = self.client.get_iopub_msg(timeout=PATIENCE)
        request = message["parent_header"].get("msg_id")
        reply = self._replies.setdefault(request, Reply())
        kind, content = message["msg_type"], message["content"]
        if kind not in ("status", "execute_input", "comm_msg"):
            reply.order.append(content["name"] if kind == "stream" else kind)
        if kind == "status" and content["execution_state"] == "busy":
            reply.began = message["header"]["date"]
        elif kind == "status" and content["execution_state"] == "idle":
            reply.ended = message["header"]["date"]
            self._idle.add(request)
        elif kind == "stream":
            setattr(reply, content["name"], getattr(reply, content["name"]) + content["text"])
        elif kind == "display_data":
            reply.displays.append(content["data"])
        elif kind == "update_display_data":
            reply.updates.append(content["data"])
        elif kind == "comm_msg":
            reply.comms.append(content["data"])
        elif kind == "execute_result":
            reply.results.append(content["data"])
        elif kind == "error":
            text = _ANSI.sub("", "\n".join(content["traceback"]))
            reply.errors.append((content["ename"], content["evalue"], text))


@contextlib.contextmanager
def prepared(*cells: str) -> Iterator[Kernel]:
    """A kernel that has run these cells outside the history, without an error."""
    with Kernel() as kernel:
        for cell in cells:
            reply = kernel.run(cell, store_history=False)
            assert reply.status == "ok", reply.shown
        yield kernel


def value(kernel: Kernel, expression: str) -> Any:
    """Return the value of an expression in the kernel that JSON can carry."""
    return json.loads(ast.literal_eval(kernel.value(f"__import__('json').dumps({expression})")))
