"""The memory of the process on the host."""

from __future__ import annotations

import os
import resource
from multiprocessing import get_context

import psutil
import pytest

from jupyter_gpumem import host
from jupyter_gpumem.units import MiB


@pytest.fixture(params=["the kernel's file", "psutil"])
def source(request, monkeypatch):
    """Read it in both ways."""
    if request.param == "psutil":
        monkeypatch.setattr(host, "_STATM", None)


def _growth() -> int:
    before = host.resident_bytes()
    touched = bytearray(os.urandom(64 * MiB))
    return host.resident_bytes() - before + 0 * len(touched)


def test_what_is_touched_becomes_resident(source):
    """The unit is bytes, and what the process takes is seen."""
    assert 60 * MiB < _growth() < 200 * MiB


def test_it_is_what_psutil_says():
    """Nothing but the way there is different."""
    assert host.resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, abs=16 * MiB)


def test_a_forked_worker_reads_its_own(source):
    """A loader's worker that measures something is not told of its parent."""
    host.resident_bytes()
    with get_context("fork").Pool(1) as pool:
        assert pool.apply(_growth) > 60 * MiB


def test_without_file_descriptors_it_is_not_known(source):
    """Nothing is raised where the file cannot be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unused = os.dup(1)
    os.close(unused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused, hard))
    try:
        found = host.resident_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found is None
