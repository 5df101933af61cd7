"""The panel in the kernel: a sampler, the cells, the buttons, and the one thread that sends it all to the browser."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from jupyter_gpumem import devices
from jupyter_gpumem.errors import UnavailableError
from jupyter_gpumem.pacing import Heartbeat
from jupyter_gpumem.sampler import INTERVAL, ROW, Sample, Sampler
from jupyter_gpumem.units import format_bytes

from . import placement
from .actions import Actions, recording
from .attention import Attention
from .spans import Spans
from .widget import Channel, check_front_end
from .wire import SAMPLES, Message, pack_map

if TYPE_CHECKING:
    from jupyter_gpumem.pacing import Clock
    from jupyter_gpumem.records import Measurement, OomExplanation

CHUNK = 4096
"""Rows of older samples in one message: 320 KiB, below what servers let pass in a second."""


class Panel:
    """A live panel. `gm.panel()` makes it; in a notebook it is displayed as the cell's last value.

    Everything that goes to the browser is sent by the sampler's thread, or under its lock. Nothing is ever printed.

    Args:
        docked: whether to use JupyterLab's sidebar where there is one.
        channel: what carries messages; by default a widget.
        interval: seconds between two readings.
        clock: what time is.
    """

    def __init__(
        self, *, docked: bool = True, channel: Any = None, interval: float = INTERVAL, clock: Clock | None = None
    ) -> None:
        if channel is None:
            check_front_end()
        self._sampler = Sampler(clock=clock)
        self._attention = Attention()
        self._spans = Spans(self._sampler.now)
        self._actions = Actions(lambda: self._spans.running, self._answered, {"mark": self._mark})
        self._outbox: deque[Message] = deque()
        self._sending = threading.Lock()
        self._unsent = 0
        self._described: tuple[int, ...] | None = None
        self._recording: dict[str, Any] = {}
        self._error: Exception | None = None
        self._raised = False
        self._closed = False
        self._may_dock = False
        self._dock: placement.Dock | None = None
        self._channel = channel or Channel(interval, self.received)
        self._heart = Heartbeat(self._beat, interval, clock=clock, on_error=self._failed)
        # Whoever opens the panel looks at it; a view that comes while cells run is heard only after them.
        self._attention.note("opening", 0, self._sampler.now())
        self._heart.start()
        self.place(docked=docked)

    # What is shown

    def place(self, *, docked: bool) -> None:
        """Say whether the panel may use JupyterLab's sidebar; a tab that the user closed comes again."""
        self._may_dock = docked and placement.can_dock()
        self._undock()
        if placement.surely_lab():
            self.dock()

    def dock(self) -> None:
        """Show the panel in JupyterLab's right sidebar, once."""
        if self._may_dock and not self._closed:
            self._undock()
            self._dock = placement.Dock(self._channel.mimebundle())
            self._post(self._state())

    def _undock(self) -> None:
        dock, self._dock = self._dock, None
        if dock is not None:
            dock.close()

    def mimebundle(self) -> dict[str, Any]:
        """Return the panel as a front end displays it, with a line of text for those that cannot."""
        return {"text/plain": self.line()} | ({} if self._closed else self._channel.mimebundle())

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return self.mimebundle()

    def __repr__(self) -> str:
        return self.line()

    def line(self) -> str:
        """Return the newest numbers in one line."""
        if self._error is not None:
            return f"GPU memory panel: {_sentence(self._error)}"
        rows = sorted(self._sampler.latest(), key=lambda row: row.slot)
        devices = self._sampler.devices
        parts = [numbers(devices[int(row.slot)].label, int(row.allocated), int(row.reserved)) for row in rows]
        return f"GPU memory panel: {'; '.join(parts) or 'no GPU is used yet in this process'}"

    def close(self) -> None:
        """End the thread and take the panel out of every page. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._heart.stop()
        self._sampler.close()
        self._undock()
        self._channel.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def failed(self) -> bool:
        """Whether an error has ended it."""
        return self._error is not None

    def check(self) -> None:
        """Raise what ended the panel's thread, once."""
        if self._error is not None and not self._raised:
            self._raised = True
            raise self._error

    # What happens in the kernel (on the main thread)

    def began(self, number: int) -> None:
        """A cell begins."""
        self._sampler.cell = number
        self._post(_cells([self._spans.began(number)]))

    def ended(self, measurement: Measurement | None = None) -> None:
        """A cell has ended: show it, and do what buttons asked for meanwhile. Without a CUDA context, that is all."""
        self._sampler.cell = 0
        span = self._spans.ended(measurement)
        if span is not None:
            self._post(_cells([span]))
        lost = devices.lost_context()
        if lost is not None and self._error is None:
            self._heart.stop()
            self._failed(UnavailableError(lost))
        self._actions.run()
        if recording() != self._recording or not self._sampler.present:
            self._post(self._state())  # a magic has started or stopped one, or why there is no device may have changed
        self._sampler.want_map()
        if placement.in_colab():
            self._flush(self._sampler.read(), self._sampler.now())

    def explained(self, explanation: OomExplanation) -> None:
        """The cell that has just ended ran out of memory: show why."""
        span = self._spans.explained(explanation)
        if span is not None:
            self._post(_cells([span]))

    # What the browser says (on the main thread, or on one that serves comms)

    def received(self, content: dict[str, Any]) -> None:
        """Take a message from a view."""
        kind, view = content.get("kind"), str(content.get("view", ""))
        if kind == "hello":
            self._attention.note("opening", None, self._sampler.now())
            self._attention.note(view, int(content.get("slot", 0)), self._sampler.now())
            if content.get("lab") and self._dock is None:
                self.dock()
            self._post(self._state())
            self._post(_cells(self._spans.all()))
            for message in _samples(self._sampler.ring.newest(), SAMPLES | {"history": True}):
                self._post(message)
            self._sampler.want_map()
        elif kind == "look":
            slot = content.get("slot")
            self._attention.note(view, None if slot is None else int(slot), self._sampler.now())
            if content.get("fresh"):
                self._sampler.want_map()
        elif kind == "dock":
            self.dock()
        elif kind == "act":
            self._actions.request(str(content.get("id")), str(content.get("name")))

    # The sampler's thread

    def _beat(self) -> None:
        samples = self._sampler.read()
        now = self._sampler.now()
        if self._spans.running:
            self._attention.busy(now)
        self._flush(samples, now)

    def _flush(self, samples: list[Sample], now: float) -> None:
        looked_at = self._attention.slots(now)
        with self._sending:
            while self._outbox:
                self._channel.send(self._outbox.popleft())
            if self._sampler.present != self._described:  # also if a state that waited in the outbox was older
                self._channel.send(self._state())
            self._unsent += len(samples)
            if samples and (looked_at or self._spans.running):
                # Whoever looks again gets what was missed meanwhile.
                for message in _samples(self._sampler.ring.newest(self._unsent)):
                    self._channel.send(message)
                self._unsent = 0
            elif looked_at and self._error is None:
                self._channel.send(Message(SAMPLES, []))  # a sign of life
            for slot in looked_at:
                found = self._sampler.read_map(slot)
                if found is not None:
                    began = self._sampler.now()
                    self._channel.send(pack_map(found))
                    self._sampler.took(self._sampler.now() - began + (began - found.time))

    def _post(self, message: Message) -> None:
        """Let the sampler's thread send a message soon; nobody else sends while it lives."""
        self._outbox.append(message)
        if self._heart.running:
            self._heart.poke()
        elif not self._closed:
            self._flush([], self._sampler.now())

    def _failed(self, error: Exception | None = None) -> None:
        self._error = error or self._heart.error
        self._outbox.append(self._state())
        self._flush([], self._sampler.now())

    # Messages

    def _state(self, **more: Any) -> Message:
        self._described = present = self._sampler.present
        self._recording = recording()
        return Message(
            {
                "kind": "state",
                "columns": Sample._fields,
                "devices": [
                    {"label": device.label, "name": device.name, "total": device.total, "gone": slot not in present}
                    for slot, device in enumerate(self._sampler.devices)
                ],
                "since": self._sampler.since,
                "absent": None if present else devices.explain_absence(),
                "error": None if self._error is None else _sentence(self._error),
                "recording": self._recording,
                "can_dock": self._may_dock,
                "models": {"panel": self._channel.identity, "dock": self._dock.identity if self._dock else None},
            }
            | more,
            [],
        )

    def _answered(self, identity: str, name: str, text: str, failed: bool) -> None:  # noqa: FBT001
        self._sampler.want_map()
        self._post(self._state(answer={"id": identity, "name": name, "text": text, "failed": failed}))

    def _mark(self) -> str:
        self._sampler.mark()
        return "the peak begins anew"


def numbers(label: str, allocated: int | None, reserved: int | None) -> str:
    """Return what a device holds, as part of a line."""
    return f"{label} {format_bytes(allocated)} allocated, {format_bytes(reserved)} reserved"


def _samples(rows: bytes, content: dict[str, Any] = SAMPLES) -> list[Message]:
    """Return rows as messages, none of them too long for a server."""
    step = CHUNK * ROW.size
    return [Message(content, [rows[i : i + step]]) for i in range(0, len(rows), step)]


def _cells(spans: list[dict[str, Any]]) -> Message:
    return Message({"kind": "cells", "cells": spans}, [])


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, UnavailableError) else f"{type(error).__name__}: {error}"
