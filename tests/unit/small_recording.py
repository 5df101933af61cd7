"""A small recording to put into files, a call to pickle, and how a file that is no recording is refused."""

from __future__ import annotations

import pytest

from jupyter_gpumem.errors import RecordingError
from jupyter_gpumem.recording import read_recording
from jupyter_gpumem.units import MiB

BASE = 0x7F0000000000
HEAD = b"\x80\x04"


class Calls:
    """Pickles as a call of something."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def event(action, addr=BASE, size=1024, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, **more}


def snapshot(**more):
    """A small snapshot with one live and one freed block."""
    return {
        "segments": [
            {
                "device": 0,
                "address": BASE,
                "total_size": 2 * MiB,
                "stream": 0,
                "segment_type": "small",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [
                    {"address": BASE, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": []},
                    {"address": BASE + 1024, "size": 2 * MiB - 1024, "requested_size": 0, "state": "inactive"},
                ],
            }
        ],
        "device_traces": [
            [
                event("segment_alloc", size=2 * MiB),
                event("alloc", size=1000, frames=[{"filename": "a.py", "line": 3, "name": "f"}]),
                event("alloc", BASE + 1024, 300),
                event("free_requested", BASE + 1024, 300),
                event("free_completed", BASE + 1024, 300),
            ]
        ],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
        "external_annotations": [],
        **more,
    }


def refused(tmp_path, data, name="x.pickle"):
    """Return the text with which a file of these bytes is refused; anything but a refusal fails the test."""
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(RecordingError) as error:
        read_recording(path)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 400
    assert name in text
    return text
