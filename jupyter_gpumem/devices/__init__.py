"""The devices of this process: which back ends there are, and the driver beside them."""

from jupyter_gpumem.importing import TorchImportWatch

from .actable import actable_backend, actable_device, actable_devices, first_actable, give_back, give_back_everywhere
from .base import Backend, Controls, Driver, Levels, Stats, Watcher, counters, levels
from .context import check_context, find_context_again, loss_in, lost_context, note_loss, sticky_error
from .naming import check_devices, device_labels, explain_nothing, explain_unused
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
    "Levels",
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
    "check_context",
    "check_devices",
    "counters",
    "device_labels",
    "driver_memory",
    "explain_absence",
    "explain_nothing",
    "explain_unused",
    "find_context_again",
    "first_actable",
    "give_back",
    "give_back_everywhere",
    "levels",
    "loaded_torch",
    "loss_in",
    "lost_context",
    "note_loss",
    "ready_devices",
    "remove_backend",
    "stand_in",
    "sticky_error",
    "torch_installed",
    "uninitialised_cards",
    "versions",
]
