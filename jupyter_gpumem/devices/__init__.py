"""The devices of this process: which back ends there are, and the driver beside them."""

from .actable import actable_backend, actable_device, actable_devices, first_actable, give_back
from .base import Backend, Controls, Driver, Stats, Watcher, counters
from .interception import TorchImportWatch
from .naming import check_devices, device_labels, explain_unused
from .pytorch import explain_absence, loaded_torch, torch_installed, versions
from .registry import (
    add_backend,
    backend,
    backends,
    driver_memory,
    ready_devices,
    remove_backend,
    stand_in,
    uninitialised_cards,
)
from .workspaces import WorkspaceLog

__all__ = [
    "Backend",
    "Controls",
    "Driver",
    "Stats",
    "TorchImportWatch",
    "Watcher",
    "WorkspaceLog",
    "actable_backend",
    "actable_device",
    "actable_devices",
    "add_backend",
    "backend",
    "backends",
    "check_devices",
    "counters",
    "device_labels",
    "driver_memory",
    "explain_absence",
    "explain_unused",
    "first_actable",
    "give_back",
    "loaded_torch",
    "ready_devices",
    "remove_backend",
    "stand_in",
    "torch_installed",
    "uninitialised_cards",
    "versions",
]
