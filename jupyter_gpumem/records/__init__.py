"""The facts this package passes around: frozen, in bytes and seconds, `None` where something is not known."""

from .base import NOTHING_YET, Counters, Device, DriverMemory, Record, Renderer
from .holding import Chain, DeviceHolders, Holder, Holders, Released, ReleaseStep, Site
from .measured import DeviceUsage, Measurement, Series
from .state import DeviceStatus, Fragmentation, RecorderStatus, Status, VirtualCard, VirtualStatus

__all__ = [
    "NOTHING_YET",
    "Chain",
    "Counters",
    "Device",
    "DeviceHolders",
    "DeviceStatus",
    "DeviceUsage",
    "DriverMemory",
    "Fragmentation",
    "Holder",
    "Holders",
    "Measurement",
    "Record",
    "RecorderStatus",
    "ReleaseStep",
    "Released",
    "Renderer",
    "Series",
    "Site",
    "Status",
    "VirtualCard",
    "VirtualStatus",
]
