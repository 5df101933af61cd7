"""A panel whose thread beats when it is told to, and what stands for its widget."""

from __future__ import annotations

import threading

from jupyter_gpumem.live import widget
from jupyter_gpumem.live.controller import Panel
from jupyter_gpumem.pacing import Clock


class Steps(Clock):
    """A clock that lets the thread beat once for each `step()`, and tells when it has."""

    def __init__(self):
        self.time = 10.0
        self.go = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)

    def now(self):
        return self.time

    def wait(self, wake, seconds):
        self.waiting.release()
        self.go.acquire()


class Pipe:
    """What stands for the widget: keeps what was sent."""

    identity = "m"

    def __init__(self):
        self.sent = []
        self.closed = False
        self.broken = None

    def send(self, message):
        if self.broken:
            raise self.broken
        self.sent.append(message)

    def close(self):
        self.closed = True

    def mimebundle(self):
        return {widget.MIME_TYPE: {"model_id": "m"}}

    def kinds(self):
        """Return what was sent since the last time."""
        kinds = [message.content["kind"] for message in self.sent]
        self.sent.clear()
        return kinds


class Driven:
    """A panel whose thread is led step by step."""

    def __init__(self):
        self.clock = Steps()
        self.pipe = Pipe()
        self.panel = Panel(channel=self.pipe, clock=self.clock)
        self.clock.waiting.acquire()

    def step(self, seconds=0.25):
        """Let one beat happen."""
        self.clock.time += seconds
        self.clock.go.release()
        heart = self.panel._heart
        while not self.clock.waiting.acquire(timeout=0.1):
            if not heart.running:
                return

    def close(self):
        """Close it as a user does."""
        self.clock.go.release()
        self.panel.close()


def hello(driven, **more):
    """A view comes."""
    driven.panel.received({"kind": "hello", "view": "v", "slot": 0, **more})
    driven.step()
