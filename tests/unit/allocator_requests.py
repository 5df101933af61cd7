"""The allocator model by settings as a text, and requests to it in mebibytes."""

from __future__ import annotations

from jupyter_gpumem.allocator.model import Allocator
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
