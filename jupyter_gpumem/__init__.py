"""jupyter_gpumem: PyTorch GPU memory in the notebook, measured exactly and left alone.

In a notebook: `%load_ext jupyter_gpumem`, then `%gpumem`, `%gpumem STATEMENT` and `%%gpumem`.
In any Python: `import jupyter_gpumem as gm`, then `gm.status()`, `with gm.measure() as m:`, `gm.Tracker()`.

Importing this imports neither torch nor matplotlib nor ipywidgets, and touches no device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .batch_size import find_batch_size
    from .comparison import whatif
    from .control.auditing import audit
    from .control.capping import limit
    from .control.changing import allocator_config
    from .control.monitoring import monitor
    from .control.reservation import reserve
    from .control.returning import empty_cache
    from .errors import (
        DeviceNotFoundError,
        GpumemError,
        InvalidValueError,
        RecordingError,
        SettingsRefusedError,
        ShortOfMemoryError,
        UnavailableError,
    )
    from .holding import holders
    from .letting_go import free
    from .live import Panel, panel
    from .measurement import Measure, measure
    from .oom import explain_oom
    from .overview import status
    from .prediction import predict
    from .recorder import record
    from .recording import Recording, read_recording
    from .records import AllocatorConfig, Audit, Emptied, Limits, Measurement, Prediction, Reservation, Status, WhatIf
    from .retrying import retry_on_oom
    from .tracker import Tracker
    from .virtual.opening import virtual_gpu

__version__ = "0.1.0"

_HOMES = {
    "AllocatorConfig": "records",
    "Audit": "records",
    "DeviceNotFoundError": "errors",
    "Emptied": "records",
    "GpumemError": "errors",
    "InvalidValueError": "errors",
    "Limits": "records",
    "Measure": "measurement",
    "Measurement": "records",
    "Panel": "live",
    "Prediction": "records",
    "Recording": "recording",
    "RecordingError": "errors",
    "Reservation": "records",
    "SettingsRefusedError": "errors",
    "ShortOfMemoryError": "errors",
    "Status": "records",
    "Tracker": "tracker",
    "UnavailableError": "errors",
    "WhatIf": "records",
    "allocator_config": "control.changing",
    "audit": "control.auditing",
    "empty_cache": "control.returning",
    "explain_oom": "oom",
    "find_batch_size": "batch_size",
    "free": "letting_go",
    "holders": "holding",
    "limit": "control.capping",
    "measure": "measurement",
    "monitor": "control.monitoring",
    "panel": "live",
    "predict": "prediction",
    "read_recording": "recording",
    "record": "recorder",
    "reserve": "control.reservation",
    "retry_on_oom": "retrying",
    "status": "overview",
    "virtual_gpu": "virtual.opening",
    "whatif": "comparison",
}

__all__ = [
    "AllocatorConfig",
    "Audit",
    "DeviceNotFoundError",
    "Emptied",
    "GpumemError",
    "InvalidValueError",
    "Limits",
    "Measure",
    "Measurement",
    "Panel",
    "Prediction",
    "Recording",
    "RecordingError",
    "Reservation",
    "SettingsRefusedError",
    "ShortOfMemoryError",
    "Status",
    "Tracker",
    "UnavailableError",
    "WhatIf",
    "allocator_config",
    "audit",
    "empty_cache",
    "explain_oom",
    "find_batch_size",
    "free",
    "holders",
    "limit",
    "measure",
    "monitor",
    "panel",
    "predict",
    "read_recording",
    "record",
    "reserve",
    "retry_on_oom",
    "status",
    "virtual_gpu",
    "whatif",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, together with the way its results are shown."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module(".report", __name__)
    value = globals()[name] = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magics to a shell: `%load_ext jupyter_gpumem`. Prints nothing."""
    from .magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take everything away again: `%unload_ext jupyter_gpumem`."""
    from .magics import unload

    unload(shell)
