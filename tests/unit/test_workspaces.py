"""Recognising cuBLAS workspaces, and charging each to the interval in which it came."""

from __future__ import annotations

import pytest

from jupyter_gpumem.devices.workspaces import WorkspaceLog, candidates, sizes
from jupyter_gpumem.records import Counters, Device, DeviceUsage
from jupyter_gpumem.units import KiB, MiB

OLD = 8 * MiB + 128 * KiB
NEW = 32 * MiB


@pytest.fixture(autouse=True)
def no_setting(monkeypatch):
    """The user's own environment says nothing about workspaces."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


def test_default_sizes():
    """Both generations of cards are known."""
    assert sizes() == {OLD, NEW}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (":4096:8", {32 * MiB}),
        (":16:8", {128 * KiB}),
        (":4096:2:16:8", {OLD}),
        (":0:0", {0}),
        ("nonsense", {OLD, NEW}),
        ("", {OLD, NEW}),
    ],
)
def test_the_setting_decides_the_size(monkeypatch, setting, expected):
    """`CUBLAS_WORKSPACE_CONFIG` is read as cuBLAS reads it: pairs of KiB and count."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", setting)
    assert sizes() == expected


def block(requested, state="active_allocated", size=None, **more):
    """Return a block of a snapshot."""
    return {"size": size or requested, "requested_size": requested, "state": state, **more}


def test_candidates_are_live_blocks_of_the_right_request():
    """Size, state and pool must all fit; the block may be larger than the request."""
    segments = [
        {"address": 0, "blocks": [block(NEW), block(NEW, "inactive"), block(OLD, size=10 * MiB), block(NEW + 1)]},
        {"address": 10**9, "segment_pool_id": (1, 0), "blocks": [block(NEW)]},
        {"address": 2 * 10**9, "segment_pool_id": [0, 0], "blocks": [block(NEW, address=2 * 10**9 + 512)]},
        {"address": 3 * 10**9, "blocks": [{"size": NEW, "state": "active_allocated"}]},
    ]
    assert candidates(segments) == {0: NEW, 2 * NEW: OLD, 2 * 10**9 + 512: NEW}


class Library:
    """A back end that has the workspaces a test gives it and counts the searches."""

    def __init__(self, kind="cuda"):
        self.kind = kind
        self.present = {}
        self.searches = 0

    def workspaces(self, index):
        self.searches += 1
        return dict(self.present)


def interval(before, after, *, allocated=(0, 0), live=10, index=0):
    """Return the usage of an interval, by the allocation count and bytes at both ends."""
    return DeviceUsage(
        Device("cuda", index),
        Counters(allocated=allocated[0], allocation_count=before),
        Counters(allocated=allocated[1], allocation_count=after, live=live),
        peak_allocated=allocated[1],
        peak_reserved=0,
    )


def test_the_first_workspaces_are_charged_to_their_interval():
    """Where there was no room for one before, all of them are new."""
    library = Library()
    library.present = {1: NEW, 2: NEW}
    assert WorkspaceLog().appeared(library, interval(0, 5, allocated=(0, 2 * NEW))) == 2 * NEW


def test_a_workspace_that_was_there_is_not_charged_again():
    """Only what appeared since the last measured moment counts."""
    library, log = Library(), WorkspaceLog()
    library.present = {1: NEW}
    log.appeared(library, interval(0, 5, allocated=(0, NEW)))
    library.present[2] = NEW
    assert log.appeared(library, interval(5, 9, allocated=(NEW, 2 * NEW))) == NEW
    assert log.appeared(library, interval(9, 12, allocated=(2 * NEW, 4 * NEW))) is None


def test_unmeasured_allocations_in_between_make_it_silent():
    """A workspace may have come while nobody looked, so nothing is claimed; the next interval is known again."""
    library, log = Library(), WorkspaceLog()
    log.appeared(library, interval(0, 5, allocated=(0, NEW)))
    library.present = {1: NEW}
    assert log.appeared(library, interval(6, 9, allocated=(NEW, 3 * NEW))) is None
    library.present[2] = NEW
    assert log.appeared(library, interval(9, 10, allocated=(3 * NEW, 4 * NEW))) == NEW


def test_the_first_look_into_a_full_process_says_nothing():
    """Loaded late, nobody knows which of the blocks were there before."""
    library = Library()
    library.present = {1: NEW}
    assert WorkspaceLog().appeared(library, interval(100, 105, allocated=(NEW, 3 * NEW))) is None


def test_small_changes_and_huge_heaps_are_not_searched():
    """The search is made only where a workspace can be, and where it stays cheap."""
    library, log = Library(), WorkspaceLog()
    assert log.appeared(library, interval(0, 5, allocated=(0, OLD - 1))) is None
    assert log.appeared(library, interval(0, 5, allocated=(0, 10 * NEW), live=20_001)) is None
    assert library.searches == 0
    log.appeared(library, interval(0, 5, allocated=(0, 10 * NEW), live=20_000))
    assert library.searches == 1


def test_devices_are_kept_apart():
    """Equal addresses on two cards are two workspaces."""
    library, log = Library(), WorkspaceLog()
    library.present = {1: NEW}
    assert log.appeared(library, interval(0, 5, allocated=(0, NEW), index=0)) == NEW
    assert log.appeared(library, interval(0, 5, allocated=(0, NEW), index=1)) == NEW


def test_no_workspaces_are_none():
    """Nothing found is nothing to say, not zero bytes."""
    assert WorkspaceLog().appeared(Library(), interval(0, 5, allocated=(0, NEW))) is None
