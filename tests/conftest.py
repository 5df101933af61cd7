"""Fixtures for every test."""

from __future__ import annotations

import pytest

from jupyter_gpumem import devices
from jupyter_gpumem.devices.fake import FakeBackend


@pytest.fixture
def fake():
    """A scripted device of 8 GiB that is in use already."""
    backend = FakeBackend()
    devices.add_backend(backend)
    yield backend
    devices.remove_backend(backend)
