"""Kernels for the tests: one for each module, given clean to each test, or a fresh one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from client import Kernel, prepared

if TYPE_CHECKING:
    from collections.abc import Iterator

LOAD = """
%load_ext jupyter_gpumem
import sys
import threading
from jupyter_gpumem import devices, magics
from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.ledger import LEDGER
MiB = 2**20
fake = FakeBackend()
"""

RENEW = """
for one in devices.backends():
    if one.kind == "fake":
        devices.remove_backend(one)
LEDGER.detach()
fake = FakeBackend()
devices.add_backend(fake)
"""

LEFT = """{
    "intervals": LEDGER.open_intervals,
    "cells": sum(len(session.cells._stack) for session in magics._sessions.values()),
    "import watches": sum(type(finder) is devices.TorchImportWatch for finder in sys.meta_path) - LEDGER.watching,
    "threads": [thread.name for thread in threading.enumerate() if "gpumem" in thread.name],
}"""


@pytest.fixture(scope="module")
def shared_kernel() -> Iterator[Kernel]:
    """A kernel that has loaded the extension, for all tests of a module."""
    with prepared(LOAD) as one:
        yield one


@pytest.fixture
def kernel(shared_kernel: Kernel) -> Iterator[Kernel]:
    """The module's kernel with an untouched scripted device, `fake`; checked for leftovers after the test."""
    shared_kernel.run(RENEW, silent=True)
    yield shared_kernel
    left = shared_kernel.value(LEFT)
    shared_kernel.run("%gpumem_auto off\ndevices.remove_backend(fake)", store_history=False)
    assert left == "{'intervals': 0, 'cells': 0, 'import watches': 0, 'threads': []}"


@pytest.fixture
def fresh_kernel() -> Iterator[Kernel]:
    """A kernel that has run nothing yet."""
    with Kernel() as one:
        yield one
