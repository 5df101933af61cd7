"""A scripted device whose cache can be emptied and whose memory can be capped, and what takes memory of it."""

from __future__ import annotations

from jupyter_gpumem.devices.fake import FakeBackend


class Controls:
    """What acts on the scripted device's allocator."""

    def __init__(self, fake):
        self._fake = fake

    def empty_cache(self):
        self._fake.empty_cache()

    def set_fraction(self, index, fraction):
        self._fake.cap(None if fraction >= 1 else int(fraction * self._fake.device(index).total), index)


class ControlledBackend(FakeBackend):
    """A scripted device whose cache can be emptied and whose memory can be capped."""

    def controls(self):
        return Controls(self)


class Tensor:
    """An allocation of the scripted device that lives as long as this object."""

    def __init__(self, fake, size):
        self._fake, self._handle = fake, fake.allocate(size)

    def __del__(self):
        if hasattr(self, "_handle"):
            self._fake.free(self._handle)
