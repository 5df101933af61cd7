"""The allocator model by settings as a text, and requests to it: in mebibytes, or as a script."""

from __future__ import annotations

from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.units import MiB


def model(text="", **arguments):
    return Allocator(AllocatorSettings.parse(text), **arguments)


def reserved(allocator):
    return allocator.reserved / MiB


def mebibytes(allocator, *amounts):
    return [allocator.malloc(int(amount * MiB)) for amount in amounts]


def free_all(allocator, addresses):
    for address in addresses:
        allocator.free(address)


def play(allocator, script, after=lambda: None):
    """Run a script of steps; returns every address, the live ones, and the pending ones."""
    addresses, live, pending = [], [], []
    for step, *values in script:
        if step == "malloc":
            try:
                live.append(allocator.malloc(*values))
            except ModelOutOfMemoryError:
                addresses.append(None)
            else:
                addresses.append(live[-1])
        elif step == "free" and live:
            allocator.free(live.pop(values[0] % len(live)))
        elif step == "defer" and live:
            pending.append(live.pop(values[0] % len(live)))
            allocator.defer(pending[-1])
        elif step == "complete" and pending:
            allocator.complete(pending.pop(values[0] % len(pending)))
        elif step == "empty":
            allocator.empty_cache()
            pending.clear()
        elif step == "toggle" and allocator.settings.max_split_size is None:
            allocator.set_settings(AllocatorSettings(expandable_segments=not allocator.settings.expandable_segments))
        after()
    return addresses, live, pending
