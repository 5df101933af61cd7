"""Recordings of real workloads that what-if is tried on, each read and searched once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.recording import read_recording

DATA = Path(__file__).parents[1] / "data" / "recordings"
BASE = 0x7F0000000000


@cache
def recording(name="resnet50-default"):
    return read_recording(DATA / f"{name}.pickle.gz")


@cache
def searched(name="resnet50-default"):
    return whatif(recording(name))
