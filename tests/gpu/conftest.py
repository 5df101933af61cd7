"""Fixtures of the tests that need a CUDA device; what they measure can be kept as JSON (`GPUMEM_RESULTS=file`)."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import pytest

from tests.kernel.client import Kernel

pytestmark = pytest.mark.gpu


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def results():
    """Collects `{scenario: {...}}`; written at the end of the session if `GPUMEM_RESULTS` names a file."""
    collected: dict = {}
    yield collected
    target = os.environ.get("GPUMEM_RESULTS")
    if target:
        import torch

        head = {
            "what": "peaks of known allocation patterns through a real kernel: expected and measured bytes",
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "device": torch.cuda.get_device_name(0),
            "command": "GPUMEM_RESULTS=... python -m pytest tests/gpu",
            "versions": {name: metadata.version(name) for name in ("torch", "ipython", "ipykernel", "nvidia-ml-py")}
            | {"python": sys.version.split()[0], "cuda": torch.version.cuda},
        }
        Path(target).write_text(json.dumps(head | {"scenarios": collected}, indent=1) + "\n")


@pytest.fixture
def fresh():
    """A kernel in which nothing was imported and no device touched."""
    with Kernel() as kernel:
        yield kernel


@pytest.fixture(scope="module")
def loaded():
    """A kernel with the extension and an initialised device, shared by a module; `MiB`, `take` and `gm` are defined."""
    with Kernel() as kernel:
        reply = kernel.run(PREPARE)
        assert reply.status == "ok", reply.shown
        yield kernel


PREPARE = """
%load_ext jupyter_gpumem
import jupyter_gpumem as gm, threading, json, torch
MiB = 2**20
def take(mib): return torch.empty(mib * MiB, dtype=torch.uint8, device="cuda")
first = take(1)
"""
