"""The facts this package passes around: frozen, in bytes and seconds, `None` where something is not known."""

from .base import NOTHING_YET, Counters, Device, DriverMemory, Record, Renderer
from .measured import DeviceUsage, Measurement, Series
from .predicted import BatchSearch, Fit, PredictedUse, Prediction
from .state import DeviceStatus, Fragmentation, RecorderStatus, Status, VirtualCard, VirtualStatus

__all__ = [
    "NOTHING_YET",
    "BatchSearch",
    "Counters",
    "Device",
    "DeviceStatus",
    "DeviceUsage",
    "DriverMemory",
    "Fit",
    "Fragmentation",
    "Measurement",
    "PredictedUse",
    "Prediction",
    "Record",
    "RecorderStatus",
    "Renderer",
    "Series",
    "Status",
    "VirtualCard",
    "VirtualStatus",
]
