"""The facts this package passes around: frozen, in bytes and seconds, `None` where something is not known."""

from .base import NOTHING_YET, Counters, Device, DriverMemory, Record, Renderer
from .measured import DeviceUsage, Measurement, Series
from .state import DeviceStatus, Fragmentation, RecorderStatus, Status, VirtualCard, VirtualStatus

__all__ = [
    "NOTHING_YET",
    "Counters",
    "Device",
    "DeviceStatus",
    "DeviceUsage",
    "DriverMemory",
    "Fragmentation",
    "Measurement",
    "Record",
    "RecorderStatus",
    "Renderer",
    "Series",
    "Status",
    "VirtualCard",
    "VirtualStatus",
]
