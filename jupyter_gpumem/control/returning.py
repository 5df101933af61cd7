"""Giving unused cached memory back to the driver, and saying why the rest stays."""

from __future__ import annotations

import time

from jupyter_gpumem.arguments import check_flag
from jupyter_gpumem.devices import actable_backend, counters, explain_nothing, give_back, ready_devices
from jupyter_gpumem.fragments import fragmentation, frame_of
from jupyter_gpumem.records import DeviceEmptied, Emptied

from .book import RESERVATIONS
from .configuration import configuration

_MOST_PINS = 10


def empty_cache(*, workspaces: bool = False) -> Emptied:
    """Give the unused cached memory of every device in use back to the driver. Waits for the GPU; creates no context.

    Args:
        workspaces: also let go of the cuBLAS workspaces; the next matrix products take new ones.

    Raises:
        InvalidValueError: `workspaces` is neither `True` nor `False`.
        UnavailableError: PyTorch has no such thing for the devices in use, or the CUDA context is lost.
    """
    check_flag("workspaces", workspaces)
    if not any(True for _ in ready_devices()):
        return Emptied((), 0.0, missing=explain_nothing())
    backend, controls = actable_backend("the cache cannot be emptied")
    start = time.perf_counter()
    if workspaces:
        controls.clear_workspaces()
    returned = give_back(backend, controls)
    elapsed = time.perf_counter() - start
    page = configuration(backend, controls).in_force().large_segment_size
    devices, recorded = [], False
    for index, (before, after) in returned.items():
        segments = backend.segments(index) or []
        lies, pinned = fragmentation(segments, large_page=page), RESERVATIONS.pins(backend, index, segments, page)
        recorded = recorded or any(frame_of(block) for segment in segments for block in segment["blocks"])
        devices.append(
            DeviceEmptied(
                device=backend.device(index),
                before=before,
                after=after,
                allocated=counters(backend.stats(index)).allocated or 0,
                stranded=lies.stranded,
                private=lies.private,
                workspaces=sum(backend.workspaces(index).values()),
                held=sum(held.size for held in RESERVATIONS.held(backend, index).values()),
                pins=pinned[:_MOST_PINS],
                pinned_by=sum(pin.live for pin in pinned),
            )
        )
    return Emptied(tuple(devices), elapsed, recorded)
